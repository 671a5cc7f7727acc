#include "apps/chat/message_reader.h"

#include <unistd.h>

#include <cstdio>

#include "apps/support/environment.h"
#include "apps/support/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr std::string_view kBlockMark = "\"\"\"";

bool can_move_cursor() {
    const std::string terminal = environment("TERM");
    return !terminal.empty() && terminal != "dumb";
}

}  // namespace

MessageReader::MessageReader(const std::string& history_file)
    : interactive_(isatty(STDIN_FILENO) == 1 && stdout_is_terminal()) {
    if (interactive_ && LineEditor::available() && can_move_cursor())
        editor_ = std::make_unique<LineEditor>(bytes_, history_file);
}

TypedLine MessageReader::read_line(const std::string& prompt) {
    if (editor_) return editor_->read(prompt);
    if (interactive_) tell("{}", prompt);
    std::fflush(stdout);
    return read_plain_line(bytes_);
}

TypedLine MessageReader::read(const std::string& prompt) {
    TypedLine message = read_line(prompt);
    if (message.kind != TypedLine::Kind::text || !message.text.starts_with(kBlockMark)) return message;
    message.text.erase(0, kBlockMark.size());
    while (!message.text.ends_with(kBlockMark)) {
        TypedLine more = read_line(". ");
        if (more.kind != TypedLine::Kind::text) {
            say("the block has no {} at its end: it is not sent\n", kBlockMark);
            return more;
        }
        message.text += "\n" + more.text;
    }
    message.text.resize(message.text.size() - kBlockMark.size());
    if (message.text.starts_with('\n')) message.text.erase(0, 1);
    if (message.text.ends_with('\n')) message.text.pop_back();
    return message;
}

void MessageReader::remember(const std::string& text) {
    if (!editor_) return;
    try {
        editor_->remember(text);
    } catch (const Error& error) {
        say("the history is not kept: {}\n", error.what());
    }
}

bool MessageReader::agrees(const std::string& question) {
    const TypedLine answer = read_line(question);
    return answer.kind == TypedLine::Kind::text && (answer.text == "y" || answer.text == "yes");
}

}  // namespace riptide::apps
