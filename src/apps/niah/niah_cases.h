// Questions about long texts whose answers are known: where in the text they stand, and how long it is, is chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/niah/niah_text.h"
#include "base/json.h"

namespace riptide::apps {

enum class NiahTask {
    single,       // one fact
    multi_key,    // one of eight facts of the same form
    multi_value,  // three facts of the same form about one name: all of them
    variables,    // a name that stands for a name that stands for a number
    counting,     // how many lines say something
    code,         // a function by its name
    tool,         // a fact in the results of tools, asked for in a later turn
};
inline constexpr NiahTask kNiahTasks[] = {NiahTask::single,    NiahTask::multi_key, NiahTask::multi_value,
                                          NiahTask::variables, NiahTask::counting,  NiahTask::code,
                                          NiahTask::tool};
std::string_view niah_task_name(NiahTask task);

enum class Judge {
    exact,     // the answer is what is expected, but for space around it and a full stop
    contains,  // what is expected stands in it, not as part of a longer word or number
    all_of,    // each of what is expected does
    number,    // the only number in it, however often, is the expected one
};
/// Whether `answer` is right. `expected` has one entry, for all_of at least one.
bool judge(Judge how, std::span<const std::string> expected, std::string_view answer);

struct NiahSpec {
    NiahTask task = NiahTask::single;
    int64_t tokens = 4096;  // of the prompt, at most
    double depth = 0.5;     // 0: what answers stands first in the text, 1: last
    uint64_t seed = 0;
};

struct NiahCase {
    Haystack haystack = Haystack::prose;
    json::array messages, tools;
    std::string question;
    /// Lines (of a function: several) of the text that answer; each stands in it once. The first is at the depth;
    /// number i of n is i / n further down, from the end on at the top again.
    std::vector<std::string> evidence;
    std::vector<std::string> expected;
    Judge how = Judge::contains;
    int64_t tokens = 0;  // of the prompt
};

/// Tokens of a piece of text, and of a whole prompt, as the model counts them.
struct NiahCounter {
    std::function<int64_t(std::string_view)> text;
    std::function<int64_t(const json::array& messages, const json::array& tools)> prompt;
};

/// A conversation of at most `spec.tokens` tokens and hardly fewer, up to the question that is to be answered. It is a
/// function of spec and counter. What is expected stands in the evidence only (counts aside). Throws Error
/// (usage) if so few tokens have no room for the task. Cost: two or three counts of the prompt and one of each line.
NiahCase make_niah_case(const NiahSpec& spec, const NiahCounter& count);

}  // namespace riptide::apps
