// riptide chat: a conversation, with reasoning and tool calls; or one message and its answer.
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/commands/chat_turn.h"
#include "apps/commands/commands.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/flags.h"
#include "apps/support/chat_message.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct ChatFlags {
    ModelFlags model;
    SamplingFlags sampling;
    DraftFlags draft;
    CompressFlags compress;
    std::string system, message, tools_file, messages_file;
    std::optional<bool> think;  // absent: as the model's makers have it, else not
    bool as_json = false, has_message = false;
};

constexpr int64_t kMaxConversation = int64_t{64} << 20;

json::array read_array(const std::string& path, const char* what) {
    if (path.empty()) return {};
    const json::value parsed = parse_json(read_file(path, kMaxConversation), path);
    RT_CHECK(parsed.is_array(), "{}: expected a JSON array of {}", path, what);
    return parsed.get_array();
}

/// Shows an answer as it comes: thinking dimmed, calls on lines of their own.
class Printer {
  public:
    void show(const EventBody& event) {
        if (const auto* text = std::get_if<TextDelta>(&event)) return put(text->text, false);
        if (const auto* thought = std::get_if<ReasoningDelta>(&event)) return put(thought->text, true);
        if (const auto* call = std::get_if<ToolCallBegin>(&event)) return put("\n-> " + call->name + " ", false);
        if (const auto* part = std::get_if<ToolCallArguments>(&event)) return put(part->json_fragment, false);
        if (const auto* end = std::get_if<ToolCallEnd>(&event); end != nullptr && !end->complete)
            put(" (cut short)", false);
        if (std::holds_alternative<Done>(event)) put("\n", false);
    }

  private:
    void put(const std::string& text, bool dim) {
        if (dim != dim_ && stdout_is_terminal()) std::fputs(dim ? "\033[2m" : "\033[0m\n", stdout);
        dim_ = dim;
        put_text(text);
        std::fflush(stdout);
    }
    bool dim_ = false;
};

json::object chat_answer_json(Engine& engine, const ChatAnswer& answer, bool drafted) {
    const Done& done = answer.reply.done;
    json::object out = answer.message;
    out["finish_reason"] = finish_reason_name(done.reason);
    out["usage"] = closing_json(engine, answer.reply, drafted);
    if (done.compression.original > 0) out["compression"] = done.compression.facts();
    return out;
}

/// Asks, prints, and appends the answer to the conversation. Returns whether it was finished (not cancelled).
bool take_turn(Engine& engine, json::array& messages, const json::array& tools, const ChatFlags& o, bool think,
               const SamplingParams& params) {
    Printer printer;
    Progress progress("reading the conversation", "tok");
    const ChatAnswer answer = ask_chat(engine, messages, tools, think, params, [&](const EventBody& event) {
        if (const auto* read = std::get_if<PromptProgress>(&event))
            progress.update(read->done - read->cached, read->total - read->cached);
        if (!o.as_json) printer.show(event);
    });
    messages.push_back(answer.message);
    const bool drafted = !o.draft.drafter.empty();
    if (o.as_json) tell("{}\n", json::serialize(chat_answer_json(engine, answer, drafted)));
    else say("{}\n", closing_line(engine, answer.reply, drafted));
    return answer.reply.done.reason != FinishReason::cancelled;
}

/// A conversation from the terminal. /new starts over, /think switches thinking, /quit (or the end of input) ends it.
int converse(Engine& engine, json::array messages, const json::array& tools, const ChatFlags& o, bool think,
             const SamplingParams& params) {
    const json::array beginning = messages;
    tell("{}. /new starts over, /think switches thinking, /quit ends.\n", engine.info().model.name);
    std::string line;
    while (!interrupted()) {
        tell("\n> ");
        std::fflush(stdout);
        if (!std::getline(std::cin, line)) break;
        if (line.empty()) continue;
        if (line == "/quit" || line == "/exit") break;
        if (line == "/new") {
            messages = beginning;
        } else if (line == "/think") {
            think = !think;
            tell("thinking {}\n", think ? "on" : "off");
        } else {
            messages.push_back(chat_message("user", line));
            try {
                if (!take_turn(engine, messages, tools, o, think, params)) return 130;
            } catch (const Error& error) {  // too long, or too little memory: this question fails alone
                if (error.kind() != ErrorKind::usage && error.kind() != ErrorKind::unavailable) throw;
                say("error: {}\n", error.what());
                messages.pop_back();
            }
        }
    }
    return interrupted() ? 130 : 0;
}

int chat(const ChatFlags& o) {
    RT_CHECK(!o.has_message || !o.message.empty(), ErrorKind::usage, "--message: the message is empty");
    catch_interrupts();
    const json::array tools = read_array(o.tools_file, "tools");
    json::array messages = read_array(o.messages_file, "messages");
    RT_CHECK(messages.empty() || o.system.empty(), ErrorKind::usage,
             "--system and --messages exclude each other: put the system message into the file");
    EngineOptions options = compressing(o.compress, o.model);
    options.speculation = speculation_options(o.draft);
    const auto engine = open_lone_engine(o.model, options);
    require_chats(*engine);
    const EngineInfo info = engine->info();
    const SamplingParams params = sampling_params(o.sampling, info.makers, info.model.vocab_size, -1);
    const json::value* published = info.makers.template_kwargs.if_contains("enable_thinking");
    const bool think = o.think.value_or(published != nullptr && published->as_bool());
    if (!o.system.empty()) messages.push_back(chat_message("system", o.system));
    if (!o.message.empty()) messages.push_back(chat_message("user", o.message));
    if (o.message.empty() && o.messages_file.empty())
        return converse(*engine, std::move(messages), tools, o, think, params);
    return take_turn(*engine, messages, tools, o, think, params) ? 0 : 130;
}

}  // namespace

void add_chat(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("chat", "Talk to a model, with reasoning and tool calls");
    auto options = std::make_shared<ChatFlags>();
    add_model_flags(*cmd, options->model);
    add_tokenizer_flag(*cmd, options->model);
    add_template_flag(*cmd, options->model);
    cmd->add_option("-m,--message", options->message, "Ask this once; without it and --messages: a conversation");
    cmd->add_option("--messages", options->messages_file, "JSON array of OpenAI-style messages to answer");
    cmd->add_option("--system", options->system, "System message");
    cmd->add_option("--tools", options->tools_file, "JSON array of OpenAI-style tools that the model may call");
    cmd->add_flag_function(
        "--think,!--no-think", [think = &options->think](int64_t times) { *think = times > 0; },
        "Let the model reason first, or not; left out: as the model's generation_config.json says, else not");
    add_sampling_flags(*cmd, options->sampling, "what the context holds");
    add_draft_flags(*cmd, options->draft);
    add_compress_flags(*cmd, options->compress);
    cmd->add_flag("--json", options->as_json,
                  "Print the answer as one JSON message: content, reasoning_content, tool_calls, usage");
    cmd->footer(
        "Examples:\n  riptide chat\n  riptide chat model.gguf --think --system 'Answer briefly.'\n"
        "  riptide chat --tools examples/tools.json --message 'Please brew tea: kind darjeeling, cups 3.'");
    cmd->callback([options, cmd, &action] {
        options->has_message = cmd->count("--message") > 0;
        action = [options] { return chat(*options); };
    });
}

}  // namespace riptide::apps
