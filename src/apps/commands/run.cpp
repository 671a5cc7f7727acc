// riptide run: complete a prompt.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/model_store.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"

namespace riptide::apps {

namespace {

struct RunFlags {
    ModelFlags model;
    SamplingFlags sampling;
    DraftFlags draft;
    CompressFlags compress;
    std::string prompt, text, prompt_file, tokens_file;  // text: the argument behind MODEL
    bool echo = false, no_bos = false, parse_special = false, as_json = false, show_kept = false;
    std::string json_schema, regex, grammar;
};

constexpr int64_t kMaxPrompt = int64_t{64} << 20;

std::string prompt_text(const RunFlags& o) {
    if (!o.prompt_file.empty()) {
        if (o.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
        return read_file(o.prompt_file, kMaxPrompt);
    }
    return o.prompt.empty() ? o.text : o.prompt;
}

constexpr int64_t kMaxGrammar = int64_t{1} << 20;

/// What the text must look like.
AnswerFormat format_of(const RunFlags& o) {
    const int given = (o.json_schema.empty() ? 0 : 1) + (o.regex.empty() ? 0 : 1) + (o.grammar.empty() ? 0 : 1);
    RT_CHECK(given <= 1, ErrorKind::usage, "--json-schema, --regex and --grammar exclude each other");
    RT_CHECK(
        given == 0 || (o.tokens_file.empty() && !o.sampling.params.ignore_eos), ErrorKind::usage,
        "--json-schema, --regex and --grammar exclude --tokens and --ignore-eos: the text ends where it is complete");
    if (!o.regex.empty()) return {.kind = AnswerFormat::Kind::regex, .text = o.regex};
    if (!o.grammar.empty()) return {.kind = AnswerFormat::Kind::grammar, .text = read_file(o.grammar, kMaxGrammar)};
    if (o.json_schema.empty()) return {};
    return {.kind = AnswerFormat::Kind::json_schema,
            .schema = parse_json(read_file(o.json_schema, kMaxGrammar), o.json_schema)};
}

/// Where nobody says what the prompt is and standard input is no terminal, it is there.
void settle_prompt(RunFlags& o) {
    const auto given = [&] {
        int count = 0;
        for (const std::string* prompt : {&o.prompt, &o.text, &o.prompt_file, &o.tokens_file})
            count += prompt->empty() ? 0 : 1;
        return count;
    };
    if (given() == 0 && isatty(STDIN_FILENO) != 1) o.prompt = std::string(std::istreambuf_iterator<char>(std::cin), {});
    RT_CHECK(given() != 0, ErrorKind::usage,
             "no prompt: give it behind the model, with --prompt TEXT, --prompt-file FILE or --tokens IDS.json, or "
             "pipe it in");
    RT_CHECK(given() == 1, ErrorKind::usage,
             "PROMPT, --prompt, --prompt-file and --tokens exclude each other: give one of them");
}

void print_completion_json(Engine& engine, const Reply& reply, bool drafted) {
    json::object out = closing_json(engine, reply, drafted);
    if (reply.done.compression.original > 0) out["compression"] = reply.done.compression.facts();
    out["tokens"] = json::value_from(reply.tokens);
    if (engine.tokenizer() != nullptr) out["text"] = reply.text;
    out["finish_reason"] = finish_reason_name(reply.done.reason);
    tell("{}\n", json::serialize(out));
}

/// The prompt with what would be dropped in marks; no model is loaded but the scorer.
int print_kept(const RunFlags& o) {
    RT_CHECK(o.tokens_file.empty() && !o.compress.scorer.empty(), ErrorKind::usage,
             "--show-kept needs --scorer FILE, and a text");
    check_weights(o.model);
    ModelFlags text_alone = o.model;
    text_alone.weights.clear();
    const auto checkpoint = open_model(text_alone);
    const Tokenizer tokenizer = load_tokenizer(*checkpoint);
    const CompressionOptions options = compression_options(o.compress);
    Compressor compressor(tokenizer, "", with_progress(open_scorer(o.compress, o.model)));
    const std::string text = prompt_text(o);
    const std::vector<int32_t> tokens =
        tokenizer.encode(text, {.add_special = !o.no_bos, .parse_special = o.parse_special});
    const bool whole = options.mode == CompressMode::off ||
                       (options.mode == CompressMode::automatic && std::ssize(tokens) <= options.above);
    const auto plan = whole ? nullptr : compressor.plan({tokens}, options);
    if (plan && !compressor.choose(*plan, &interrupted())) return 130;
    if (plan) say("{}\n", plan->report.sentence());
    put_text((plan ? show_kept(*plan) : text) + "\n");
    return 0;
}

int run(RunFlags o) {
    o.model.model = resolve_model(o.model.model, o.model.hub);  // first: it may be the prompt that stands in its place
    settle_prompt(o);
    compression_options(o.compress);  // what is wrong is said before anything is loaded
    RT_CHECK(o.tokens_file.empty() || o.compress.scorer.empty(), ErrorKind::usage,
             "--tokens and --scorer exclude each other: ids are fed as they are");
    if (o.show_kept) return print_kept(o);
    const AnswerFormat format = format_of(o);
    catch_interrupts();
    EngineOptions options = compressing(o.compress, o.model);
    options.speculation = speculation_options(o.draft);
    options.prefix_cache = false;
    const auto engine = open_lone_engine(o.model, options);
    const EngineInfo info = engine->info();
    Request request;
    request.sampling = sampling_params(o.sampling, info.makers, info.model.vocab_size, kDefaultTokens);
    std::string text;
    if (o.tokens_file.empty()) {
        text = prompt_text(o);
        request.prompt = TextPrompt{text, !o.no_bos, o.parse_special};
    } else {
        request.prompt = read_token_file(o.tokens_file);
        request.sampling.ignore_eos = true;
    }
    request.format = format;
    request.hash_logits = true;
    request.want_tokens = o.as_json || engine->tokenizer() == nullptr;
    Progress progress("reading the prompt", "tok");
    if (o.echo && !o.as_json) put_text(text);
    const auto hear = [&](const EventBody& event) {
        if (const auto* read = std::get_if<PromptProgress>(&event))
            progress.update(read->done - read->cached, read->total - read->cached);
        const auto* piece = std::get_if<TextDelta>(&event);
        if (piece == nullptr || o.as_json) return;
        put_text(piece->text);
        std::fflush(stdout);
    };
    Reply reply;
    try {
        WorkBudget work(WorkBudget::kUnlimited, &interrupted());
        reply = ask(*engine, std::move(request), hear, interrupted(), &work);
    } catch (const WorkStopped&) {
        return 130;
    }
    const bool drafted = options.speculation.on();
    if (o.as_json) {
        print_completion_json(*engine, reply, drafted);
    } else {
        if (engine->tokenizer() == nullptr) tell("{}", json::serialize(json::value_from(reply.tokens)));
        put_text("\n");
        say("{}\n", closing_line(*engine, reply, drafted));
    }
    return reply.done.reason == FinishReason::cancelled ? 130 : 0;
}

}  // namespace

void add_run(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("run", "Complete a prompt");
    auto options = std::make_shared<RunFlags>();
    add_model_flags(*cmd, options->model);
    cmd->add_option("PROMPT", options->text, "The text to continue; it may also be piped in");
    add_tokenizer_flag(*cmd, options->model);
    cmd->add_option("-p,--prompt", options->prompt, "The text to continue, for the demo model or beside MODEL");
    cmd->add_option("-f,--prompt-file", options->prompt_file, "File with the text; -: standard input");
    cmd->add_option("--tokens", options->tokens_file,
                    "File with a JSON array of token ids instead of text; then -n tokens are made, stop ids or not");
    add_sampling_flags(*cmd, options->sampling, "128");
    add_draft_flags(*cmd, options->draft);
    add_compress_flags(*cmd, options->compress);
    cmd->add_flag("--show-kept", options->show_kept,
                  "With --scorer: print the prompt with [- what would be dropped -], and end");
    cmd->add_flag("--echo", options->echo, "Print the prompt before its continuation");
    cmd->add_flag("--no-bos", options->no_bos, "Do not put the begin-of-text token in front");
    cmd->add_flag("--parse-special", options->parse_special,
                  "Read <think> and the like in the prompt as control tokens");
    cmd->add_option("--json-schema", options->json_schema,
                    "File with a JSON Schema: the text is a document valid by it");
    cmd->add_option("--regex", options->regex, "The text matches this regular expression as a whole");
    cmd->add_option(
        "--grammar", options->grammar,
        "File with a grammar in EBNF or Lark (see docs/structured-output.md): the text is its root or start");
    cmd->add_flag("--json", options->as_json, "Print one JSON object: tokens, text, speeds, logits hash");
    for (const char* flag : {"--portable", "--yarn-attention-factor", "--repetition-penalty",
                             "--min-p"})  // told by ppl: help is one screen
        cmd->get_option(flag)->group("");
    cmd->footer(
        "Examples:\n  riptide run --prompt 'def fibonacci(n):' -n 64\n"
        "  riptide run laguna-xs.2 'def fibonacci(n):'\n"
        "  riptide run model.gguf -f main.py --temperature 0\n"
        "  riptide run model.gguf -f book-and-question.txt --scorer qwen3-0.6b.gguf --keep 0.1\n"
        "  riptide run model.gguf --tokens ids.json -n 64 --temperature 0 --json");
    cmd->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace riptide::apps
