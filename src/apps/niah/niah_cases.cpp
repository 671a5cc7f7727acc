#include "apps/niah/niah_cases.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/support/chat_message.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kThings[] = {"code"sv, "number"sv, "key"sv, "password"sv, "version"sv};
constexpr int64_t kLeastText = 32;  // tokens of text without which there is nothing to look through

bool word_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool contains_word(std::string_view text, std::string_view word) {
    for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        const bool open_before = at == 0 || !word_char(text[at - 1]) || !word_char(word.front());
        const bool open_behind = end == text.size() || !word_char(text[end]) || !word_char(word.back());
        if (open_before && open_behind) return true;
    }
    return false;
}

std::string_view trimmed(std::string_view text) {
    const auto space = " \t\r\n"sv;
    const size_t begin = text.find_first_not_of(space);
    if (begin == std::string_view::npos) return {};
    text = text.substr(begin, text.find_last_not_of(space) - begin + 1);
    return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
}

std::set<std::string, std::less<>> numbers_in(std::string_view text) {
    std::set<std::string, std::less<>> out;
    for (size_t i = 0; i < text.size();) {
        size_t end = i;
        while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
        if (end > i) out.emplace(text.substr(i, end - i));
        i = std::max(end, i + 1);
    }
    return out;
}

/// What a task hides and asks.
struct Hidden {
    std::vector<std::string> evidence, decoys;  // entries of the text: a line, or the lines of a function
    std::string question;
    std::vector<std::string> expected;
    Judge how = Judge::contains;
    std::vector<std::string> names;  // no line of the text may hold them
};

/// The forms in which the demo model has learned to read facts.
std::string fact(Haystack text, std::string_view thing, std::string_view name, std::string_view value) {
    switch (text) {
        case Haystack::prose:
            return fmt::format("The secret {} of {} is {}.", thing, name, value);
        case Haystack::code:
            return fmt::format("# the {} of {} is {}", thing, name, value);
        case Haystack::logs:
            return fmt::format("NOTE the {} for {} is {}.", thing, name, value);
    }
    return "";
}

/// Names and values that differ from each other.
class Fresh {
  public:
    explicit Fresh(Draw& draw) : draw_(draw) {}
    std::string name() {
        return add([&] { return draw_.name(); });
    }
    std::string value() {
        return add([&] { return draw_.digits(6); });
    }

  private:
    template <class Make>
    std::string add(Make make) {
        for (;;) {
            std::string made = make();
            const bool near = std::any_of(used_.begin(), used_.end(), [&](const std::string& old) {
                return old.find(made) != std::string::npos || made.find(old) != std::string::npos;
            });
            if (near) continue;
            used_.push_back(made);
            return made;
        }
    }

    Draw& draw_;
    std::vector<std::string> used_;
};

Hidden hide_facts(Haystack text, Draw& draw, int64_t values, int64_t decoys) {
    Fresh fresh(draw);
    const std::string_view thing = draw.pick(kThings);
    const std::string name = fresh.name();
    Hidden h;
    h.names = {name};
    for (int64_t i = 0; i < values; ++i) {
        h.expected.push_back(fresh.value());
        h.evidence.push_back(fact(text, thing, name, h.expected.back()));
    }
    for (int64_t i = 0; i < decoys; ++i) {
        const std::string decoy = fresh.value(), owner = fresh.name();
        h.decoys.push_back(fact(text, thing, owner, decoy));
    }
    h.question = values == 1 ? fmt::format("What is the {} of {}?", thing, name)
                             : fmt::format("What are all the {}s of {}? List every one.", thing, name);
    h.how = values == 1 ? Judge::contains : Judge::all_of;
    return h;
}

Hidden hide_variables(Draw& draw) {
    Fresh fresh(draw);
    const std::vector<std::string> names = {fresh.name(), fresh.name(), fresh.name()};
    const std::string value = fresh.value();
    Hidden h;
    for (size_t i = 0; i < names.size(); ++i)
        h.evidence.push_back(fmt::format("VAR {} = {}", names[i], i == 0 ? value : names[i - 1]));
    for (int i = 0; i < 3; ++i) {
        const std::string decoy = fresh.value(), owner = fresh.name();
        h.decoys.push_back(fmt::format("VAR {} = {}", owner, decoy));
    }
    h.question = fmt::format("What is the value of {}? Follow the assignments to the number.", names.back());
    h.expected = {value};
    h.names = names;
    return h;
}

Hidden hide_counting(Draw& draw) {
    Fresh fresh(draw);
    const std::string name = fresh.name(), other = fresh.name();
    const int64_t count = 2 + draw.below(5);
    Hidden h;
    for (int64_t i = 0; i < count; ++i) h.evidence.push_back(fmt::format("REPORT {}: {} was seen", draw.name(), name));
    for (int64_t i = 0; i < 3; ++i) h.decoys.push_back(fmt::format("REPORT {}: {} was seen", draw.name(), other));
    h.question = fmt::format("How many lines of the text say that {} was seen? Answer with the number alone.", name);
    h.expected = {std::to_string(count)};
    h.how = Judge::number;
    h.names = {name};
    return h;
}

Hidden hide_function(Draw& draw) {
    Fresh fresh(draw);
    const auto body = [&](std::string_view name, std::string_view expression) {
        return fmt::format("def {}(value):\n    result = {}\n    return result", name, expression);
    };
    const std::string name = fresh.name();
    const auto expression = [&] {
        const std::string addend = fresh.value();
        return fmt::format("value * {} + {}", draw.digits(2), addend);
    };
    Hidden h;
    h.expected = {expression()};
    h.evidence = {body(name, h.expected[0])};
    for (int i = 0; i < 3; ++i) {
        const std::string other = expression();
        h.decoys.push_back(body(fresh.name(), other));
    }
    h.question = fmt::format("Show the function {} as it stands in the text.", name);
    h.names = {name};
    return h;
}

Hidden hide(NiahTask task, Haystack text, Draw& draw) {
    switch (task) {
        case NiahTask::single:
        case NiahTask::tool:
            return hide_facts(text, draw, 1, 0);
        case NiahTask::multi_key:
            return hide_facts(text, draw, 1, 7);
        case NiahTask::multi_value:
            return hide_facts(text, draw, 3, 0);
        case NiahTask::variables:
            return hide_variables(draw);
        case NiahTask::counting:
            return hide_counting(draw);
        case NiahTask::code:
            return hide_function(draw);
    }
    return {};
}

std::string joined(std::span<const std::string> lines) {
    std::string out;
    for (const std::string& line : lines) {
        out += line;
        out += '\n';
    }
    return out;
}

/// The conversation about `lines`. The tool task has them in the results of three calls.
void write_conversation(NiahTask task, std::span<const std::string> lines, NiahCase& out) {
    out.messages.clear();
    out.tools.clear();
    if (task != NiahTask::tool) {
        out.messages.push_back(chat_message("user", joined(lines) + "\n" + out.question));
        return;
    }
    out.tools.push_back({{"type", "function"},
                         {"function",
                          {{"name", "read_file"},
                           {"description", "Read a file"},
                           {"parameters",
                            {{"type", "object"},
                             {"properties", {{"path", {{"type", "string"}}}}},
                             {"required", json::array{"path"}}}}}}});
    out.messages.push_back(chat_message("user", "Please read the three files."));
    constexpr size_t kFiles = 3;
    for (size_t i = 0; i < kFiles; ++i) {
        const std::string id = fmt::format("call_{}", i + 1);
        json::object call = {
            {"id", id},
            {"type", "function"},
            {"function", {{"name", "read_file"}, {"arguments", fmt::format("{{\"path\": \"part{}.txt\"}}", i + 1)}}}};
        json::object asked = chat_message("assistant", "");
        asked["tool_calls"] = json::array{std::move(call)};
        out.messages.push_back(std::move(asked));
        const size_t begin = lines.size() * i / kFiles, end = lines.size() * (i + 1) / kFiles;
        json::object result = chat_message("tool", joined(lines.subspan(begin, end - begin)));
        result["tool_call_id"] = id;
        out.messages.push_back(std::move(result));
    }
    out.messages.push_back(chat_message("assistant", "I have read them."));
    out.messages.push_back(chat_message("user", out.question));
}

struct Line {
    std::string text;
    int64_t tokens;
};

/// Lines of the haystack of at most `room` tokens together, none of which says anything that is hidden.
std::vector<Line> fill(Haystack kind, const Hidden& hidden, int64_t room, Draw& draw, const NiahCounter& count) {
    std::vector<Line> out;
    for (;;) {
        std::string line = haystack_line(kind, draw);
        const auto in_line = [&](const std::string& word) { return line.find(word) != std::string::npos; };
        if (std::any_of(hidden.names.begin(), hidden.names.end(), in_line)) continue;
        if (hidden.how != Judge::number && std::any_of(hidden.expected.begin(), hidden.expected.end(), in_line))
            continue;
        const int64_t tokens = count.text(line + "\n");
        if (tokens > room) return out;
        room -= tokens;
        out.push_back({std::move(line), tokens});
    }
}

/// Puts evidence at its depths (by tokens of the lines) and decoys anywhere.
std::vector<std::string> place(const std::vector<Line>& lines, const Hidden& hidden, double depth, Draw& draw) {
    int64_t total = 0;
    for (const Line& line : lines) total += line.tokens;
    struct Entry {
        double at;  // tokens in front of it
        const std::string* text;
    };
    std::vector<Entry> entries;
    const auto n = static_cast<double>(hidden.evidence.size());
    for (size_t i = 0; i < hidden.evidence.size(); ++i) {
        const double where = depth + static_cast<double>(i) / n;
        entries.push_back({static_cast<double>(total) * (where > 1 ? where - 1 : where), &hidden.evidence[i]});
    }
    for (const std::string& decoy : hidden.decoys)
        entries.push_back({static_cast<double>(draw.below(std::max<int64_t>(1, total))), &decoy});
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.at < b.at; });
    std::vector<std::string> out;
    auto next = entries.begin();
    double passed = 0;
    for (const Line& line : lines) {
        const auto size = static_cast<double>(line.tokens);
        while (next != entries.end() && next->at < passed + size / 2) out.push_back(*next++->text);
        out.push_back(line.text);
        passed += size;
    }
    while (next != entries.end()) out.push_back(*next++->text);
    return out;
}

}  // namespace

std::string_view niah_task_name(NiahTask task) {
    switch (task) {
        case NiahTask::single:
            return "single";
        case NiahTask::multi_key:
            return "multi-key";
        case NiahTask::multi_value:
            return "multi-value";
        case NiahTask::variables:
            return "variables";
        case NiahTask::counting:
            return "counting";
        case NiahTask::code:
            return "code";
        case NiahTask::tool:
            return "tool";
    }
    return "";
}

bool judge(Judge how, std::span<const std::string> expected, std::string_view answer) {
    const auto found = [&](const std::string& word) { return contains_word(answer, word); };
    switch (how) {
        case Judge::exact:
            return trimmed(answer) == trimmed(expected[0]);
        case Judge::contains:
            return found(expected[0]);
        case Judge::all_of:
            return std::all_of(expected.begin(), expected.end(), found);
        case Judge::number: {
            const auto numbers = numbers_in(answer);
            return numbers.size() == 1 && *numbers.begin() == expected[0];
        }
    }
    return false;
}

NiahCase make_niah_case(const NiahSpec& spec, const NiahCounter& count) {
    Draw draw(spec.seed);
    NiahCase out;
    out.haystack = kHaystacks[draw.below(std::size(kHaystacks))];
    Hidden hidden = hide(spec.task, out.haystack, draw);
    out.question = hidden.question;
    out.evidence = hidden.evidence;
    out.expected = hidden.expected;
    out.how = hidden.how;
    write_conversation(spec.task, place({}, hidden, spec.depth, draw), out);
    const int64_t without = count.prompt(out.messages, out.tools), room = spec.tokens - without;
    RT_CHECK(room >= kLeastText, ErrorKind::usage, "the task {} needs a prompt of at least {} tokens, {} are too few",
             niah_task_name(spec.task), without + kLeastText, spec.tokens);
    std::vector<Line> lines = fill(out.haystack, hidden, room, draw, count);
    for (;;) {  // a line can count for more in its place than alone, by a token or so
        Draw decoys(spec.seed + 1);
        write_conversation(spec.task, place(lines, hidden, spec.depth, decoys), out);
        out.tokens = count.prompt(out.messages, out.tools);
        if (out.tokens <= spec.tokens || lines.empty()) return out;
        for (int64_t over = out.tokens - spec.tokens; over > 0 && !lines.empty(); lines.pop_back())
            over -= lines.back().tokens;
    }
}

}  // namespace riptide::apps
