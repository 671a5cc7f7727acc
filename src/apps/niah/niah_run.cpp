#include "apps/niah/niah_run.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "apps/support/ask.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

using Clock = std::chrono::steady_clock;

ChatPrompt chat_prompt(const json::array& messages, const json::array& tools, bool think) {
    ChatPrompt out{messages, tools, {}};
    out.options.enable_thinking = think;
    return out;
}

/// Lets the model read only this share of the prompt, chosen from this prompt alone.
void compress(Request& request, double keep) {
    request.deterministic = true;
    request.compression.mode = keep < 1 ? CompressMode::always : CompressMode::off;
    if (keep < 1) request.compression.keep = keep;
}

NiahAnswer ask_question(Engine& engine, const NiahCase& question, NiahAnswer out, const NiahOptions& options,
                        const std::atomic<bool>& stop) {
    Request request;
    request.prompt = chat_prompt(question.messages, question.tools, options.think);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = options.max_tokens;
    request.want_tokens = true;
    compress(request, out.keep);
    std::optional<Clock::time_point> first;
    const auto asked = Clock::now();
    const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(t - asked).count(); };
    const Reply reply = ask(
        engine, std::move(request),
        [&](const EventBody& event) {
            if (std::holds_alternative<TokensDrawn>(event) && !first) first = Clock::now();
        },
        stop);
    out.seconds = since(Clock::now());
    out.ttft = first ? since(*first) : out.seconds;
    out.answer = reply.text;
    out.kept = reply.done.usage.prompt;
    out.scoring = reply.done.timings.scoring;
    out.tokens = question.tokens;
    for (const std::string& part : question.expected) out.expected += (out.expected.empty() ? "" : ", ") + part;
    out.right = judge(question.how, question.expected, out.answer);
    return out;
}

bool same_question(const NiahAnswer& a, const NiahAnswer& b) {
    return a.task == b.task && a.length == b.length && a.depth == b.depth && a.keep == b.keep && a.index == b.index;
}

/// All questions without their answers, those of one text side by side.
std::vector<NiahAnswer> questions(const NiahOptions& o) {
    std::vector<NiahAnswer> out;
    for (const int64_t length : o.lengths)
        for (const NiahTask task : o.tasks)
            for (const int depth : o.depths)
                for (int index = 0; index < o.count; ++index)
                    for (const double keep : o.keeps)
                        out.push_back({.task = task,
                                       .length = length,
                                       .depth = depth,
                                       .keep = keep,
                                       .index = index,
                                       .expected = {},
                                       .answer = {}});
    return out;
}

/// Differs for each text, and does not depend on which others are asked for.
uint64_t text_seed(const NiahAnswer& a, uint64_t seed) {
    uint64_t h = seed;
    for (const int64_t part : {static_cast<int64_t>(a.task), a.length, int64_t{a.depth}, int64_t{a.index}}) {
        h = (h ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

}  // namespace

void run_niah(Engine& engine, const NiahOptions& options, const std::vector<NiahAnswer>& known,
              const std::function<void(NiahAnswer, int64_t done, int64_t total)>& on_answer,
              const std::atomic<bool>& stop) {
    const EngineInfo info = engine.info();
    RT_CHECK(info.chat, ErrorKind::usage, "{}: the model has no chat template to ask questions with", info.path);
    for (const int64_t length : options.lengths)
        RT_CHECK(length <= info.context_length, ErrorKind::usage, "--lengths {}: the context has {} tokens", length,
                 info.context_length);
    const NiahCounter counter = {[&](std::string_view text) { return std::ssize(engine.tokenizer()->encode(text)); },
                                 [&](const json::array& messages, const json::array& tools) {
                                     return std::ssize(engine.tokenize(chat_prompt(messages, tools, options.think)));
                                 }};
    const std::vector<NiahAnswer> all = questions(options);
    int64_t done = std::ssize(all);
    const auto is_known = [&](const NiahAnswer& a) {
        return std::any_of(known.begin(), known.end(), [&](const NiahAnswer& k) { return same_question(a, k); });
    };
    std::vector<NiahAnswer> open;
    std::copy_if(all.begin(), all.end(), std::back_inserter(open), [&](const NiahAnswer& a) { return !is_known(a); });
    done -= std::ssize(open);
    NiahCase question;
    const NiahAnswer* last = nullptr;
    for (const NiahAnswer& next : open) {
        const bool same_text = last != nullptr && last->task == next.task && last->length == next.length &&
                               last->depth == next.depth && last->index == next.index;
        if (!same_text)
            question = make_niah_case({.task = next.task,
                                       .tokens = next.length - options.max_tokens,
                                       .depth = next.depth / 100.0,
                                       .seed = text_seed(next, options.seed)},
                                      counter);
        last = &next;
        NiahAnswer answer = ask_question(engine, question, next, options, stop);
        if (stop) return;
        on_answer(std::move(answer), ++done, std::ssize(all));
    }
}

}  // namespace riptide::apps
