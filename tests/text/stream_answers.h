// Answers as tokens, what must hold of any parser's events, and a collector for them. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/dialects/stream_parser.h"
#include "text/utf8.h"

namespace riptide::testing_stream {

struct Piece {
    std::string text;
    bool special = false;
};

struct Call {
    std::string name;
    json::object arguments;
};

struct Answer {
    std::vector<Piece> pieces;
    bool thinking = false;
    bool newlines = false;        // v5
    bool spells_markers = false;  // plain text somewhere spells a single-token tag
    std::string reasoning, content;
    std::vector<Call> calls;
};

inline const char* kTools = R"([
 {"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": {
   "path": {"type": "string"}, "text": {"type": "string"}, "mode": {"enum": ["a", "b"]}, "note": {"type": ["string", "null"]},
   "line": {"type": "integer"}, "ratio": {"type": "number"}, "force": {"type": "boolean"},
   "options": {"type": "object"}, "list": {"type": "array"}}}}},
 {"name": "ping", "input_schema": {"type": "object", "properties": {"host": {"type": "string"}}}}])";

/// Writes answers as pieces, at random.
class PieceWriter {
  protected:
    /// `tags`: the single tokens; the first four may stand inside values.
    PieceWriter(unsigned seed, std::span<const char* const> tags) : random_(seed), tags_(tags) {}

    int pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
    template <std::size_t N>
    const char* one_of(const char* const (&list)[N]) {
        return list[pick(N)];
    }
    void plain(const std::string& text) {
        if (!text.empty()) a_.pieces.push_back({text, false});
    }
    void special(const std::string& text) { a_.pieces.push_back({text, true}); }

    // Text without white space at its ends, so that what framing takes away is known.
    std::string prose(bool markers) {
        static const char* const words[] = {"the",   "a < b", "x</arg_value>", "<arg_key>", "é",  "日本",
                                            "🦙",  "\n\n",  "\"q\"",         "\\",        "<",  "</",
                                            "<tool", "</thi", "{\"a\": 1}",    "&amp;",     "\t", "caf\xC3\xA9"};
        std::string out = "w";
        for (int n = pick(6); n > 0; --n) {
            if (markers && pick(12) == 0) {
                out += tags_[static_cast<std::size_t>(pick(static_cast<int>(tags_.size())))];
                a_.spells_markers = true;
            }
            out += std::string(" ") + one_of(words);
        }
        return out + ".";
    }

    void write_value(const std::string& value) {
        std::string run;
        for (std::size_t at = 0; at < value.size();) {
            bool found = false;
            for (const std::string tag : tags_.first(4)) {
                if (value.compare(at, tag.size(), tag) != 0 || pick(2) == 0) continue;
                plain(run);
                run.clear();
                special(tag);
                at += tag.size();
                found = true;
                break;
            }
            if (!found) run += value[at++];
        }
        plain(run);
    }

    struct Argument {
        std::string raw;
        json::value value;
    };
    /// `text`: what a string would hold.
    Argument argument(const std::string& key, const std::string& text) {
        if (key == "path" || key == "text" || key == "mode") {
            return {text, json::value(text)};
        }
        if (key == "note") {
            return pick(2) == 0 ? Argument{"null", nullptr} : Argument{text + "!", json::value(text + "!")};
        }
        static const char* const typed[] = {"0",
                                            "-7",
                                            "3.5",
                                            "1e3",
                                            "true",
                                            "null",
                                            "[1, \"a<b\", [null]]",
                                            "{\"a\": {\"b\": \"</arg_key>\"}}",
                                            "\"quoted\"",
                                            "[]",
                                            "{}",
                                            "\"\\ud83e\\udd99\""};
        static const char* const words[] = {"True", "False", "None", "plain words", "01",
                                            "[1,",  "'x'",   "+1",   "nul",         "\"\\ud800\""};
        if (pick(3) != 0) {
            const std::string raw = one_of(typed);
            return {raw, json::parse(raw)};
        }
        const std::string raw = one_of(words);
        if (raw == "True") return {raw, true};
        if (raw == "False") return {raw, false};
        if (raw == "None") return {raw, nullptr};
        return {raw, json::value(raw)};
    }

    std::mt19937 random_;
    std::span<const char* const> tags_;
    Answer a_;
};

using MakeParser = std::function<std::unique_ptr<StreamParser>()>;

inline StreamEvents parse(const MakeParser& make, const std::vector<Piece>& pieces) {
    StreamEvents events;
    const auto parser = make();
    for (const Piece& piece : pieces) parser->push_token(piece.text, piece.special, events);
    parser->finish(events);
    return events;
}

inline std::vector<Piece> as_text(const std::vector<Piece>& pieces) {
    std::string text;
    for (const Piece& piece : pieces) text += piece.text;
    return {{text, false}};
}

inline std::vector<Piece> byte_by_byte(const std::vector<Piece>& pieces) {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) {
        if (piece.special) {
            out.push_back(piece);
            continue;
        }
        for (const char c : piece.text) out.push_back({std::string(1, c), false});
    }
    return out;
}

// Runs `f` on the pieces with one plain piece cut in two (`truncate`: and the rest dropped), for every place.
template <class F>
inline void for_each_cut(const std::vector<Piece>& pieces, bool truncate, F f) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const std::size_t places = pieces[i].special ? 1 : pieces[i].text.size();
        for (std::size_t at = 0; at < places; ++at) {
            std::vector<Piece> cut(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(i));
            if (at > 0) cut.push_back({pieces[i].text.substr(0, at), false});
            if (!truncate) {
                cut.push_back({pieces[i].text.substr(at), pieces[i].special});
                cut.insert(cut.end(), pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1, pieces.end());
            }
            f(cut);
        }
    }
}

/// The events with neighbouring deltas of one kind joined, one string each.
inline std::vector<std::string> joined(const StreamEvents& events) {
    std::vector<std::string> out;
    std::string last;
    const auto add = [&](const std::string& kind, const std::string& text) {
        if (last == kind) {
            out.back() += text;
        } else {
            out.push_back(kind + text);
        }
        last = kind;
    };
    for (const StreamEvent& event : events) {
        if (const auto* e = std::get_if<TextDelta>(&event)) add("text: ", e->text);
        if (const auto* e = std::get_if<ReasoningDelta>(&event)) add("reasoning: ", e->text);
        if (const auto* e = std::get_if<ToolCallArguments>(&event))
            add("args " + std::to_string(e->index) + ": ", e->json_fragment);
        if (const auto* e = std::get_if<ToolCallBegin>(&event)) {
            out.push_back("begin " + std::to_string(e->index) + " " + e->id + " " + e->name);
        } else if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
            out.push_back("end " + std::to_string(end->index) + (end->complete ? "" : " cut"));
        } else if (const auto* finish = std::get_if<Finish>(&event)) {
            out.push_back("finish " + std::to_string(finish->tool_calls) + (finish->closed ? " closed" : ""));
        } else {
            continue;
        }
        last.clear();
    }
    return out;
}

/// What a client keeps of the events.
struct Collected {
    std::string reasoning, content;
    struct Call {
        std::string name, arguments;
        bool ended = false, complete = false;
    };
    std::vector<Call> calls;
    int finishes = 0;
    bool finish_last = false, closed = false;
};
inline Collected collect(const StreamEvents& events) {
    Collected out;
    for (const StreamEvent& event : events) {
        out.finish_last = std::holds_alternative<Finish>(event);
        if (const auto* e = std::get_if<TextDelta>(&event)) out.content += e->text;
        if (const auto* e = std::get_if<ReasoningDelta>(&event)) out.reasoning += e->text;
        if (const auto* e = std::get_if<ToolCallBegin>(&event)) out.calls.push_back({e->name, ""});
        if (const auto* e = std::get_if<ToolCallArguments>(&event))
            out.calls.at(static_cast<std::size_t>(e->index)).arguments += e->json_fragment;
        if (const auto* e = std::get_if<ToolCallEnd>(&event)) {
            Collected::Call& call = out.calls.at(static_cast<std::size_t>(e->index));
            call.ended = true;
            call.complete = e->complete;
        }
        if (const auto* e = std::get_if<Finish>(&event)) {
            ++out.finishes;
            out.closed = e->closed;
        }
    }
    return out;
}

inline void expect_answer(const Answer& answer, const StreamEvents& events) {
    const Collected got = collect(events);
    EXPECT_EQ(got.reasoning, answer.reasoning);
    EXPECT_EQ(got.content, answer.content);
    EXPECT_EQ(got.finishes, 1);
    EXPECT_TRUE(got.finish_last && got.closed);
    ASSERT_EQ(got.calls.size(), answer.calls.size());
    for (std::size_t i = 0; i < got.calls.size(); ++i) {
        EXPECT_EQ(got.calls[i].name, answer.calls[i].name);
        EXPECT_TRUE(got.calls[i].complete);
        EXPECT_EQ(parse_json(got.calls[i].arguments, "arguments"), json::value(answer.calls[i].arguments))
            << got.calls[i].arguments;
    }
}

inline std::size_t count(std::string_view text, std::string_view what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size())) ++n;
    return n;
}

inline bool is_no_json(const std::string& text) {
    try {
        parse_json(text, "arguments");
        return false;
    } catch (const std::exception&) {
        return true;
    }
}

// What must hold of any input: one Finish, at the end; every call ended, with arguments that are a JSON object if it is
// complete and no JSON else, and with nothing else inside; valid UTF-8.
inline void expect_sound(const StreamEvents& events) {
    const Collected got = collect(events);
    EXPECT_EQ(got.finishes, 1);
    EXPECT_TRUE(got.finish_last);
    for (const Collected::Call& call : got.calls) {
        EXPECT_TRUE(call.ended);
        if (call.complete) EXPECT_TRUE(parse_json(call.arguments, "arguments").is_object()) << call.arguments;
        else EXPECT_TRUE(call.arguments.starts_with('{') && is_no_json(call.arguments)) << call.arguments;
    }
    bool in_call = false;
    for (const StreamEvent& event : events) {
        std::string_view text;
        if (std::holds_alternative<ToolCallEnd>(event)) in_call = false;
        EXPECT_TRUE(!in_call || std::holds_alternative<ToolCallArguments>(event)) << "inside a call";
        if (std::holds_alternative<ToolCallBegin>(event)) in_call = true;
        if (const auto* e = std::get_if<TextDelta>(&event)) text = e->text;
        if (const auto* e = std::get_if<ReasoningDelta>(&event)) text = e->text;
        if (const auto* e = std::get_if<ToolCallArguments>(&event)) text = e->json_fragment;
        EXPECT_EQ(utf8_valid_prefix(text), text.size());
    }
}

/// `newlines`: as many before a tag are framing; `last_are_text`: at the end of an answer they are none.
inline void expect_truncation(const Answer& answer, bool strict, const StreamEvents& events, int newlines = 1,
                              bool last_are_text = false) {
    expect_sound(events);
    const Collected got = collect(events);
    // What has come is a prefix of the whole, without calls that have no complete name yet, but (from text alone) with
    // a cut tag of a single token: that is text, and then the newline before it is, too.
    const auto is_prefix = [&](std::string part, const std::string& whole) {
        part = part.substr(0, part.find(kReplacement));
        const auto fits = [&](std::string_view text) {
            bool is = whole.starts_with(text);
            for (int i = 0; i < newlines && text.ends_with("\n"); ++i) {
                text.remove_suffix(1);
                is = is || whole.starts_with(text);
            }
            return is;
        };
        const bool is = last_are_text ? fits(part) : whole.starts_with(part);
        return is || (!strict && fits(part.substr(0, part.rfind('<'))));
    };
    EXPECT_TRUE(is_prefix(got.reasoning, answer.reasoning)) << got.reasoning;
    EXPECT_TRUE(is_prefix(got.content, answer.content)) << got.content;
    ASSERT_LE(got.calls.size(), answer.calls.size());
    std::size_t replaced = count(got.reasoning, kReplacement) + count(got.content, kReplacement);
    for (std::size_t i = 0; i < got.calls.size(); ++i) {
        EXPECT_EQ(got.calls[i].name, answer.calls[i].name);
        replaced += count(got.calls[i].arguments, kReplacement);
        EXPECT_TRUE(got.calls[i].complete || i + 1 == got.calls.size());
    }
    EXPECT_LE(replaced, 1u);
}

}  // namespace riptide::testing_stream
