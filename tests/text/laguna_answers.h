// Generated Laguna answers with what a parser must make of them, and a collector for its events. For tests only.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/dialect_laguna.h"

namespace riptide::testing_laguna {

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

class Generator {
  public:
    explicit Generator(unsigned seed) : random_(seed) {}

    Answer answer() {
        a_ = {};
        a_.thinking = pick(2) == 0;
        a_.newlines = pick(2) == 0;
        const std::string nl = a_.newlines ? "\n" : "";
        if (a_.thinking) {
            a_.reasoning = prose(true);
            plain(nl + a_.reasoning + nl);
            special("</think>");
        }
        plain(nl);
        if (pick(4) != 0) a_.content = prose(true);
        plain(a_.content);
        if (!a_.content.empty()) plain(nl);
        const int calls = pick(4);
        for (int i = 0; i < calls; ++i) {
            call(nl);
            plain(nl);
            if (pick(4) == 0 && i + 1 < calls) between(nl);
        }
        special("</assistant>");
        return a_;
    }

  private:
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
        static const char* const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "</assistant>"};
        std::string out = "w";
        for (int n = pick(6); n > 0; --n) {
            if (markers && pick(12) == 0) {
                out += one_of(tags);
                a_.spells_markers = true;
            }
            out += std::string(" ") + one_of(words);
        }
        return out + ".";
    }

    void between(const std::string& nl) {
        const std::string text = prose(false);
        plain(text + nl);
        a_.content += text;
    }

    // A raw string value; special tags inside it are sometimes single tokens, sometimes spelled.
    std::string string_value() {
        static const char* const parts[] = {"",
                                            "\n",
                                            "<",
                                            "</",
                                            "</arg",
                                            "</arg_key>",
                                            "<arg_key>k",
                                            "</arg_value>x",
                                            "</arg_value> ;",
                                            "42",
                                            "true",
                                            "\"",
                                            "\\n",
                                            "é",
                                            "🦙",
                                            "日",
                                            "\x01",
                                            "\t",
                                            "\r\n",
                                            " ",
                                            "</tool_call>y",
                                            "</tool_call>\n;",
                                            "<tool_call>",
                                            "<think>",
                                            "</think>z",
                                            "if (a < b) {\n\treturn \"<\";\n}\n",
                                            "\xE2\x80\xA8"};
        std::string out;
        for (int n = pick(5); n > 0; --n) out += one_of(parts);
        return out;
    }

    void write_value(const std::string& value) {
        static const std::string tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
        std::string run;
        for (std::size_t at = 0; at < value.size();) {
            bool found = false;
            for (const std::string& tag : tags) {
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
    Argument argument(const std::string& key) {
        if (key == "path" || key == "text" || key == "mode") {
            const std::string s = string_value();
            return {s, json::value(s)};
        }
        if (key == "note") {
            const std::string s = string_value() + "!";
            return pick(2) == 0 ? Argument{"null", nullptr} : Argument{s, json::value(s)};
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

    void call(const std::string& nl) {
        static const char* const names[] = {"edit", "edit", "edit", "ping", "unknown_tool", "mcp.server/tool-1"};
        static const char* const keys[] = {"path",  "text",    "mode", "note",      "line", "ratio",
                                           "force", "options", "list", "other key", "ключ"};
        Call made;
        made.name = one_of(names);
        special("<tool_call>");
        plain(made.name + nl);
        for (int n = pick(5); n > 0; --n) {
            std::string key = one_of(keys);
            if (made.name != "edit") key = "free" + std::to_string(n);
            if (made.arguments.contains(key)) continue;
            const Argument value = argument(key);
            made.arguments[key] = value.value;
            plain("<arg_key>" + key + "</arg_key>" + nl + "<arg_value>");
            write_value(value.raw);
            plain("</arg_value>" + nl);
        }
        special("</tool_call>");
        a_.calls.push_back(std::move(made));
    }

    std::mt19937 random_;
    Answer a_;
};

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

inline LagunaParserOptions options_for(bool thinking, bool newlines, bool strict) {
    LagunaParserOptions options;
    options.thinking = thinking;
    options.newline_framing = newlines;
    options.strict_specials = strict;
    options.tools = ToolSchemas(json::parse(kTools).as_array());
    return options;
}

}  // namespace riptide::testing_laguna
