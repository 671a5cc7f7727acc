#include "apps/ab/ab_run.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "apps/support/ask.h"
#include "apps/support/demo_model.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat/chat.h"

namespace riptide::apps {

namespace {

constexpr int64_t kMaxPrompts = int64_t{64} << 20;
constexpr int64_t kWarmTokens = 24;

constexpr const char* kOwnPrompts = R"({"id": "fibonacci", "suite": "code", "prompt": "def fibonacci(n):\n"}
{"id": "stack", "suite": "code", "prompt": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"}
{"id": "quicksort", "suite": "code", "prompt": "def quicksort(values):\n    if len(values) <= 1:\n        return values\n"}
{"id": "arguments", "suite": "code", "prompt": "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser(description=\"Count words\")\n"}
{"id": "point", "suite": "code", "prompt": "from dataclasses import dataclass\n\n\n@dataclass\nclass Point:\n    x: float\n    y: float\n\n    def distance(self, other):\n"}
{"id": "product", "suite": "chat", "messages": [{"role": "user", "content": "What is 17 times 23?"}]}
{"id": "reverse", "suite": "chat", "messages": [{"role": "user", "content": "Write a function that reverses a string."}]}
{"id": "pens", "suite": "chat", "messages": [{"role": "user", "content": "A box holds 12 pens. How many pens are in 7 boxes?"}]}
)";

/// Turns lines of a prompt file into tokens.
class PromptReader {
  public:
    PromptReader(const Tokenizer& tokenizer, const ChatTemplate* chat_template)
        : tokenizer_(tokenizer), template_(chat_template) {}

    AbPrompt read(const std::string& line, const std::string& where) const {
        const json::value parsed = parse_json(line, where);
        RT_CHECK(parsed.is_object(), "{}: expected a JSON object", where);
        const json::object& fields = parsed.get_object();
        AbPrompt prompt;
        prompt.id = name(fields, {"id", "question_id"});
        prompt.kind = name(fields, {"suite", "category"});
        if (prompt.id.empty()) prompt.id = where.substr(where.rfind(':') + 1);
        const json::value* text = fields.if_contains("prompt");
        if (text != nullptr && text->is_string()) {
            EncodeOptions options;
            options.add_special = true;
            prompt.tokens = tokenizer_.encode(std::string_view(text->get_string()), options);
            return prompt;
        }
        prompt.tokens = chat(messages(fields, where), where);
        return prompt;
    }

  private:
    static std::string name(const json::object& fields, std::initializer_list<const char*> keys) {
        for (const char* key : keys) {
            const json::value* value = fields.if_contains(key);
            if (value == nullptr) continue;
            return value->is_string() ? std::string(value->get_string()) : json::serialize(*value);
        }
        return {};
    }
    static json::array messages(const json::object& fields, const std::string& where) {
        const json::value* given = fields.if_contains("messages");
        if (given != nullptr && given->is_array()) return given->get_array();
        const json::value* turns = fields.if_contains("turns");
        const bool asks = turns != nullptr && turns->is_array() && !turns->get_array().empty();
        RT_CHECK(asks, "{}: expected \"messages\" or \"turns\" (arrays) or \"prompt\" (a string)", where);
        return {{{"role", "user"}, {"content", turns->get_array()[0]}}};
    }
    std::vector<int32_t> chat(const json::array& messages, const std::string& where) const {
        RT_CHECK(template_ != nullptr, "{}: a chat, and the model has no chat template", where);
        const jinja::Rendered rendered = template_->render(messages, {}, {});
        EncodeOptions options;
        options.trusted = rendered.trusted;
        return tokenizer_.encode(rendered.text, options);
    }

    const Tokenizer& tokenizer_;
    const ChatTemplate* template_;
};

int64_t differences(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t common = std::min(a.size(), b.size());
    int64_t count = static_cast<int64_t>(std::max(a.size(), b.size()) - common);
    for (size_t i = 0; i < common; ++i) count += a[i] != b[i];
    return count;
}

void add(SpeculationStats& sum, const SpeculationStats& more) {
    sum.steps += more.steps;
    sum.drafted += more.drafted;
    sum.accepted += more.accepted;
    sum.draft_seconds += more.draft_seconds;
    if (sum.slots.size() < more.slots.size()) sum.slots.resize(more.slots.size());
    for (size_t i = 0; i < more.slots.size(); ++i) {
        sum.slots[i].reached += more.slots[i].reached;
        sum.slots[i].accepted += more.slots[i].accepted;
    }
}

/// An engine that decodes in one way or another.
class Answers {
  public:
    Answers(Engine& engine, const std::vector<AbMode>& modes, const AbOptions& options, const std::atomic<bool>& cancel)
        : engine_(engine), options_(options), cancel_(cancel) {
        const std::unique_ptr<Speculator> own = engine.speculate(nullptr);
        for (const AbMode& mode : modes)
            speculators_.push_back(
                mode.speculation ? std::make_unique<Speculator>(own->shared_drafter(), *mode.speculation) : nullptr);
    }

    Reply answer(const AbPrompt& prompt, size_t mode, int64_t tokens, SpeculationStats& drafts) {
        Request request;
        request.prompt = prompt.tokens;  // what comes behind the end is easily drafted
        request.sampling = options_.sampling;
        if (tokens > 0) request.sampling.max_tokens = tokens;
        request.want_tokens = true;
        std::unique_ptr<Speculator>& speculator = speculators_[mode];
        if (speculator) speculator->clear_stats();
        engine_.speculate(std::move(speculator));
        Reply reply = ask(engine_, std::move(request), {}, cancel_);
        speculator = engine_.speculate(nullptr);
        if (speculator) drafts = speculator->stats();
        return reply;
    }

  private:
    Engine& engine_;
    const AbOptions& options_;
    const std::atomic<bool>& cancel_;
    std::vector<std::unique_ptr<Speculator>> speculators_;  // of each mode, from prompt to prompt
};

}  // namespace

std::vector<AbPrompt> ab_prompts(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const std::string& path,
                                 int64_t most) {
    const PromptReader reader(tokenizer, chat_template);
    std::istringstream lines(path.empty() ? kOwnPrompts : read_file(path, kMaxPrompts));
    std::vector<AbPrompt> prompts;
    std::string line;
    for (int64_t number = 1; std::getline(lines, line) && std::ssize(prompts) < most; ++number)
        if (line.find_first_not_of(" \t\r") != std::string::npos)
            prompts.push_back(reader.read(line, fmt::format("{}:{}", path.empty() ? "own prompts" : path, number)));
    RT_CHECK(!prompts.empty(), "{}: no prompt in it", path);
    return prompts;
}

std::vector<AbMode> ab_modes(const std::string& drafter, const std::vector<int32_t>& widths,
                             const std::vector<int32_t>& trees) {
    std::vector<AbMode> modes = {{"plain", {}}};
    SpeculationOptions options = drafted_by(drafter);
    modes.push_back({"auto", options});
    options.adaptive = false;
    for (const int32_t width : widths) {
        options.width = width, options.tree = 0;
        modes.push_back({fmt::format("chain {}", width), options});
    }
    for (const int32_t tree : trees) {
        options.width = SpeculationOptions{}.width, options.tree = tree;
        modes.push_back({fmt::format("tree {}", tree), options});
    }
    for (const AbMode& mode : modes)
        if (mode.speculation) check_speculation(*mode.speculation);
    return modes;
}

AbAnswer AbResult::total(size_t mode) const {
    AbAnswer sum;
    for (const auto& row : answers) {
        const AbAnswer& one = row[mode];
        sum.tokens += one.tokens;
        sum.seconds += one.seconds;
        sum.mismatches += one.mismatches;
        add(sum.speculation, one.speculation);
    }
    return sum;
}

int64_t AbResult::mismatches() const {
    int64_t sum = 0;
    for (size_t m = 0; m < modes.size(); ++m) sum += total(m).mismatches;
    return sum;
}

AbResult run_ab(Engine& engine, std::vector<AbPrompt> prompts, std::vector<AbMode> modes, const AbOptions& options,
                const std::function<void(int64_t, int64_t)>& on_progress, const std::atomic<bool>& cancel) {
    AbResult result;
    Answers answers(engine, modes, options, cancel);
    SpeculationStats drafts;
    for (size_t m = 0; m < modes.size(); ++m)
        answers.answer(prompts.front(), m, kWarmTokens, drafts);  // graphs are recorded
    const int64_t total = std::ssize(prompts) * std::ssize(modes);
    for (const AbPrompt& prompt : prompts) {
        std::vector<AbAnswer> row(modes.size());
        std::vector<int32_t> truth;
        for (int repeat = 0; repeat < options.repeat; ++repeat)
            for (size_t m = 0; m < modes.size(); ++m) {
                const Reply answer = answers.answer(prompt, m, 0, drafts);
                const auto& [reason, usage, seconds] =
                    std::tie(answer.done.reason, answer.done.usage, answer.done.timings.decode);
                if (reason == FinishReason::cancelled) return result;
                if (m == 0 && repeat == 0) truth = answer.tokens;
                AbAnswer& kept = row[m];
                const int64_t mismatches = kept.mismatches + differences(truth, answer.tokens);
                if (repeat == 0 || seconds < kept.seconds)
                    kept = {usage.steps + usage.accepted, seconds, 0, m == 0 ? SpeculationStats() : drafts};
                kept.mismatches = mismatches;
                if (on_progress)
                    on_progress(std::ssize(result.answers) * std::ssize(modes) + static_cast<int64_t>(m) + 1, total);
            }
        result.answers.push_back(std::move(row));
        result.prompts.push_back(prompt);
        result.modes = modes;
    }
    return result;
}

}  // namespace riptide::apps
