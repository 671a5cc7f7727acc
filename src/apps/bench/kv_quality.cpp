#include "apps/bench/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/support/ask.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "ops/topk.h"

namespace riptide::apps {

namespace {

constexpr const char* kReference = "f16";
constexpr int64_t kMaxNeedleFile = int64_t{256} << 20;
constexpr int64_t kMaxLogits = int64_t{16} << 30;
constexpr int64_t kAnswerTokens = 48;

/// The reference's logits of every position that predicts a token.
struct Reference {
    std::vector<float> logits;
    std::vector<double> normaliser;  // log-sum-exp of each row
};

struct Scored {
    int64_t tokens = 0, agree = 0;
    double loss = 0, more = 0, more_squared = 0, divergence = 0;
};

/// sum_i p_i (ln p_i - ln q_i), p and q the softmax of two rows.
double divergence(std::span<const float> p, double p_normaliser, const float* q, double q_normaliser) {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
        const double ln_p = static_cast<double>(p[i]) - p_normaliser;
        sum += std::exp(ln_p) * (ln_p - (static_cast<double>(q[i]) - q_normaliser));
    }
    return sum;
}

/// Adds a row to the reference (filling) or compares it with the reference's.
void score_row(std::span<const float> row, int32_t next, bool filling, Reference& reference, Scored& sum) {
    const double normaliser = ops::log_sum_exp<double>(row);
    const auto at = static_cast<size_t>(sum.tokens) * row.size();
    if (filling) {
        reference.logits.insert(reference.logits.end(), row.begin(), row.end());
        reference.normaliser.push_back(normaliser);
    }
    const std::span<const float> judge(reference.logits.data() + at, row.size());
    const double judge_normaliser = reference.normaliser[static_cast<size_t>(sum.tokens)];
    const auto token = static_cast<size_t>(next);
    const double loss = normaliser - static_cast<double>(row[token]);
    const double more = loss - (judge_normaliser - static_cast<double>(judge[token]));
    sum.loss += loss;
    sum.more += more;
    sum.more_squared += more * more;
    if (!filling) sum.divergence += divergence(judge, judge_normaliser, row.data(), normaliser);
    sum.agree += ops::argmax(row) == ops::argmax(judge) ? 1 : 0;
    ++sum.tokens;
}

Scored score(Session& session, std::span<const std::vector<int32_t>> pieces, bool filling, Reference& reference,
             const std::string& what) {
    Scored sum;
    int64_t total = 0, done = 0;
    for (const auto& piece : pieces) total += std::ssize(piece);
    const int64_t vocab = session.model().info().vocab_size;
    RT_CHECK(total * vocab * 4 <= kMaxLogits, ErrorKind::usage,
             "the logits of {} tokens and {} entries of the vocabulary take {}, more than {}: give a shorter text",
             total, vocab, human_bytes(total * vocab * 4), human_bytes(kMaxLogits));
    Progress progress("scoring, " + what, "tok");
    for (const std::vector<int32_t>& piece : pieces) {
        session.score(
            piece,
            [&](int64_t first, const Tensor& logits) {
                for (int64_t r = 0; r < logits.rows() && first + r + 1 < std::ssize(piece); ++r)
                    score_row({logits.row(r), static_cast<size_t>(vocab)}, piece[static_cast<size_t>(first + r + 1)],
                              filling, reference, sum);
                progress.update(done + first + logits.rows(), total);
            },
            &interrupted());
        done += std::ssize(piece);
    }
    return sum;
}

int64_t count_found(const ModelFlags& flags, std::span<const Needle> needles) {
    if (needles.empty()) return 0;
    EngineOptions options;
    options.prefix_cache = false;
    const auto engine = open_lone_engine(flags, options);
    int64_t found = 0, done = 0;
    Progress progress("questions, K/V " + flags.kv, "questions");
    for (const Needle& needle : needles) {
        Request request;
        request.prompt = TextPrompt{.text = needle.prompt, .add_special = false, .parse_special = true};
        request.sampling.temperature = 0;
        request.sampling.max_tokens = kAnswerTokens;
        if (ask(*engine, std::move(request)).text.find(needle.answer) != std::string::npos) ++found;
        progress.update(++done, std::ssize(needles));
    }
    return found;
}

/// All but what was measured.
KvQuality quality_of(const Scored& sum) {
    const auto n = static_cast<double>(sum.tokens);
    const double more = sum.more / n, variance = std::max(0.0, sum.more_squared / n - more * more);
    KvQuality row;
    row.tokens = sum.tokens;
    row.perplexity = std::exp(sum.loss / n);
    row.loss = more;
    row.loss_error = std::sqrt(variance / n);
    row.divergence = sum.divergence / n;
    row.agreement = static_cast<double>(sum.agree) / n;
    return row;
}

KvQuality measure_kv_type(ModelFlags flags, const std::string& kv, std::span<const std::vector<int32_t>> pieces,
                          std::span<const Needle> needles, bool filling, Reference& reference) {
    flags.kv = kv;
    if (filling) flags.prefill = "bf16";
    auto session = open_session(flags);
    const SessionOptions& o = session->options();
    double bytes = 0, values = 0;
    for (const StateSpec& spec : session->model().state_specs()) {
        if (!spec.has_kv()) continue;
        bytes += static_cast<double>(row_bytes(o.k_dtype, spec.head_dim) + row_bytes(o.v_dtype, spec.head_dim));
        values += 2 * static_cast<double>(spec.head_dim);
    }
    const Scored sum = score(*session, pieces, filling, reference, "K/V " + kv);
    session.reset();  // there may not be memory for two
    const int64_t found = count_found(flags, needles);
    RT_CHECK(!interrupted(), ErrorKind::io, "interrupted while measuring K/V in {}", kv);
    KvQuality row = quality_of(sum);
    row.kv = flags.prefill == "bf16" ? kv : kv + ", prefill " + flags.prefill;
    row.bits = 8 * bytes / values;
    row.found = found;
    return row;
}

KvQuality measure_file(const ModelFlags& flags, std::span<const std::vector<int32_t>> pieces, bool filling,
                       Reference& reference) {
    const auto session = open_session(flags);
    const ModelInfo& info = session->model().info();
    const auto vocab = static_cast<size_t>(info.vocab_size);
    RT_CHECK(filling || reference.logits.size() == reference.normaliser.size() * vocab,
             "{}: a vocabulary of {}, expected {} as in the model that it is compared with", flags.model, vocab,
             reference.logits.size() / reference.normaliser.size());
    KvQuality row = quality_of(score(*session, pieces, filling, reference, flags.model));
    RT_CHECK(!interrupted(), ErrorKind::io, "interrupted while measuring {}", flags.model);
    row.kv = flags.model.empty() ? "demo" : std::filesystem::path(flags.model).filename().string();
    row.bits = 8 * static_cast<double>(info.weight_bytes) / static_cast<double>(info.parameters);
    return row;
}

KvQuality measure_window(ModelFlags flags, int64_t window, std::span<const std::vector<int32_t>> pieces,
                         std::span<const Needle> needles, bool filling, Reference& reference) {
    flags.attention_window = window;
    auto session = open_session(flags);
    const Scored sum = score(*session, pieces, filling, reference, fmt::format("attention window {}", window));
    session.reset();  // there may not be memory for two
    const int64_t found = count_found(flags, needles);
    RT_CHECK(!interrupted(), ErrorKind::io, "interrupted while measuring an attention window of {}", window);
    KvQuality row = quality_of(sum);
    row.kv = window == 0 ? "all" : grouped(window);
    row.found = found;
    return row;
}

}  // namespace

std::vector<Needle> read_needles(const std::string& path) {
    const json::value parsed = parse_json(read_file(path, kMaxNeedleFile), path);
    RT_CHECK(parsed.is_array(), "{}: expected an array of objects with \"prompt\" and \"answer\"", path);
    std::vector<Needle> needles;
    for (const json::value& entry : parsed.get_array()) {
        const json::object* object = entry.if_object();
        const json::value* prompt = object != nullptr ? object->if_contains("prompt") : nullptr;
        const json::value* answer = object != nullptr ? object->if_contains("answer") : nullptr;
        RT_CHECK(prompt != nullptr && prompt->is_string() && answer != nullptr && answer->is_string(),
                 "{}: entry {} lacks \"prompt\" or \"answer\", both text", path, needles.size());
        needles.push_back({std::string(prompt->get_string()), std::string(answer->get_string())});
    }
    return needles;
}

bool KvQuality::measurably_worse(const KvQuality& reference) const {
    return loss > 2 * loss_error || found < reference.found;
}

std::vector<KvQuality> measure_kv_quality(ModelFlags flags, std::span<const std::vector<int32_t>> pieces,
                                          std::span<const Needle> needles, const std::vector<std::string>& types) {
    Reference reference;
    std::vector<KvQuality> rows = {measure_kv_type(flags, kReference, pieces, needles, true, reference)};
    for (const std::string& kv : types)
        if (kv != kReference || flags.prefill != "bf16")
            rows.push_back(measure_kv_type(flags, kv, pieces, needles, false, reference));
    return rows;
}

std::vector<KvQuality> measure_files(const ModelFlags& flags, std::span<const std::vector<int32_t>> pieces,
                                     const std::vector<std::string>& files) {
    Reference reference;
    std::vector<KvQuality> rows = {measure_file(flags, pieces, true, reference)};
    for (const std::string& file : files) {
        ModelFlags other = flags;
        other.model = file;
        rows.push_back(measure_file(other, pieces, false, reference));
    }
    return rows;
}

std::vector<KvQuality> measure_windows(const ModelFlags& flags, std::span<const std::vector<int32_t>> pieces,
                                       std::span<const Needle> needles, const std::vector<int64_t>& windows) {
    Reference reference;
    std::vector<KvQuality> rows = {measure_window(flags, 0, pieces, needles, true, reference)};
    for (const int64_t window : windows)
        rows.push_back(measure_window(flags, window, pieces, needles, false, reference));
    return rows;
}

std::string windows_markdown(std::span<const KvQuality> rows, int64_t needles) {
    std::string text =
        "| attention window | perplexity | loss, nats a token | KL, nats a token | same first choice | needles |\n"
        "|---:|---:|---:|---:|---:|---:|\n";
    for (const KvQuality& row : rows)
        text += fmt::format("| {} | {:.4f} | {:+.5f} ± {:.5f} | {:.6f} | {:.2f} % | {} |\n", row.kv, row.perplexity,
                            row.loss, row.loss_error, row.divergence, 100 * row.agreement,
                            needles > 0 ? fmt::format("{} of {}", row.found, needles) : "");
    return text;
}

std::string files_markdown(std::span<const KvQuality> rows) {
    std::string text =
        "| file | bits a weight | perplexity | loss, nats a token | KL, nats a token | same first choice |\n"
        "|---|---:|---:|---:|---:|---:|\n";
    for (const KvQuality& row : rows)
        text += fmt::format("| {} | {:.2f} | {:.4f} | {:+.5f} ± {:.5f} | {:.6f} | {:.2f} % |\n", row.kv, row.bits,
                            row.perplexity, row.loss, row.loss_error, row.divergence, 100 * row.agreement);
    return text;
}

std::string markdown(std::span<const KvQuality> rows, int64_t needles) {
    std::string text =
        "| K/V | bits a value | perplexity | loss against f16, nats a token | KL to f16, nats a token | same first "
        "choice | "
        "needles |\n|---|---:|---:|---:|---:|---:|---:|\n";
    const KvQuality* cheapest = &rows.front();
    for (const KvQuality& row : rows) {
        const bool reference = &row == &rows.front();
        text += fmt::format("| {} | {:.2f} | {:.4f} | {} | {} | {:.2f} % | {} |\n", row.kv, row.bits, row.perplexity,
                            reference ? "0" : fmt::format("{:+.5f} ± {:.5f}", row.loss, row.loss_error),
                            reference ? "0" : fmt::format("{:.6f}", row.divergence), 100 * row.agreement,
                            needles > 0 ? fmt::format("{} of {}", row.found, needles) : "");
        if (!row.measurably_worse(rows.front()) && row.bits < cheapest->bits) cheapest = &row;
    }
    return text + fmt::format(
                      "\nThe cheapest type without measurable loss (at most two standard errors above f16, no "
                      "needle fewer): {}.\n",
                      cheapest->kv);
}

json::array to_json(std::span<const KvQuality> rows) {
    json::array list;
    for (const KvQuality& row : rows)
        list.push_back({{"kv", row.kv},
                        {"bits", row.bits},
                        {"tokens", row.tokens},
                        {"perplexity", row.perplexity},
                        {"loss", row.loss},
                        {"loss_error", row.loss_error},
                        {"divergence", row.divergence},
                        {"agreement", row.agreement},
                        {"found", row.found},
                        {"measurably_worse", row.measurably_worse(rows.front())}});
    return list;
}

}  // namespace riptide::apps
