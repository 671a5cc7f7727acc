// Generated Qwen answers with what a parser must make of them. For tests only.
#pragma once

#include <array>

#include "base/json.h"
#include "tests/text/stream_answers.h"
#include "text/dialects/qwen.h"

namespace riptide::testing_qwen {

using namespace testing_stream;

class QwenGenerator : private PieceWriter {
  public:
    explicit QwenGenerator(unsigned seed) : PieceWriter(seed, kTags) {}

    Answer answer() {
        a_ = {};
        const int kind = pick(3);  // the prompt ends inside the thinking; the model begins it; there is none
        a_.thinking = kind == 0;
        if (kind == 1) {
            special("<think>");
            plain("\n");
        }
        if (kind < 2) {
            a_.reasoning = prose(true);
            plain(a_.reasoning + newlines());
            special("</think>");
            plain(newlines());
        }
        if (pick(4) != 0) a_.content = prose(true);
        plain(a_.content);
        const int calls = pick(4);
        if (calls > 0 && !a_.content.empty()) plain(newlines());
        for (int i = 0; i < calls; ++i) {
            if (pick(2) == 0) tag_call();
            else object_call();
            plain(newlines());
            if (pick(4) == 0 && i + 1 < calls) {
                const std::string text = prose(false);
                plain(text + newlines());
                a_.content += text;
            }
        }
        special("<|im_end|>");
        return a_;
    }

  private:
    static constexpr std::array<const char*, 5> kTags = {"<think>", "</think>", "<tool_call>", "</tool_call>",
                                                         "<|im_end|>"};

    std::string newlines() { return std::string(static_cast<std::size_t>(pick(3)), '\n'); }

    // What a string may hold; special tags inside it are sometimes single tokens, sometimes spelled.
    std::string string_value() {
        static const char* const parts[] = {"",
                                            "\n",
                                            "<",
                                            "</",
                                            "</para",
                                            "<parameter=k>",
                                            "<function=f>\n",
                                            "</parameter>x",
                                            "</parameter> ;",
                                            "</parameter>\n</function>x",
                                            "</parameter></function> \n;",
                                            "</function>",
                                            "42",
                                            "true",
                                            "\"",
                                            "\\n",
                                            "\\",
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

    Call begin_call() {
        static const char* const names[] = {"edit", "edit", "edit", "ping", "unknown_tool", "mcp.server/tool-1"};
        return {one_of(names), {}};
    }
    /// A key that the call does not have yet, or "".
    std::string next_key(const Call& call, int n) {
        static const char* const keys[] = {"path",  "text",    "mode", "note",      "line", "ratio",
                                           "force", "options", "list", "other key", "ключ"};
        const std::string key = call.name == "edit" ? one_of(keys) : "free" + std::to_string(n);
        return call.arguments.contains(key) ? "" : key;
    }

    void tag_call() {
        Call made = begin_call();
        special("<tool_call>");
        plain(newlines() + "<function=" + made.name + ">" + newlines());
        for (int n = pick(5); n > 0; --n) {
            const std::string key = next_key(made, n);
            if (key.empty()) continue;
            const Argument value = argument(key, string_value());
            made.arguments[key] = value.value;
            plain("<parameter=" + key + ">\n");
            write_value(value.raw);
            plain("\n</parameter>" + newlines());
        }
        plain("</function>" + newlines());
        special("</tool_call>");
        a_.calls.push_back(std::move(made));
    }

    void object_call() {
        static const char* const spaces[] = {"", " ", "\n  "};
        Call made = begin_call();
        const std::string space = one_of(spaces);
        std::string arguments = "{";
        for (int n = pick(5); n > 0; --n) {
            const std::string key = next_key(made, n);
            if (key.empty()) continue;
            const json::value value = pick(2) == 0 ? json::value(string_value()) : argument(key, "x").value;
            arguments += (made.arguments.empty() ? "\"" : "," + space + "\"") + key + "\":" + space + written(value);
            made.arguments[key] = value;
        }
        if (!made.arguments.empty() && pick(6) == 0) arguments += "," + space;
        arguments += "}";
        const std::string name = "\"name\":" + space + "\"" + made.name + "\"";
        std::string all = name + ", \"arguments\": ";
        special("<tool_call>");
        plain(newlines() + "{" + space);
        switch (pick(6)) {
            case 0:  // arguments as a string
                write_value(all + json::serialize(json::value(arguments)));
                break;
            case 1:  // members in another order, and others
                plain("\"id\": [1, {\"a\": \"}\"}], \"parameters\": ");
                write_value(arguments);
                plain("," + space + name + ", \"last\": null");
                break;
            default:
                plain(all);
                write_value(arguments);
        }
        plain(space + "}" + newlines());
        special("</tool_call>");
        a_.calls.push_back(std::move(made));
    }

    /// JSON as models write it: sometimes with bare line breaks, and with Python's words.
    std::string written(const json::value& value) {
        std::string text = json::serialize(value);
        if (value.is_bool() && pick(3) == 0) return value.get_bool() ? "True" : "False";
        if (value.is_null() && pick(3) == 0) return "None";
        if (!value.is_string() || pick(3) != 0) return text;
        for (std::size_t at = 0; (at = text.find("\\", at)) != std::string::npos;) {
            if (text[at + 1] == 'n') text.replace(at++, 2, "\n");
            else at += 2;
        }
        return text;
    }
};

inline ParserOptions qwen_options(bool thinking, bool strict) {
    ParserOptions options;
    options.thinking = thinking;
    options.strict_specials = strict;
    options.tools = ToolSchemas(json::parse(kTools).as_array());
    return options;
}

}  // namespace riptide::testing_qwen
