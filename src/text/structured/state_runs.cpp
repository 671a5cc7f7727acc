#include "text/structured/state_runs.h"

#include <algorithm>

namespace riptide {

const StateRuns::Run& StateRuns::from(State state) {
    if (const auto known = runs_.find(state); known != runs_.end()) return known->second;
    Run run{.kinds = step(state).kinds};
    for (State at = state; run.kinds != 0 && run.length < kLongest; ++run.length) {
        const Step& here = step(at);
        if ((run.kinds & ~here.kinds) != 0) break;
        run.depth = std::max(run.depth, here.depth);
        run.escapes = run.escapes || here.escapes;
        if (here.next == at) run.length = kLongest - 1;
        at = here.next;
    }
    return runs_.emplace(state, run).first->second;
}

const StateRuns::Step& StateRuns::step(State state) {
    if (const auto known = steps_.find(state); known != steps_.end()) return known->second;
    constexpr uint8_t kUsual = 'e';  // goes on inside a text, if anything does
    Step out;
    out.next = recognizer_.advance(state, automaton_.class_of(kUsual));
    if (out.next != Recognizer::kDead) {
        recognizer_.count_work(128);
        pass(out.next, out);
        TokenTrie::Kinds all = 0, others = 0;  // kinds of all bytes, and of those that lead elsewhere
        for (uint8_t byte = 0; byte < 128; ++byte) {
            const TokenTrie::Kinds kind = TokenTrie::kind_of(byte);
            all |= kind;
            if ((others & kind) == 0 && recognizer_.advance(state, automaton_.class_of(byte)) != out.next)
                others |= kind;
        }
        out.kinds = all & ~others;
        if (whole_characters_lead(state, out)) out.kinds |= TokenTrie::kWhole;
    }
    return steps_.emplace(state, out).first->second;
}

void StateRuns::pass(State state, Step& out) const {
    out.depth = std::max(out.depth, recognizer_.depth(state));
    out.escapes = out.escapes || !recognizer_.escapes(state).empty();
}

/// Whether all characters beyond ASCII lead to out.next. Unicode 15, table 3-7.
bool StateRuns::whole_characters_lead(State from, Step& out) {
    struct Lead {
        uint8_t low, high, second_low, second_high;
        int32_t more;  // bytes behind the second
    };
    constexpr Lead kLeads[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
                               {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                               {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    int32_t looks = 0;
    for (const Lead& lead : kLeads)
        for (int32_t byte = lead.low; byte <= lead.high; ++byte) {
            const uint16_t symbol = automaton_.class_of(static_cast<uint8_t>(byte));
            if (byte > lead.low && symbol == automaton_.class_of(static_cast<uint8_t>(byte - 1))) continue;
            const State next = recognizer_.advance(from, symbol);
            if (!bytes_lead(next, lead.second_low, lead.second_high, lead.more, out, looks)) return false;
        }
    return true;
}

/// Whether each of these bytes and so many more lead to out.next. False too if that takes too many looks.
bool StateRuns::bytes_lead(State from, uint8_t low, uint8_t high, int32_t more, Step& out, int32_t& looks) {
    constexpr int32_t kMostLooks = 300;
    for (int32_t byte = low; byte <= high; ++byte) {
        const uint16_t symbol = automaton_.class_of(static_cast<uint8_t>(byte));
        if (byte > low && symbol == automaton_.class_of(static_cast<uint8_t>(byte - 1))) continue;
        if (from == Recognizer::kDead || ++looks > kMostLooks) return false;
        pass(from, out);
        const State next = recognizer_.advance(from, symbol);
        if (more == 0 ? next != out.next : !bytes_lead(next, 0x80, 0xBF, more - 1, out, looks)) return false;
    }
    return true;
}

}  // namespace riptide
