// What begins with a slash.
#include <cstdio>

#include "apps/chat/answer_printer.h"
#include "apps/chat/talk.h"
#include "apps/chat/talk_word.h"
#include "apps/support/nearest_word.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr int64_t kMostAttached = int64_t{16} << 20;

/// A name that a command cannot do without.
void need_name(const std::string& path, const char* command) {
    RT_CHECK(!path.empty(), ErrorKind::usage, "{}: the name of a file is missing", command);
}

/// A heading, then what was said.
void show_message(const json::object& message) {
    tell("[{}]\n", std::string_view(message.at("role").as_string()));
    const json::value* thought = message.if_contains("reasoning_content");
    if (thought != nullptr && thought->is_string()) put_text("(" + std::string(thought->get_string()) + ")\n");
    const json::value* content = message.if_contains("content");
    if (content != nullptr && content->is_string()) put_text(std::string(content->get_string()) + "\n");
    else if (content != nullptr && !content->is_null()) put_text(json::serialize(*content) + "\n");
    if (const json::value* calls = message.if_contains("tool_calls"); calls != nullptr && calls->is_array())
        for (const json::value& call : calls->get_array()) put_text("-> " + json::serialize(call) + "\n");
}

}  // namespace

std::span<const Talk::Word> Talk::words() {
    static constexpr Word kWords[] = {
        {"/help", "", "this list", &Talk::help},
        {"/set", "[NAME VALUE]", "show or change how answers are made, e.g. /set temperature 0", &Talk::set},
        {"/system", "[TEXT]", "show or change the system message; - takes it away", &Talk::system},
        {"/think", "", "let the model reason first, or no longer", &Talk::switch_thinking},
        {"/file", "PATH", "put a file's text in front of the next message", &Talk::attach},
        {"/tools", "", "the tools that the model may call", &Talk::list_tools},
        {"/show", "", "the conversation so far", &Talk::show},
        {"/retry", "", "ask the last question again, with another seed", &Talk::retry},
        {"/undo", "", "take back the last question and its answer", &Talk::undo},
        {"/new", "", "start over", &Talk::start_over},
        {"/save", "FILE", "keep the conversation", &Talk::save},
        {"/load", "FILE", "go on with one that was kept", &Talk::load},
        {"/quit", "", "leave (also /exit, Ctrl-D)", &Talk::quit},
        {"/exit", "", "", &Talk::quit},
    };
    return kWords;
}

void Talk::obey(const Word& word, const std::string& rest) {
    RT_CHECK(word.argument[0] != '\0' || rest.empty(), ErrorKind::usage, "{} takes nothing behind it, found '{}'",
             word.name, rest.substr(0, 40));
    (this->*word.act)(rest);
}

void Talk::refuse(const std::string& text, const std::string& first) {
    if (first.find('/', 1) != std::string::npos || first == "/") return ask_model(text);  // a path
    std::vector<std::string> known;
    for (const Word& word : words()) known.emplace_back(word.name);
    fail(ErrorKind::usage, "there is no command {}{}; /help lists them; a space in front makes it a message", first,
         did_you_mean(first, known));
}

void Talk::help(const std::string&) {
    for (const Word& word : words())
        if (word.help[0] != '\0') tell("{:<22} {}\n", fmt::format("{} {}", word.name, word.argument), word.help);
    tell("Several lines: paste them, or put them between \"\"\" and \"\"\".\n");
}

void Talk::set(const std::string& rest) {
    const std::size_t space = rest.find_first_of(" \t=");
    RT_CHECK(rest.empty() || space != std::string::npos, ErrorKind::usage, "/set {}: expected /set NAME VALUE", rest);
    if (!rest.empty()) {
        const std::size_t value = std::min(rest.find_first_not_of(" \t=", space), rest.size());
        change_setting(settings_, rest.substr(0, space), rest.substr(value));
    }
    tell("{}\n", describe_settings(settings_));
}

void Talk::system(const std::string& rest) {
    if (!rest.empty()) conversation_.system = rest == "-" ? "" : rest;
    if (conversation_.system.empty()) tell("no system message\n");
    else put_text(conversation_.system + "\n");
}

void Talk::show(const std::string&) {
    if (!conversation_.title.empty()) tell("{}\n", conversation_.title);
    for (const json::value& message : all_messages(conversation_)) show_message(message.as_object());
    tell("{}\n", describe_settings(settings_));
}

void Talk::save(const std::string& path) {
    need_name(path, "/save");
    conversation_.model = engine_.info().model.name;
    save_conversation(conversation_, path);
    tell("{} messages in {}\n", conversation_.messages.size(), path);
}

void Talk::load(const std::string& path) {
    need_name(path, "/load");
    conversation_ = load_conversation(path);
    attached_.clear();
    tell("{} messages{}\n", conversation_.messages.size(),
         conversation_.model.empty() ? "" : fmt::format(", answered by {}", conversation_.model));
}

void Talk::retry(const std::string&) {
    const json::array before = conversation_.messages;
    RT_CHECK(undo_answer(conversation_.messages), ErrorKind::usage, "/retry: nothing was asked yet");
    const std::size_t asked = conversation_.messages.size();
    ++settings_.sampling.seed;
    answer();
    if (conversation_.messages.size() == asked) conversation_.messages = before;
}

void Talk::undo(const std::string&) {
    RT_CHECK(undo_question(conversation_.messages), ErrorKind::usage, "/undo: nothing was asked yet");
    tell("taken back; {} messages are left\n", conversation_.messages.size());
}

void Talk::attach(const std::string& path) {
    need_name(path, "/file");
    const std::string text = read_file(path, kMostAttached);
    RT_CHECK(utf8_valid_prefix(text) == text.size() && text.find('\0') == std::string::npos, "{}: not a text in UTF-8",
             path);
    std::string fence = "```";
    while (text.find(fence) != std::string::npos) fence += '`';
    attached_ += fmt::format("{}:\n{}\n{}{}{}\n\n", path, fence, text, text.ends_with('\n') ? "" : "\n", fence);
    tell("{}: {} go with the next message\n", path, human_bytes(std::ssize(text)));
}

void Talk::list_tools(const std::string&) {
    if (options_.tools.empty()) tell("none; chat --tools FILE gives the model some\n");
    for (const json::value& tool : options_.tools) {
        const json::object& function = tool.at("function").as_object();
        const json::value* about = function.if_contains("description");
        tell("{:<22} {}\n", std::string_view(function.at("name").as_string()),
             about != nullptr && about->is_string() ? std::string_view(about->get_string()) : "");
    }
}

void Talk::start_over(const std::string&) {
    conversation_.messages.clear();
    conversation_.title.clear();
    attached_.clear();
}

void Talk::switch_thinking(const std::string&) {
    settings_.think = !settings_.think;
    tell("thinking {}\n", settings_.think ? "on" : "off");
}

void Talk::quit(const std::string&) { quit_ = true; }

}  // namespace riptide::apps
