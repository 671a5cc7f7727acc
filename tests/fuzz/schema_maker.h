// JSON Schemas and values out of a fuzzer's choices.
#pragma once

#include <string>

#include "base/json.h"
#include "tests/fuzz/fuzz_input.h"

namespace riptide::fuzz {

/// Values out of few names, texts and numbers, so that schemas and values often meet.
class ValueMaker {
  public:
    explicit ValueMaker(ByteSource& bytes) : bytes_(bytes) {}

    json::value value(int depth = 0) {
        const int kind = bytes_.next(depth < 3 ? 8 : 6);
        if (kind == 0) return nullptr;
        if (kind == 1) return bytes_.next(2) == 0;
        if (kind < 4) return number();
        if (kind < 6) return json::value(text());
        if (kind == 6) {
            json::array out;
            for (int n = bytes_.next(4); n > 0; --n) out.push_back(value(depth + 1));
            return out;
        }
        json::object out;
        for (int n = bytes_.next(4); n > 0; --n) out[name()] = value(depth + 1);
        return out;
    }
    json::value number() {
        static const json::value list[] = {
            0,   1,   2,   3,   4,    5,   10,  -1,           -2,  127,  128,   255,   0.5, -0.5, 0.25,
            1.5, 2.5, 0.1, 0.3, 0.75, 1.0, 3.0, 123456789012, 300, -129, 32768, 0.001, 7,   12,   9007199254740993};
        return bytes_.one_of(list);
    }
    std::string text() {
        static const char* const list[] = {
            "",           "a",         "b",         "ab",     "ba", "abab",
            "aab",        "ä",         "a🦙b",    "\"\\\n", "12", "2024-02-29",
            "2023-02-29", "127.0.0.1", "1.2.3.256", "a b",    "B",  "01234567-89ab-cdef-0123-456789ABCDEF",
            "aaaaaaa"};
        return bytes_.one_of(list);
    }
    std::string name() {
        static const char* const list[] = {"a", "b", "ab", "c", "ä", ""};
        return bytes_.one_of(list);
    }

  private:
    ByteSource& bytes_;
};

/// Schemas of all words that can be held, in any mixture: of most mixtures some word cannot be held beside another.
class SchemaMaker {
  public:
    explicit SchemaMaker(ByteSource& bytes) : bytes_(bytes), values_(bytes) {}

    /// A whole document; its references lead into it.
    json::value document() {
        json::value root = schema(0);
        if (!refers_ || !root.is_object()) return root;
        json::object parts;
        for (const char* name : {"x", "y"}) parts[name] = schema(2);
        root.get_object()["$defs"] = std::move(parts);
        return root;
    }

  private:
    json::value schema(int depth) {
        if (++parts_ > 40) return true;
        if (bytes_.once_in(16)) return bytes_.next(2) == 0;
        json::object out;
        const int type = bytes_.next(9);
        add_type(out, type);
        if (type < 7) add_words(out, type, depth);
        else
            for (int n = bytes_.next(3); n >= 0; --n) add_words(out, bytes_.next(7), depth);
        if (bytes_.once_in(6)) out["const"] = values_.value(1);
        if (bytes_.once_in(5)) out["enum"] = list(5, [&] { return values_.value(1); });
        if (depth < 4 && bytes_.once_in(3)) add_joined(out, depth);
        return out;
    }

    void add_type(json::object& out, int type) {
        static const char* const types[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
        if (type > 6) return;
        out["type"] = types[type];
        if (bytes_.once_in(6)) out["type"] = json::array{types[type], types[(type + 1 + bytes_.next(6)) % 7]};
        if (bytes_.once_in(10)) out["nullable"] = true;
    }
    void add_words(json::object& out, int type, int depth) {
        if (type == 2 || type == 3) add_number(out);
        if (type == 4) add_string(out);
        if (type == 5) add_array(out, depth);
        if (type == 6) add_object(out, depth);
    }
    bool chosen() { return bytes_.next(3) == 1; }

    /// None whose neighbours among the doubles are too much for the reader of JSON that the judge has.
    json::value bound() {
        static const json::value far[] = {9223372036854775807, 18446744073709551615U, -9223372036854775807 - 1, 1e20,
                                          123456789.125};
        return bytes_.once_in(4) ? bytes_.one_of(far) : values_.number();
    }
    void add_number(json::object& out) {
        for (const char* word : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
            if (bytes_.once_in(4)) out[word] = bound();
        static const json::value units[] = {1, 2, 3, 0.5, 0.1, 0.25, 0.3, 10};
        static const char* const formats[] = {"int8", "uint8", "int16", "int32", "uint32", "int64"};
        if (bytes_.once_in(4)) out["multipleOf"] = bytes_.one_of(units);
        if (bytes_.once_in(6)) out["format"] = bytes_.one_of(formats);
    }
    std::string pattern() {
        static const char* const list[] = {"^a",      "b$",   "^ab?$",  "a|b",    "^[ab]+$", ".",      "^$",
                                           "^(ab)*$", "[^a]", "^a.*b$", "a{2,3}", "^\\d+$",  "^(?!a)", "\\bb"};
        return bytes_.one_of(list);
    }
    void add_string(json::object& out) {
        for (const char* word : {"minLength", "maxLength"})
            if (bytes_.once_in(4)) out[word] = bytes_.next(7);
        static const char* const formats[] = {"date", "ipv4", "uuid", "nonsense"};
        if (chosen()) out["pattern"] = pattern();
        if (bytes_.once_in(6)) out["format"] = bytes_.one_of(formats);
    }
    void add_array(json::object& out, int depth) {
        if (bytes_.once_in(4)) out["prefixItems"] = list(3, [&] { return schema(depth + 1); });
        if (depth < 4 && chosen()) out["items"] = schema(depth + 1);
        if (depth < 4 && bytes_.once_in(4)) out["contains"] = schema(depth + 1);
        for (const char* word : {"minItems", "maxItems"})
            if (bytes_.once_in(4)) out[word] = bytes_.next(4);
        for (const char* word : {"minContains", "maxContains"})
            if (bytes_.once_in(8)) out[word] = bytes_.next(3);
        if (bytes_.once_in(6)) out["uniqueItems"] = true;
    }
    void add_object(json::object& out, int depth) {
        const auto inner = [&] { return depth < 4 ? schema(depth + 1) : json::value(true); };
        const auto members = [&](auto key, auto value) {
            json::object made;
            for (int n = bytes_.next(3); n >= 0; --n) {
                const std::string name = key();
                made[name] = value();
            }
            return made;
        };
        const auto name = [&] { return values_.name(); };
        const auto names = [&] { return list(3, [&] { return json::value(values_.name()); }); };
        if (chosen()) out["properties"] = members(name, inner);
        if (chosen()) out["required"] = names();
        if (chosen()) out["additionalProperties"] = bytes_.next(2) == 0 ? json::value(false) : inner();
        if (bytes_.once_in(6)) out["patternProperties"] = members([&] { return pattern(); }, inner);
        if (bytes_.once_in(8)) out["propertyNames"] = inner();
        if (bytes_.once_in(8)) out["dependentRequired"] = members(name, names);
        if (bytes_.once_in(8)) out["dependentSchemas"] = members(name, inner);
        for (const char* word : {"minProperties", "maxProperties"})
            if (bytes_.once_in(6)) out[word] = bytes_.next(4);
    }
    void add_joined(json::object& out, int depth) {
        const auto inner = [&] { return schema(depth + 1); };
        static const char* const words[] = {"anyOf", "oneOf", "allOf", "not", "if", "$ref"};
        const std::string word = bytes_.one_of(words);
        if (word == "$ref") {
            static const char* const targets[] = {"#/$defs/x", "#/$defs/y", "#"};
            out[word] = bytes_.one_of(targets);
            refers_ = true;
        } else if (word == "not") {
            out[word] = inner();
        } else if (word == "if") {
            out[word] = inner();
            if (bytes_.next(3) != 1) out["then"] = inner();
            if (bytes_.next(3) != 1) out["else"] = inner();
        } else {
            out[word] = list(3, inner);
        }
    }
    /// One to `most` of them.
    template <class Make>
    json::array list(int most, Make make) {
        json::array out;
        for (int n = bytes_.next(most); n >= 0; --n) out.push_back(make());
        return out;
    }

    ByteSource& bytes_;
    ValueMaker values_;
    int parts_ = 0;
    bool refers_ = false;
};

}  // namespace riptide::fuzz
