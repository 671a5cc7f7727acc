#include "apps/chat/chat_settings.h"

#include <charconv>
#include <utility>
#include <vector>

#include "apps/support/nearest_word.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr std::pair<const char*, double SamplingParams::*> kRealSettings[] = {
    {"temperature", &SamplingParams::temperature},
    {"top_p", &SamplingParams::top_p},
    {"min_p", &SamplingParams::min_p},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"presence_penalty", &SamplingParams::presence_penalty}};
constexpr std::pair<const char*, int64_t SamplingParams::*> kWholeSettings[] = {
    {"top_k", &SamplingParams::top_k}, {"max_tokens", &SamplingParams::max_tokens}};

template <class T>
T number_of(const std::string& name, const std::string& text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    RT_CHECK(error == std::errc() && end == text.data() + text.size(), ErrorKind::usage, "{}: '{}' is no number", name,
             text);
    return value;
}

bool switch_of(const std::string& name, const std::string& text) {
    RT_CHECK(text == "on" || text == "off", ErrorKind::usage, "{}: '{}' is neither on nor off", name, text);
    return text == "on";
}

}  // namespace

std::string describe_settings(const ChatSettings& settings) {
    std::string out = fmt::format("think {}  seed {}", settings.think ? "on" : "off", settings.sampling.seed);
    for (const auto& [name, member] : kRealSettings) out += fmt::format("  {} {}", name, settings.sampling.*member);
    for (const auto& [name, member] : kWholeSettings) out += fmt::format("  {} {}", name, settings.sampling.*member);
    return out;
}

void change_setting(ChatSettings& settings, const std::string& name, const std::string& value) {
    ChatSettings changed = settings;
    std::vector<std::string> known = {"think", "seed"};
    bool found = name == "think" || name == "seed";
    if (name == "think") changed.think = switch_of(name, value);
    if (name == "seed") changed.sampling.seed = number_of<uint64_t>(name, value);
    for (const auto& [word, member] : kRealSettings) {
        known.emplace_back(word);
        if (name != word) continue;
        found = true;
        changed.sampling.*member = number_of<double>(name, value);
    }
    for (const auto& [word, member] : kWholeSettings) {
        known.emplace_back(word);
        if (name != word) continue;
        found = true;
        changed.sampling.*member = number_of<int64_t>(name, value);
    }
    if (!found)
        fail(ErrorKind::usage, "there is no setting '{}'{}; /set alone shows all", name, did_you_mean(name, known));
    check_sampling_params(changed.sampling, changed.vocab_size);
    settings = changed;
}

}  // namespace riptide::apps
