#include "apps/model_flags.h"

#include "apps/demo_model.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory_bandwidth.h"
#include "quant/kv_codec.h"

namespace riptide::apps {

namespace {

constexpr int64_t kMaxTokenFile = int64_t{256} << 20;

DType kv_type(const std::string& name) {
    const auto type = dtype_from_name(name);
    RT_CHECK(type && can_hold_kv(*type), ErrorKind::usage,
             "--kv {}: expected f32, f16, bf16, f8_e4m3, q8_0, q4_0 or tq3_0", name);
    return *type;
}

}  // namespace

void add_model_flags(CLI::App& cmd, ModelFlags& flags) {
    cmd.add_option("MODEL", flags.model, "GGUF file or safetensors folder; left out: the demo model");
    cmd.add_option("--threads", flags.threads, "Threads; 0: all")->check(CLI::Range(0, 4096))->capture_default_str();
    cmd.add_option("--ctx", flags.context, "Context in tokens; 0: the model's")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    cmd.add_option("--kv", flags.kv, "K/V type, or K/V apart (q8_0/q4_0): f32 f16 bf16 f8_e4m3 q8_0 q4_0 tq3_0")
        ->capture_default_str();
    cmd.add_option("--chunk", flags.chunk, "Prompt tokens in one step")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    cmd.add_option("--device", flags.device, "cpu | cuda")->capture_default_str();
    cmd.add_option("--yarn-attention-factor", flags.yarn_attention_factor,
                   "YaRN magnitude instead of the checkpoint's rule (see DESIGN.md)");
}

std::unique_ptr<Session> open_session(const ModelFlags& flags) {
    RT_CHECK(flags.device == "cpu" || flags.device == "cuda", ErrorKind::usage, "--device {}: expected cpu or cuda",
             flags.device);
    RT_CHECK(flags.device == "cpu", ErrorKind::unavailable,
             "--device cuda: this version has no CUDA back end yet; use --device cpu");
    SessionOptions options;
    options.threads = flags.threads;
    options.context = flags.context;
    options.chunk_rows = flags.chunk;
    const size_t slash = flags.kv.find('/');
    options.k_dtype = kv_type(flags.kv.substr(0, slash));
    options.v_dtype = slash == std::string::npos ? options.k_dtype : kv_type(flags.kv.substr(slash + 1));
    options.model.yarn_attention_factor = flags.yarn_attention_factor;
    return std::make_unique<Session>(open_model_or_demo(flags.model), options);
}

void add_sampling_flags(CLI::App& cmd, SamplingFlags& flags) {
    SamplingParams& p = flags.params;
    p.temperature = 0.7;  // what Laguna's makers recommend
    p.top_k = 20;
    cmd.add_option("-n,--tokens-max", flags.max_tokens, "Tokens to make at most");
    cmd.add_option("--temperature", p.temperature, "0: always the most likely token")->capture_default_str();
    cmd.add_option("--top-k", p.top_k, "Draw from the k most likely; 0: all")->capture_default_str();
    cmd.add_option("--top-p", p.top_p, "Draw from the smallest set with this probability")->capture_default_str();
    cmd.add_option("--min-p", p.min_p, "Leave out tokens below this share of the most likely")->capture_default_str();
    cmd.add_option("--repetition-penalty", p.repetition_penalty, "1: none")->capture_default_str();
    cmd.add_option("--frequency-penalty", p.frequency_penalty)->capture_default_str();
    cmd.add_option("--presence-penalty", p.presence_penalty)->capture_default_str();
    cmd.add_option("--seed", p.seed, "The same seed gives the same answer")->capture_default_str();
    cmd.add_option("--stop", p.stop_strings, "Stop at this text (repeatable)");
    cmd.add_flag("--ignore-eos", p.ignore_eos, "Go on after the model's end-of-text token");
}

SamplingParams sampling_params(const SamplingFlags& flags, int64_t vocab_size, int64_t fallback) {
    RT_CHECK(flags.max_tokens >= 0, ErrorKind::usage, "-n {}: the number of tokens must be at least 1",
             flags.max_tokens);
    SamplingParams params = flags.params;
    params.max_tokens = flags.max_tokens == 0 ? fallback : flags.max_tokens;
    try {
        check_sampling_params(params, vocab_size);
    } catch (const Error& error) {
        throw Error(error.what(), ErrorKind::usage);
    }
    return params;
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

json::object closing_json(const Session& session, const GenerationResult& r) {
    ThreadPool threads(session.threads());
    const double roof = measure_read_bandwidth(threads);
    const double rate = static_cast<double>(session.model().info().bytes_per_token) * r.decode_rate();
    return {{"prompt_tokens", r.prompt_tokens},
            {"reused_tokens", r.reused_tokens},
            {"completion_tokens", r.tokens.size()},
            {"prefill_tok_s", r.prefill_rate()},
            {"decode_tok_s", r.decode_rate()},
            {"weight_gb_s", rate * 1e-9},
            {"measured_bandwidth_gb_s", roof * 1e-9},
            {"bandwidth_share", rate / roof},
            {"logits_hash", fmt::format("{:016x}", r.logits_hash)}};
}

std::string closing_line(const Session& session, const GenerationResult& r) {
    const json::object facts = closing_json(session, r);
    const auto number = [&](const char* key) { return facts.at(key).to_number<double>(); };
    return fmt::format(
        "[{} + {} tokens · prefill {:.1f} tok/s · decode {:.1f} tok/s · {:.1f} GB/s of weights, {:.0f} % of {:.1f} "
        "GB/s measured · "
        "{} threads · {} · hash {:016x}]",
        r.prompt_tokens, r.tokens.size(), r.prefill_rate(), r.decode_rate(), number("weight_gb_s"),
        100 * number("bandwidth_share"), number("measured_bandwidth_gb_s"), session.threads(),
        finish_reason_name(r.reason), r.logits_hash);
}

}  // namespace riptide::apps
