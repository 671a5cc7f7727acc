// Generated Laguna answers with what a parser must make of them, and a collector for its events. For tests only.
#pragma once

#include <array>

#include "base/json.h"
#include "tests/text/stream_answers.h"
#include "text/dialects/laguna.h"

namespace riptide::testing_laguna {

using namespace testing_stream;

class LagunaGenerator : private PieceWriter {
  public:
    explicit LagunaGenerator(unsigned seed) : PieceWriter(seed, kTags) {}

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
    static constexpr std::array<const char*, 5> kTags = {"<think>", "</think>", "<tool_call>", "</tool_call>",
                                                         "</assistant>"};

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
            const Argument value = argument(key, string_value());
            made.arguments[key] = value.value;
            plain("<arg_key>" + key + "</arg_key>" + nl + "<arg_value>");
            write_value(value.raw);
            plain("</arg_value>" + nl);
        }
        special("</tool_call>");
        a_.calls.push_back(std::move(made));
    }
};

inline ParserOptions laguna_options(bool thinking, bool newlines, bool strict) {
    ParserOptions options;
    options.thinking = thinking;
    options.newline_framing = newlines;
    options.strict_specials = strict;
    options.tools = ToolSchemas(json::parse(kTools).as_array());
    return options;
}

}  // namespace riptide::testing_laguna
