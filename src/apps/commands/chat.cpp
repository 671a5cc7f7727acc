// riptide chat: a conversation, with reasoning and tool calls; or one message and its answer.
#include <unistd.h>

#include <memory>
#include <optional>

#include "apps/chat/answer_printer.h"
#include "apps/chat/chat_turn.h"
#include "apps/chat/talk.h"
#include "apps/commands/commands.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/flags.h"
#include "apps/support/chat_message.h"
#include "apps/support/environment.h"
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
    std::string system, message, tools_file, messages_file, tool_program;
    std::optional<bool> think;  // absent: as the model's makers have it, else not
    bool as_json = false, has_message = false, quiet = false;
};

constexpr int64_t kMaxConversation = int64_t{64} << 20;

json::array read_array(const std::string& path, const char* what) {
    if (path.empty()) return {};
    const json::value parsed = parse_json(read_file(path, kMaxConversation), path);
    RT_CHECK(parsed.is_array(), "{}: expected a JSON array of {}", path, what);
    return parsed.get_array();
}

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
    AnswerPrinter printer;
    Progress progress("reading the conversation", "tok");
    const ChatAnswer answer = ask_chat(engine, messages, tools, think, params, [&](const EventBody& event) {
        if (const auto* read = std::get_if<PromptProgress>(&event))
            progress.update(read->done - read->cached, read->total - read->cached);
        if (!o.as_json) printer.show(event);
    });
    messages.push_back(answer.message);
    const bool drafted = !o.draft.drafter.empty();
    if (o.as_json) tell("{}\n", json::serialize(chat_answer_json(engine, answer, drafted)));
    else if (!o.quiet) say("{}\n", closing_line(engine, answer.reply, drafted));
    return answer.reply.done.reason != FinishReason::cancelled;
}

/// The path of --tools-exec. Throws Error (usage): there is no such program.
std::string tool_program_of(const ChatFlags& o) {
    if (o.tool_program.empty()) return {};
    RT_CHECK(o.message.empty() && o.messages_file.empty(), ErrorKind::usage,
             "--tools-exec asks before each call: leave --message and --messages out");
    RT_CHECK(!o.tools_file.empty(), ErrorKind::usage, "--tools-exec needs --tools FILE");
    const bool is_path = o.tool_program.find('/') != std::string::npos;
    std::string path = is_path ? o.tool_program : find_program(o.tool_program);
    RT_CHECK(::access(path.c_str(), X_OK) == 0, ErrorKind::usage, "--tools-exec {}: {}", o.tool_program,
             is_path ? "not a program that can be run" : "not on PATH");
    return path;
}

int converse(Engine& engine, const ChatFlags& o, const std::string& tool_program, json::array tools,
             ChatSettings settings) {
    TalkOptions options;
    options.tools = std::move(tools);
    options.tool_program = tool_program;
    options.quiet = o.quiet;
    options.drafted = !o.draft.drafter.empty();
    if (const std::string folder = state_folder(); !folder.empty()) options.history_file = folder + "/chat_history";
    Conversation begun;
    begun.system = o.system;
    return Talk(engine, std::move(settings), std::move(begun), std::move(options)).run();
}

int chat(const ChatFlags& o) {
    RT_CHECK(!o.has_message || !o.message.empty(), ErrorKind::usage, "--message: the message is empty");
    const bool once = !o.message.empty() || !o.messages_file.empty();
    const std::string tool_program = tool_program_of(o);
    catch_interrupts(once ? 2 : 3);  // in a conversation an impatient second Ctrl-C should not lose it
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
    if (!once) return converse(*engine, o, tool_program, tools, {params, think, info.model.vocab_size});
    if (!o.system.empty()) messages.push_back(chat_message("system", o.system));
    if (!o.message.empty()) messages.push_back(chat_message("user", o.message));
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
    cmd->add_option(
        "--tools-exec", options->tool_program,
        "Program that runs the calls of a conversation, each after a question: PROGRAM NAME, arguments as JSON "
        "on its standard input; left out: results are typed");
    cmd->add_flag_function(
        "--think,!--no-think", [think = &options->think](int64_t times) { *think = times > 0; },
        "Let the model reason first, or not; left out: as the model's generation_config.json says, else not");
    add_sampling_flags(*cmd, options->sampling, "what the context holds");
    add_draft_flags(*cmd, options->draft);
    add_compress_flags(*cmd, options->compress);
    cmd->add_flag("--quiet", options->quiet, "No line of statistics behind an answer");
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
