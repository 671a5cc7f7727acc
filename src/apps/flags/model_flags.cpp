#include "apps/flags/model_flags.h"

#include <algorithm>

#include "apps/convert/requantize.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/model_store.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/replaced_text.h"
#include "quant/kv_codec.h"
#include "quant/quant_mix.h"

namespace riptide::apps {

namespace {

constexpr int kMostThreads = 4096;
constexpr int64_t kLeastWindow = 64;  // tokens: less is no sentence
constexpr int64_t kMaxTokenFile = int64_t{256} << 20;

DType kv_type(const std::string& name) {
    const auto type = dtype_from_name(name);
    RT_CHECK(type && can_hold_kv(*type), ErrorKind::usage,
             "--kv {}: expected f32, f16, bf16, f8_e4m3, q8_0, q4_0 or tq3_0", name);
    return *type;
}

void check_threads(const ModelFlags& flags) {
    RT_CHECK(flags.threads <= kMostThreads, ErrorKind::usage, "--threads {}: expected 0 to {}", flags.threads,
             kMostThreads);
}

}  // namespace

void add_weights_flag(Command& cmd, ModelFlags& flags) {
    cmd.add_option("--weights", flags.weights,
                   "Quantise the weights while they are loaded, as riptide quantize --type does; left out: as they are")
        ->suggest({"q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q4_0"});
}

void add_model_flags(Command& cmd, ModelFlags& flags) {
    cmd.add_option("MODEL", flags.model,
                   "File, folder, OWNER/NAME[:VARIANT] or alias (riptide list); left out: the demo model");
    cmd.add_option("--hub", flags.hub, "Where a model that is not here is fetched from, after a question")
        ->capture_default_str()
        ->group("");  // told by pull
    add_weights_flag(cmd, flags);
    cmd.add_option("--device", flags.device, "auto (a GPU if there is one) | cpu | cuda")
        ->check(IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    cmd.add_option("--gpu", flags.gpu, "Which GPU, from 0")->check(Sign::non_negative)->capture_default_str();
    cmd.add_option("--memory-budget", flags.memory_budget,
                   "GPU memory to use at most, e.g. 24GiB or 8000MB; left out: what is free");
    cmd.add_flag("--portable", flags.portable, "Use only kernels that every supported GPU can run (for tests)");
    cmd.add_option("--threads", flags.threads, "CPU threads; 0: all")->check(Sign::non_negative)->capture_default_str();
    cmd.add_option("--ctx", flags.context, "Context in tokens; 0: the model's, or what the GPU's memory holds")
        ->check(Sign::non_negative)
        ->capture_default_str();
    cmd.add_option("--kv", flags.kv,
                   "K/V type, or K/V apart (q8_0/q4_0): f32 f16 bf16 f8_e4m3 q8_0 q4_0 tq3_0; auto: f32 on the CPU, "
                   "q8_0 on a GPU (f16 if heads are no multiple of 32)")
        ->suggest({"auto", "f32", "f16", "bf16", "f8_e4m3", "q8_0", "q4_0", "tq3_0"})
        ->capture_default_str();
    cmd.add_option("--attention-window", flags.attention_window,
                   "Lossy: full-attention layers see only the last so many tokens; left out: all");
    cmd.add_option("--chunk", flags.chunk,
                   "Prompt tokens in one step; 0: 512 on the CPU, up to 8192 on a GPU (serve: 4096)")
        ->check(Range(0, 65536))
        ->capture_default_str();
    cmd.add_option("--delta", flags.delta,
                   "How prompts pass Gated DeltaNet layers on a Hopper GPU: rows (the same bits in any parts) | chunks "
                   "(faster; bits depend on where steps begin)")
        ->check(IsMember({"rows", "chunks"}))
        ->capture_default_str()
        ->group("");  // told by bench
    cmd.add_option("--prefill", flags.prefill,
                   "Prompts on a GPU: bf16 | fp8 (Hopper: faster, a byte of memory a weight more, rounded to e4m3)")
        ->check(IsMember({"bf16", "fp8"}))
        ->capture_default_str();
    cmd.add_option("--yarn-attention-factor", flags.yarn_attention_factor,
                   "YaRN magnitude instead of the checkpoint's rule (see docs/formats.md)");
}

void add_tokenizer_flag(Command& cmd, ModelFlags& flags) {
    cmd.add_option("--tokenizer", flags.tokenizer, "Folder with a tokenizer.json to use instead of the model's own");
}

void add_template_flag(Command& cmd, ModelFlags& flags) {
    cmd.add_option("--chat-template", flags.chat_template,
                   "File with a chat template (Jinja) to use instead of the model's own");
}

std::unique_ptr<Checkpoint> open_model(const ModelFlags& flags) {
    check_threads(flags);
    check_weights(flags);
    return replace_text(with_weights(open_model_or_demo(resolve_model(flags.model, flags.hub)), flags), flags.tokenizer,
                        flags.chat_template);
}

void check_weights(const ModelFlags& flags) {
    if (flags.weights.empty()) return;
    try {
        check_mix_writable(flags.weights);
    } catch (const Error& error) {
        fail(error.kind(), "--weights: {}", error.what());
    }
}

std::unique_ptr<Checkpoint> with_weights(std::unique_ptr<Checkpoint> checkpoint, const ModelFlags& flags) {
    if (flags.weights.empty()) return checkpoint;
    Progress progress("quantising", "B");
    RequantizeReport report;
    auto made = requantize(std::move(checkpoint),
                           {.mix = flags.weights,
                            .threads = flags.threads,
                            .on_progress = [&](int64_t done, int64_t total) { progress.update(done, total); }},
                           report);
    say("{}", Lines{describe(report)});
    return made;
}

std::unique_ptr<Checkpoint> with_weight_sizes(std::unique_ptr<Checkpoint> checkpoint, const ModelFlags& flags) {
    RequantizeReport report;
    return flags.weights.empty() ? std::move(checkpoint)
                                 : requantize(std::move(checkpoint), {.mix = flags.weights, .values = false}, report);
}

std::function<std::unique_ptr<Checkpoint>(const std::string&)> weights_opener(const ModelFlags& flags) {
    if (flags.weights.empty()) return {};
    return [flags](const std::string& path) { return with_weights(open_checkpoint(path), flags); };
}

void add_draft_flags(Command& cmd, DraftFlags& flags) {
    cmd.add_option("--drafter", flags.drafter,
                   "Draft tokens ahead, which changes no answer: ngram, demo (the demo model's own drafter), or a "
                   "DFlash drafter's file, folder or name")
        ->suggest({"ngram", "demo"});
    cmd.add_option("--draft-width", flags.width, "Drafts in a row, 1 to 63; auto: as many as pay, or none")
        ->capture_default_str();
    cmd.add_option("--draft-tree", flags.tree, "Draft a tree of up to so many tokens; 0: a chain")
        ->capture_default_str();
}

SpeculationOptions speculation_options(const DraftFlags& flags) {
    SpeculationOptions options = drafted_by(flags.drafter);
    options.tree = flags.tree;
    options.adaptive = flags.width == "auto";
    if (!options.adaptive) {
        const bool digits = !flags.width.empty() && flags.width.size() < 4 &&
                            flags.width.find_first_not_of("0123456789") == std::string::npos;
        RT_CHECK(digits, ErrorKind::usage, "--draft-width {}: expected auto or a number from 1 to {}", flags.width,
                 SpeculationOptions::kMostWidth);
        options.width = std::stoi(flags.width);
    }
    RT_CHECK(!flags.drafter.empty() || (options.adaptive && options.tree == 0), ErrorKind::usage,
             "--draft-width and --draft-tree need --drafter");
    check_speculation(options);
    return options;
}

int64_t parse_bytes(const char* flag, const std::string& text) {
    constexpr std::pair<std::string_view, double> kUnits[] = {
        {"", 1}, {"B", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    size_t used = 0;
    double value = -1;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {
    }
    std::string_view unit = std::string_view(text).substr(used);
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    for (const auto& [name, factor] : kUnits)
        if (unit == name && value > 0 && value * factor < 0x1p62) return static_cast<int64_t>(value * factor);
    fail(ErrorKind::usage, "{} {}: expected a size such as 24GiB or 8000MB", flag, text);
}

bool wants_gpu(const ModelFlags& flags) {
    if (flags.device != "auto") return flags.device == "cuda";
    if (!list_gpus().empty()) return true;
    if (!nvidia_driver_installed()) return false;
    try {  // say why not: the driver may be too old, or hide its GPUs
        Gpu::open({.ordinal = flags.gpu, .memory_budget = 0, .portable = false});
    } catch (const Error& error) {
        say("running on the CPU: {}\n", error.what());
    }
    return false;
}

SessionOptions session_options(const ModelFlags& flags) {
    check_threads(flags);
    SessionOptions options;
    options.threads = flags.threads;
    options.context = flags.context;
    options.chunk_rows = flags.chunk;
    if (wants_gpu(flags)) {
        GpuOptions gpu{.ordinal = flags.gpu, .memory_budget = 0, .portable = flags.portable};
        if (!flags.memory_budget.empty()) gpu.memory_budget = parse_bytes("--memory-budget", flags.memory_budget);
        options.gpu = gpu;
    }
    options.choose_kv = flags.kv == "auto";
    if (!options.choose_kv) {
        std::tie(options.k_dtype, options.v_dtype) = kv_types(flags.kv);
    }
    RT_CHECK(
        flags.attention_window == 0 || (flags.attention_window >= kLeastWindow && flags.attention_window <= INT32_MAX),
        ErrorKind::usage, "--attention-window {}: expected {} tokens or more, or 0: all", flags.attention_window,
        kLeastWindow);
    options.model.attention_window = static_cast<int32_t>(flags.attention_window);
    options.model.yarn_attention_factor = flags.yarn_attention_factor;
    options.model.delta_by_chunks = flags.delta == "chunks";
    options.model.prefill = flags.prefill == "fp8" ? PrefillKind::fp8 : PrefillKind::bf16;
    return options;
}

std::unique_ptr<Session> open_session(const ModelFlags& flags) {
    SessionOptions options = session_options(flags);
    auto checkpoint = flags.random_weights.empty()
                          ? open_model(flags)
                          : random_checkpoint(flags.random_weights, flags.threads,
                                              flags.random_routing == "skewed"    ? RandomRouting::skewed
                                              : flags.random_routing == "uniform" ? RandomRouting::uniform
                                                                                  : RandomRouting::alike);
    int64_t total = 0;
    for (const TensorInfo& tensor : checkpoint->tensors()) total += static_cast<int64_t>(tensor.bytes.size());
    Progress progress("weights", "B");
    if (options.gpu) options.model.on_progress = [&](int64_t done) { progress.update(done, total); };
    auto session = std::make_unique<Session>(std::move(checkpoint), options);
    if (session->gpu() != nullptr) say("{}: {}\n", session->gpu()->info().name, session->memory());
    const ModelInfo& info = session->model().info();
    for (const std::string& note : {info.kv_scales, window_sentence(info)})
        if (!note.empty()) say("{}\n", note);
    return session;
}

std::unique_ptr<Engine> open_engine(const ModelFlags& flags, EngineOptions options) {
    const SpeculationOptions speculation = std::move(options.speculation);
    static_cast<SessionOptions&>(options) = session_options(flags);
    options.speculation = speculation;
    options.open_weights = weights_opener(flags);
    auto checkpoint = open_model(flags);
    int64_t total = 0;
    for (const TensorInfo& tensor : checkpoint->tensors()) total += static_cast<int64_t>(tensor.bytes.size());
    Progress progress("weights", "B");
    if (options.gpu) options.model.on_progress = [&](int64_t done) { progress.update(done, total); };
    return std::make_unique<Engine>(std::move(checkpoint), options);
}

std::unique_ptr<Engine> open_lone_engine(const ModelFlags& flags, EngineOptions options) {
    options.max_running = 1;
    options.host_cache_bytes = 0;
    auto engine = open_engine(flags, std::move(options));
    const EngineInfo info = engine->info();
    if (!info.memory.empty()) say("{}: {}\n", info.device, info.memory);
    for (const std::string& note : {info.model.kv_scales, window_sentence(info.model)})
        if (!note.empty()) say("{}\n", note);
    return engine;
}

std::string window_sentence(const ModelInfo& model) {
    return model.attention_window == 0
               ? ""
               : fmt::format("full-attention layers see the last {} tokens only (--attention-window, lossy)",
                             grouped(model.attention_window));
}

std::string kv_name(const Session& session) { return kv_name(session.options().k_dtype, session.options().v_dtype); }

std::pair<DType, DType> kv_types(const std::string& text) {
    const size_t slash = text.find('/');
    const DType k = kv_type(text.substr(0, slash));
    return {k, slash == std::string::npos ? k : kv_type(text.substr(slash + 1))};
}

std::string kv_name(DType k, DType v) {
    return k == v ? std::string(dtype_name(k)) : fmt::format("{}/{}", dtype_name(k), dtype_name(v));
}

SamplingParams usual_sampling() {
    SamplingParams out;
    out.temperature = 0.7;  // what the makers of Laguna XS.2 recommend
    out.top_k = 20;
    return out;
}

void add_sampling_choice(Command& cmd, SamplingChoice& choice) {
    cmd.add_option("--temperature", choice.temperature,
                   "0: always the most likely token; left out: as the model's file says, else 0.7");
    cmd.add_option("--top-k", choice.top_k, "Draw from the k most likely; 0: all; left out: the file's, else 20");
    cmd.add_option("--top-p", choice.top_p,
                   "Draw from the smallest set with this probability; left out: the file's, else 1");
    cmd.add_option("--min-p", choice.min_p,
                   "Leave out tokens below this share of the most likely; left out: the file's, else 0");
    cmd.add_option("--repetition-penalty", choice.repetition_penalty, "1: none; left out: the file's, else 1");
}

void add_sampling_flags(Command& cmd, SamplingFlags& flags, const char* left_out) {
    SamplingParams& p = flags.params = usual_sampling();
    cmd.add_option("-n,--tokens-max", flags.max_tokens,
                   fmt::format("Tokens to make at most, 1 or more; left out: {}", left_out));
    add_sampling_choice(cmd, flags.choice);
    cmd.add_option("--frequency-penalty", p.frequency_penalty)->capture_default_str();
    cmd.add_option("--presence-penalty", p.presence_penalty)->capture_default_str();
    cmd.add_option("--seed", p.seed, "The same seed gives the same answer")->capture_default_str();
    cmd.add_option("--stop", p.stop_strings, "Stop at this text (repeatable)");
    cmd.add_flag("--ignore-eos", p.ignore_eos, "Go on after the model's end-of-text token");
}

SamplingParams sampling_params(const SamplingFlags& flags, const GenerationDefaults& makers, int64_t vocab_size,
                               int64_t fallback) {
    RT_CHECK(flags.max_tokens.value_or(1) >= 1, ErrorKind::usage, "-n {}: the number of tokens must be at least 1",
             flags.max_tokens.value_or(1));
    SettledSampling settled = settle_sampling(flags.params, flags.choice, makers);
    settled.params.max_tokens = flags.max_tokens.value_or(fallback);
    try {
        check_sampling_params(settled.params, vocab_size);
    } catch (const Error& error) {
        throw Error(error.what(), ErrorKind::usage);
    }
    const bool published = std::any_of(settled.values.begin(), settled.values.end(),
                                       [&](const SettledValue& v) { return v.source == makers.source; });
    if (published) say("draws: {}\n", describe(settled));
    return settled.params;
}

std::vector<int32_t> read_token_file(const std::string& path) {
    const json::value parsed = parse_json(read_file(path, kMaxTokenFile), path);
    const json::value* list = &parsed;
    if (parsed.is_object()) list = parsed.get_object().if_contains("tokens");
    RT_CHECK(list != nullptr && list->is_array(),
             "{}: expected a JSON array of token ids, or an object with \"tokens\"", path);
    std::vector<int32_t> ids;
    for (const json::value& id : list->get_array()) {
        RT_CHECK(id.is_int64() && id.get_int64() >= 0 && id.get_int64() <= INT32_MAX,
                 "{}: entry {} is {}, expected a token id", path, ids.size(), json::serialize(id).substr(0, 40));
        ids.push_back(static_cast<int32_t>(id.get_int64()));
    }
    return ids;
}

json::object closing_json(Engine& engine, const Reply& reply, bool drafted) {
    const EngineInfo info = engine.info();
    const Usage& usage = reply.done.usage;
    const double roof = engine.memory_bandwidth();
    const double rate = static_cast<double>(info.model.bytes_per_token) * reply.step_rate();
    json::object facts = {{"prompt_tokens", usage.prompt},
                          {"reused_tokens", usage.cached},
                          {"completion_tokens", usage.completion},
                          {"prefill_tok_s", reply.prefill_rate()},
                          {"decode_tok_s", reply.decode_rate()},
                          {"weight_gb_s", rate * 1e-9},
                          {"measured_bandwidth_gb_s", roof * 1e-9},
                          {"bandwidth_share", rate / roof},
                          {"kv", kv_name(info.k_dtype, info.v_dtype)}};
    if (reply.done.attention_window > 0) facts["attention_window"] = reply.done.attention_window;
    if (!info.memory.empty()) facts["device"] = info.device;
    else facts["logits_hash"] = fmt::format("{:016x}", reply.done.logits_hash);
    if (drafted)
        facts["speculation"] = {{"tokens_per_step", reply.tokens_per_step()},
                                {"steps", usage.steps},
                                {"drafted", usage.drafted},
                                {"accepted", usage.accepted}};
    return facts;
}

std::string closing_line(Engine& engine, const Reply& reply, bool drafted) {
    const EngineInfo info = engine.info();
    const json::object facts = closing_json(engine, reply, drafted);
    const auto number = [&](const char* key) { return facts.at(key).to_number<double>(); };
    const std::string where = !info.memory.empty()
                                  ? info.device
                                  : fmt::format("{} threads · hash {:016x}", info.threads, reply.done.logits_hash);
    const std::string drafts = drafted ? fmt::format(" · {:.2f} tokens a step", reply.tokens_per_step()) : "";
    return fmt::format(
        "[{} + {} tokens · prefill {:.1f} tok/s · decode {:.1f} tok/s{} · {:.1f} GB/s of weights, {:.0f} % of {:.1f} "
        "GB/s measured · K/V {} · {} · {}]",
        reply.done.usage.prompt, reply.done.usage.completion, reply.prefill_rate(), reply.decode_rate(), drafts,
        number("weight_gb_s"), 100 * number("bandwidth_share"), number("measured_bandwidth_gb_s"),
        kv_name(info.k_dtype, info.v_dtype), finish_reason_name(reply.done.reason), where);
}

}  // namespace riptide::apps
