#include "apps/chat/talk.h"

#include <cstdio>

#include "apps/chat/answer_printer.h"
#include "apps/chat/chat_turn.h"
#include "apps/chat/talk_word.h"
#include "apps/chat/tool_runner.h"
#include "apps/support/chat_message.h"
#include "apps/support/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr std::chrono::seconds kTwice{1};

/// Was anything said?
bool is_empty(const json::object& message) {
    return message.at("content").as_string().empty() && !message.contains("reasoning_content") &&
           !message.contains("tool_calls") && !message.contains("incomplete_tool_calls");
}

std::string statistics(const Reply& reply, bool drafted) {
    const Usage& usage = reply.done.usage;
    const Timings& t = reply.done.timings;
    return fmt::format("[{} + {} tokens · {} cached · first token after {:.2f} s · {:.1f} tok/s{} · {}]", usage.prompt,
                       usage.completion, usage.cached, t.scoring + t.queue + t.prefill, reply.decode_rate(),
                       drafted ? fmt::format(" · {:.2f} tokens a step", reply.tokens_per_step()) : "",
                       finish_reason_name(reply.done.reason));
}

/// The first word, and what follows it without the space between.
std::pair<std::string, std::string> split_command(const std::string& text) {
    const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    const std::size_t rest = std::min(text.find_first_not_of(" \t\n", end), text.size());
    std::string tail = text.substr(rest);
    tail.erase(tail.find_last_not_of(" \t\n") + 1);
    return {text.substr(0, end), tail};
}

}  // namespace

Talk::Talk(Engine& engine, ChatSettings settings, Conversation begun, TalkOptions options)
    : engine_(engine),
      settings_(std::move(settings)),
      conversation_(std::move(begun)),
      options_(std::move(options)),
      reader_(options_.history_file) {}

int Talk::run() {
    if (reader_.interactive())
        tell("{}. /help lists the commands; Ctrl-C stops an answer, twice leaves.\n", engine_.info().model.name);
    while (!quit_) {
        const TypedLine typed = reader_.read("> ");
        if (typed.kind == TypedLine::Kind::end) return 0;
        if (typed.kind == TypedLine::Kind::interrupted) {
            if (leaves()) return 130;
            continue;
        }
        if (typed.text.find_first_not_of(" \t\n") == std::string::npos) continue;
        reader_.remember(typed.text);
        if (!take(typed.text)) return 130;
    }
    return 0;
}

bool Talk::leaves() {
    if (terminated() || !reader_.interactive()) return true;
    interrupted() = false;
    const auto now = std::chrono::steady_clock::now();
    const bool second = last_interrupt_ != std::chrono::steady_clock::time_point{} && now - last_interrupt_ < kTwice;
    last_interrupt_ = now;
    if (!second) say_dimly("Ctrl-C again leaves");
    return second;
}

bool Talk::take(const std::string& text) {
    const json::array before = conversation_.messages;
    try {
        const auto [first, rest] = split_command(text);
        const Word* word = nullptr;
        for (const Word& known : words())
            if (first == known.name) word = &known;
        if (word != nullptr) obey(*word, rest);
        else if (text.starts_with('/')) refuse(text, first);
        else ask_model(text);
    } catch (const Error& error) {  // too long, too little memory, a template that refuses: this message fails alone
        if (error.kind() == ErrorKind::system) throw;
        say("error: {}\n", error.what());
        conversation_.messages = before;
    }
    if (!interrupted()) return true;
    interrupted() = false;
    return reader_.interactive() && !terminated();
}

void Talk::ask_model(const std::string& question) {
    json::array before = conversation_.messages;
    conversation_.messages.push_back(chat_message("user", attached_ + question));
    answer();
    if (conversation_.messages.size() == before.size() + 1) {  // stopped before it said a word
        say_dimly("nothing was said: the question is taken back");
        conversation_.messages = std::move(before);
        return;
    }
    attached_.clear();
}

void Talk::answer() {
    for (bool more = true; more;) {
        ChatAnswer answer;
        {
            AnswerPrinter printer;
            Progress progress("reading the conversation", "tok");
            answer = ask_chat(engine_, all_messages(conversation_), options_.tools, settings_.think, settings_.sampling,
                              [&](const EventBody& event) {
                                  if (const auto* read = std::get_if<PromptProgress>(&event))
                                      progress.update(read->done - read->cached, read->total - read->cached);
                                  printer.show(event);
                              });
        }
        if (!is_empty(answer.message) || answer.reply.done.reason != FinishReason::cancelled)
            conversation_.messages.push_back(answer.message);
        if (!options_.quiet) say_dimly(statistics(answer.reply, options_.drafted));
        const json::value* calls = answer.message.if_contains("tool_calls");
        more =
            calls != nullptr && answer.reply.done.reason != FinishReason::cancelled && answer_calls(calls->as_array());
    }
}

bool Talk::answer_calls(const json::array& calls) {
    if (!reader_.interactive()) return false;
    json::array results;
    for (const json::value& call : calls) {
        const std::string name(call.at("function").at("name").as_string());
        const std::string arguments(call.at("function").at("arguments").as_string());
        std::string result = "The user does not allow this call.";
        if (options_.tool_program.empty()) {
            const TypedLine typed = reader_.read(fmt::format("result of {} (Ctrl-C: none): ", visible(name)));
            if (typed.kind != TypedLine::Kind::text) {
                interrupted() = terminated();
                return false;
            }
            result = typed.text;
        } else if (reader_.agrees(fmt::format("run {} {} with {}? [y/N] ", visible(options_.tool_program),
                                              visible(name), visible(arguments)))) {
            result = run_tool(options_.tool_program, name, arguments);
            put_text(result + "\n");
        }
        results.push_back({{"role", "tool"}, {"tool_call_id", call.at("id")}, {"content", result}});
    }
    conversation_.messages.insert(conversation_.messages.end(), results.begin(), results.end());
    return !interrupted();
}

}  // namespace riptide::apps
