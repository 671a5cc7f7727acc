// Tools, and calls of them as a model's template writes them, out of a fuzzer's choices.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/dialects/dialect.h"
#include "text/dialects/response_form.h"
#include "text/dialects/section_parser.h"
#include "text/json/json_grammar.h"

namespace riptide::fuzz {

struct WrittenCall {
    std::string name;
    json::object arguments;
};

/// An answer that calls tools.
struct WrittenAnswer {
    const Dialect* dialect = nullptr;
    MarkerSpellings markers;
    AnswerForm form;
    std::string input;           // as stream_laws.h has it: byte 0xF8 + k is marker k
    bool by_grammar = true;      // it is written as the grammar of the answer has it
    std::string_view end, next;  // a tag that ends a value, and what then shows that it did; none in JSON
    std::vector<WrittenCall> calls;
};

class CallMaker {
  public:
    explicit CallMaker(ByteSource& bytes) : bytes_(bytes) {}

    WrittenAnswer answer() {
        out_.dialect = &dialects()[static_cast<std::size_t>(bytes_.next(3))];
        laguna_ = out_.dialect->name == "laguna";
        in_json_ = out_.dialect->name == "qwen-json";
        out_.markers = markers_with(out_.dialect->stops[0]);
        out_.form.newline_framing = bytes_.next(2) == 0;
        newline_ = !laguna_ || out_.form.newline_framing ? "\n" : "";
        if (!in_json_) out_.end = laguna_ ? "</arg_value>" : "</parameter>";
        if (!in_json_) out_.next = laguna_ ? "<arg_key>" : "<parameter=";
        static const char* const names[] = {"edit", "ping", "mcp.server/tool-1"};
        for (int i = 0, n = bytes_.next(3); i <= n; ++i) out_.form.tools.push_back(tool(names[i]));
        if (bytes_.next(2) == 0) out_.form.choice.kind = ToolChoice::Kind::required;
        else if (bytes_.next(2) == 1) out_.input = "Hi.";
        if (laguna_) out_.input += newline_;
        for (int i = 0, n = bytes_.next(2); i <= n; ++i) {
            if (i > 0) out_.input += newline_;
            call(bytes_.next(static_cast<int>(tools_.size())));
        }
        if (laguna_) out_.input += newline_;
        out_.input += marker(Marker::end_turn);
        return std::move(out_);
    }

  private:
    struct Parameter {
        std::string name, kind;
        bool must = false;
    };

    static char marker(Marker which) { return static_cast<char>(0xF8 + static_cast<int>(which)); }

    json::value tool(const char* name) {
        static const char* const keys[] = {"path", "text", "other key", "ключ", "q\"uote", "a-b", "n", "list"};
        json::object properties;
        json::array required;
        std::vector<Parameter>& parameters = tools_.emplace_back();
        for (int n = bytes_.next(5); n > 0; --n) {
            Parameter one{bytes_.one_of(keys), kind(), bytes_.next(2) == 0};
            if (properties.contains(one.name)) continue;
            properties[one.name] = json::parse(one.kind);
            if (one.must) required.push_back(json::string(one.name));
            parameters.push_back(std::move(one));
        }
        json::object schema = {{"type", "object"},
                               {"properties", properties},
                               {"required", required},
                               {"additionalProperties", false},
                               {"$defs", {{"text", {{"type", "string"}}}}}};
        const json::object function = {{"name", name}, {"parameters", std::move(schema)}, {"strict", true}};
        return {{"type", "function"}, {"function", function}};
    }

    static constexpr const char* kText = R"({"type": "string"})";
    static constexpr const char* kReference = R"({"$ref": "#/$defs/text"})";
    static constexpr const char* kNullable = R"({"type": ["string", "null"]})";
    static constexpr const char* kEither = R"({"anyOf": [{"type": "string"}, {"type": "null"}]})";
    static constexpr const char* kWord = R"({"enum": ["a", "b c", "<x>", "null"]})";
    static constexpr const char* kPattern = R"({"type": "string", "pattern": "^[a-z ]*$", "maxLength": 9})";
    static constexpr const char* kBoolean = R"({"type": "boolean"})";
    static constexpr const char* kInteger = R"({"type": "integer", "minimum": -10})";
    static constexpr const char* kNumber = R"({"type": "number"})";
    static constexpr const char* kNull = R"({"type": "null"})";
    static constexpr const char* kList = R"({"type": "array", "items": {"type": "string"}})";
    static constexpr const char* kObject =
        R"({"type": "object", "additionalProperties": {"type": ["string", "null"]}})";
    static constexpr const char* kTextOrNumber = R"({"type": ["string", "number"]})";
    static constexpr const char* kAny = "{}";
    std::string kind() {
        static const char* const list[] = {kText,   kReference, kNullable, kEither, kWord,   kPattern, kBoolean,
                                           kNumber, kInteger,   kNull,     kList,   kObject, kAny,     kTextOrNumber};
        return bytes_.one_of(list);
    }

    json::value value(const std::string& kind) {
        static const char* const words[] = {"a", "b c", "<x>", "null"};
        static const char* const plain[] = {"", "abc", " a  b ", "zzzzzzzzz"};
        static const json::value numbers[] = {0, -7, 42, 3.5, -0.25, 1e3, 123456789012345};
        static const json::value whole[] = {0, -7, 42, 123456789012345};
        if (kind == kText || kind == kReference) return json::value(text());
        if (kind == kNullable || kind == kEither)
            return bytes_.next(3) == 0 ? json::value() : json::value(text() + "!");
        if (kind == kWord) return json::value(bytes_.one_of(words));
        if (kind == kPattern) return json::value(bytes_.one_of(plain));
        if (kind == kBoolean) return bytes_.next(2) == 0;
        if (kind == kInteger) return bytes_.one_of(whole);
        if (kind == kNumber) return bytes_.one_of(numbers);
        if (kind == kNull) return nullptr;
        if (kind == kList) return list();
        if (kind == kObject) return json::object{{"k", text()}, {text(), nullptr}};
        if (kind == kTextOrNumber) return bytes_.next(2) == 0 ? bytes_.one_of(numbers) : json::value(text());
        return bytes_.next(2) == 0 ? json::value(list()) : json::value(json::object{{"k", {list(), true, 1.5}}});
    }
    json::array list() {
        json::array out;
        for (int n = bytes_.next(3); n > 0; --n) out.push_back(json::string(text()));
        return out;
    }
    /// What reads like markup, but behind which nothing comes that would make it such.
    std::string text() {
        static const char* const parts[] = {"",
                                            "a",
                                            "\n",
                                            "</",
                                            "<",
                                            "</para",
                                            "<parameter=k>",
                                            "<function=f>\n",
                                            "</parameter>x",
                                            "</parameter> ;",
                                            "</parameter>\n</function>x",
                                            "</function>",
                                            "</arg",
                                            "</arg_key>",
                                            "<arg_key>k",
                                            "</arg_value>x",
                                            "</arg_value> ;",
                                            "42",
                                            "true",
                                            "\"",
                                            "\\n",
                                            "\\",
                                            "é",
                                            "🦙",
                                            "\x01",
                                            "\r\n",
                                            "\t ",
                                            "</tool_call>y",
                                            "</tool_call>\n;",
                                            "<tool_call>",
                                            "<think>",
                                            "</think>z",
                                            "{\"a\": \"}\""};
        std::string out;
        for (int n = bytes_.next(4); n > 0; --n) out += bytes_.one_of(parts);
        return out;
    }

    void call(int which) {
        const std::vector<Parameter>& parameters = tools_[static_cast<std::size_t>(which)];
        const json::object& function = out_.form.tools[static_cast<std::size_t>(which)].at("function").get_object();
        WrittenCall made{std::string(function.at("name").get_string()), {}};
        std::string arguments;
        for (const Parameter& one : parameters) {
            if (!one.must && bytes_.next(3) == 0) continue;
            const json::value& given = made.arguments[one.name] = value(one.kind);
            if (!in_json_) arguments += argument(one, given);
        }
        out_.input += marker(Marker::tool_call);
        if (in_json_) {
            out_.input += "\n{\"name\": " + json_text(json::value(made.name)) + ", \"arguments\": ";
            write(json_text(made.arguments));
            out_.input += "}\n";
        } else if (laguna_) {
            out_.input += made.name + newline_ + arguments;
        } else {
            out_.input += "\n<function=" + made.name + ">\n" + arguments + "</function>\n";
        }
        out_.input += marker(Marker::end_tool_call);
        out_.calls.push_back(std::move(made));
    }

    std::string argument(const Parameter& one, const json::value& given) {
        const bool raw = one.kind == kText || one.kind == kReference || one.kind == kNullable || one.kind == kEither ||
                         one.kind == kWord || one.kind == kPattern;
        std::string value = raw && given.is_string() ? std::string(given.get_string()) : json_text(given);
        if (!laguna_ && one.kind == kBoolean) value = given.get_bool() ? "True" : "False";
        if (raw && value.find(out_.end) != std::string::npos) out_.by_grammar = false;
        value = with_markers(value);
        if (laguna_)
            return "<arg_key>" + one.name + "</arg_key>" + newline_ + "<arg_value>" + value + "</arg_value>" + newline_;
        return "<parameter=" + one.name + ">\n" + value + "\n</parameter>\n";
    }
    void write(const std::string& text) { out_.input += with_markers(text); }

    /// Tags inside a value that are single tokens elsewhere are so here too, sometimes.
    std::string with_markers(std::string text) {
        for (int k = 0; k < 4; ++k) {
            const std::string_view tag = out_.markers[static_cast<std::size_t>(k)];
            for (std::size_t at = 0; (at = text.find(tag, at)) != std::string::npos; ++at) {
                if (!bytes_.once_in(4)) continue;
                text.replace(at, tag.size(), 1, marker(static_cast<Marker>(k)));
                out_.by_grammar = false;
            }
        }
        return text;
    }

    ByteSource& bytes_;
    WrittenAnswer out_;
    std::vector<std::vector<Parameter>> tools_;
    std::string newline_;
    bool laguna_ = false, in_json_ = false;
};

}  // namespace riptide::fuzz
