// A validator of JSON Schema, written apart from the grammars that it judges: it looks at values, not at texts.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer/regex.h"

namespace riptide::testing {

/// Judges by the words of 2020-12 that Riptide holds, and `nullable`. Of formats it knows date, ipv4, uuid and those of
/// whole numbers; others are taken on trust. Throws Error for references that go on and on. For one thread.
class SchemaJudge {
  public:
    explicit SchemaJudge(const json::value& root) : root_(root) {}

    bool valid(const json::value& value) const {
        steps_ = depth_ = 0;
        return valid(root_, value);
    }
    bool valid(const json::value& schema, const json::value& value) const {
        if (schema.is_bool()) return schema.get_bool();
        RT_CHECK(++steps_ < 20'000 && depth_ < 200, "the judge: references that go on and on");
        ++depth_;
        const bool out = all_hold(schema.as_object(), value);
        --depth_;
        return out;
    }

    /// As JSON Schema has it: 1 and 1.0 are one value, and the order of members says nothing.
    static bool equal(const json::value& a, const json::value& b) {
        if (a.is_number() && b.is_number()) return number(a) == number(b);
        if (a.is_array() && b.is_array())
            return std::equal(a.get_array().begin(), a.get_array().end(), b.get_array().begin(), b.get_array().end(),
                              [](const json::value& x, const json::value& y) { return equal(x, y); });
        if (!a.is_object() || !b.is_object()) return a == b;
        const json::object& other = b.get_object();
        return a.get_object().size() == other.size() &&
               std::all_of(a.get_object().begin(), a.get_object().end(), [&](const auto& one) {
                   const json::value* found = other.if_contains(one.key());
                   return found != nullptr && equal(one.value(), *found);
               });
    }

  private:
    static const json::value* get(const json::object& s, const char* key) { return s.if_contains(key); }

    /// Holds every int64, uint64 and double.
    static long double number(const json::value& v) { return v.to_number<long double>(); }

    bool all_hold(const json::object& s, const json::value& v) const {
        return reference_holds(s, v) && type_fits(s, v) && choices_fit(s, v) && condition_fits(s, v) &&
               number_fits(s, v) && string_fits(s, v) && array_fits(s, v) && object_fits(s, v);
    }
    bool reference_holds(const json::object& s, const json::value& v) const {
        const json::value* ref = get(s, "$ref");
        if (ref == nullptr) return true;
        const std::string pointer(ref->as_string());
        boost::json::error_code error;
        return valid(*root_.find_pointer(pointer.substr(1), error), v);
    }

    static bool is_type(std::string_view type, const json::value& v) {
        if (type == "object") return v.is_object();
        if (type == "array") return v.is_array();
        if (type == "string") return v.is_string();
        if (type == "boolean") return v.is_bool();
        if (type == "null") return v.is_null();
        if (type == "number") return v.is_number();
        return v.is_int64() || v.is_uint64() || (v.is_double() && std::floor(v.get_double()) == v.get_double());
    }
    static bool type_fits(const json::object& s, const json::value& v) {
        const json::value *type = get(s, "type"), *nullable = get(s, "nullable");
        if (type == nullptr || (v.is_null() && nullable != nullptr && *nullable == json::value(true))) return true;
        if (type->is_string()) return is_type(type->get_string(), v);
        const json::array& list = type->as_array();
        return std::any_of(list.begin(), list.end(), [&](const auto& t) { return is_type(t.as_string(), v); });
    }
    bool choices_fit(const json::object& s, const json::value& v) const {
        if (const auto* one = get(s, "const"); one != nullptr && !equal(*one, v)) return false;
        if (const auto* list = get(s, "enum"))
            if (std::none_of(list->as_array().begin(), list->as_array().end(),
                             [&](const json::value& one) { return equal(one, v); }))
                return false;
        for (const char* word : {"anyOf", "oneOf", "allOf"}) {
            const auto* list = get(s, word);
            if (list == nullptr) continue;
            const auto count = std::count_if(list->as_array().begin(), list->as_array().end(),
                                             [&](const auto& part) { return valid(part, v); });
            const std::string_view name = word;
            const auto all = std::ssize(list->as_array());
            if (name == "anyOf" ? count == 0 : name == "oneOf" ? count != 1 : count != all) return false;
        }
        return true;
    }
    bool condition_fits(const json::object& s, const json::value& v) const {
        const json::value *no = get(s, "not"), *condition = get(s, "if");
        if (no != nullptr && valid(*no, v)) return false;
        if (condition == nullptr) return true;
        const json::value* next = get(s, valid(*condition, v) ? "then" : "else");
        return next == nullptr || valid(*next, v);
    }

    static bool number_fits(const json::object& s, const json::value& v) {
        if (!v.is_number()) return true;
        // As whole numbers if both are such, else as doubles, which are all that many readers have.
        const auto bound = [&](const char* key, auto fits) {
            const json::value* b = get(s, key);
            if (b == nullptr) return true;
            const bool whole = !v.is_double() && !b->is_double();
            return whole ? fits(number(v), number(*b)) : fits(v.to_number<double>(), b->to_number<double>());
        };
        const json::value *unit = get(s, "multipleOf"), *format = get(s, "format");
        return bound("minimum", std::greater_equal<>()) && bound("maximum", std::less_equal<>()) &&
               bound("exclusiveMinimum", std::greater<>()) && bound("exclusiveMaximum", std::less<>()) &&
               (unit == nullptr || is_multiple(v, *unit)) &&
               (format == nullptr || number_format_fits(format->as_string(), v));
    }
    /// A number is its digits, with so many of them behind the point (or zeros before it, if less than none).
    struct Digits {
        std::string all;
        int64_t behind = 0;
    };
    static Digits digits_of(const json::value& v) {
        std::string text = v.is_double() ? fmt::format("{}", v.get_double()) : json::serialize(v);
        Digits out;
        if (const std::size_t e = text.find('e'); e != std::string::npos) {
            out.behind = -std::stoll(text.substr(e + 1));
            text.resize(e);
        }
        if (const std::size_t point = text.find('.'); point != std::string::npos)
            out.behind += static_cast<int64_t>(text.size() - point) - 1;
        std::copy_if(text.begin(), text.end(), std::back_inserter(out.all),
                     [](char c) { return c >= '0' && c <= '9'; });
        for (; out.all.size() > 1 && out.all.back() == '0'; --out.behind) out.all.pop_back();
        return out;
    }
    /// Exact in decimal. A double of more than 15 digits stands for several texts, and is taken on trust.
    static bool is_multiple(const json::value& v, const json::value& unit) {
        const Digits x = digits_of(v), of = digits_of(unit);
        if (v.is_double() && (x.all.size() > 15 || std::abs(v.get_double()) >= 1e15)) return true;
        if (number(v) == 0) return true;
        uint64_t rest = 0;
        const uint64_t divisor = std::stoull(of.all);
        for (const char c : x.all) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % divisor;
        for (int64_t i = x.behind; i < of.behind; ++i) rest = rest * 10 % divisor;
        return x.behind <= of.behind && rest == 0;
    }
    static bool number_format_fits(std::string_view format, const json::value& v) {
        const bool is_signed = format.starts_with("int");
        const std::string width(format.substr(std::min(format.find('t') + 1, format.size())));
        if (format != (is_signed ? "int" : "uint") + width || width.find_first_of("12368") != 0) return true;
        const int bits = std::stoi(width);
        const long double most = std::exp2(static_cast<long double>(is_signed ? bits - 1 : bits));
        return is_type("integer", v) && number(v) < most && number(v) >= (is_signed ? -most : 0);
    }

    static int64_t count_of(const json::object& s, const char* key, int64_t otherwise) {
        const json::value* v = get(s, key);
        return v == nullptr ? otherwise : v->to_number<int64_t>();
    }
    static bool count_fits(const json::object& s, const char* least, const char* most, int64_t count) {
        return count >= count_of(s, least, 0) && count <= count_of(s, most, 1 << 30);
    }
    bool string_fits(const json::object& s, const json::value& v) const {
        if (!v.is_string()) return true;
        const std::string text(v.get_string());
        const auto characters =
            std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
        if (!count_fits(s, "minLength", "maxLength", characters)) return false;
        const json::value *pattern = get(s, "pattern"), *format = get(s, "format");
        return (pattern == nullptr || matches(std::string(pattern->as_string()), text)) &&
               (format == nullptr || string_format_fits(format->as_string(), text));
    }
    /// ECMAScript's pattern in the words of PCRE, whose `$` may stand before a newline at the end, whose `.` is more,
    /// and whose words and digits are Unicode's.
    static std::string read_by_pcre(const std::string& pattern) {
        std::string out;
        bool in_class = false;
        for (std::size_t i = 0; i < pattern.size(); ++i) {
            const std::string one = pattern.substr(i, pattern[i] == '\\' ? 2 : 1);
            i += one.size() - 1;
            if (one == "[" || one == "]") in_class = one == "[";
            if (one == "\\d") out += in_class ? "0-9" : "[0-9]";
            else if (one == "\\b") out += "(?:(?<![A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<=[A-Za-z0-9_])(?![A-Za-z0-9_]))";
            else if (one == "$" && !in_class) out += "(?!\\n|.)";
            else if (one == "." && !in_class) out += "[^\\n\\r\xE2\x80\xA8\xE2\x80\xA9]";
            else out += one;
        }
        return out;
    }
    bool matches(const std::string& pattern, std::string_view text) const {
        auto known = patterns_.find(pattern);
        if (known == patterns_.end()) known = patterns_.emplace(pattern, Regex(read_by_pcre(pattern), "pattern")).first;
        Regex::Scratch scratch;
        Regex::Match match;
        return known->second.find(text, 0, scratch, match);
    }
    static bool string_format_fits(std::string_view format, const std::string& text) {
        if (format == "date") return is_date(text);
        if (format == "ipv4") return is_ipv4(text);
        return format != "uuid" || is_shape(text, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh");
    }
    /// `d`: a digit; `h`: one of base 16; others are themselves.
    static bool is_shape(std::string_view text, std::string_view shape) {
        return std::equal(text.begin(), text.end(), shape.begin(), shape.end(), [](char c, char kind) {
            const auto byte = static_cast<unsigned char>(c);
            return kind == 'd' ? std::isdigit(byte) != 0 : kind == 'h' ? std::isxdigit(byte) != 0 : c == kind;
        });
    }
    static bool is_date(const std::string& text) {
        if (!is_shape(text, "dddd-dd-dd")) return false;
        const int year = std::stoi(text), month = std::stoi(text.substr(5)), day = std::stoi(text.substr(8));
        const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        const int days[] = {31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
    }
    static bool is_ipv4(const std::string& text) {
        int parts = 0;
        for (std::size_t at = 0; at <= text.size(); ++parts) {
            const std::size_t end = std::min(text.find('.', at), text.size());
            const std::string part = text.substr(at, end - at);
            if (part.empty() || part.size() > 3 || !is_shape(part, std::string(part.size(), 'd'))) return false;
            if (std::stoi(part) > 255 || (part.size() > 1 && part[0] == '0')) return false;
            at = end + 1;
        }
        return parts == 4;
    }

    bool array_fits(const json::object& s, const json::value& v) const {
        if (!v.is_array()) return true;
        const json::array& list = v.get_array();
        if (!count_fits(s, "minItems", "maxItems", std::ssize(list))) return false;
        const json::value *first = get(s, "prefixItems"), *items = get(s, "items"), *unique = get(s, "uniqueItems");
        const std::size_t tuple = first == nullptr ? 0 : first->as_array().size();
        for (std::size_t i = 0; i < list.size(); ++i) {
            const json::value* own = i < tuple ? &first->as_array()[i] : items;
            if (own != nullptr && !valid(*own, list[i])) return false;
        }
        for (std::size_t i = 0; unique != nullptr && unique->as_bool() && i < list.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (equal(list[i], list[j])) return false;
        const json::value* contains = get(s, "contains");
        if (contains == nullptr) return true;
        const auto hits =
            std::count_if(list.begin(), list.end(), [&](const json::value& item) { return valid(*contains, item); });
        return hits >= count_of(s, "minContains", 1) && hits <= count_of(s, "maxContains", 1 << 30);
    }

    bool object_fits(const json::object& s, const json::value& v) const {
        if (!v.is_object()) return true;
        const json::object& object = v.get_object();
        const auto has_all = [&](const json::value& names) {
            return std::all_of(names.as_array().begin(), names.as_array().end(),
                               [&](const json::value& name) { return object.contains(name.as_string()); });
        };
        if (!count_fits(s, "minProperties", "maxProperties", std::ssize(object))) return false;
        if (const auto* required = get(s, "required"); required != nullptr && !has_all(*required)) return false;
        if (const auto* needs = get(s, "dependentRequired"))
            for (const auto& [name, names] : needs->as_object())
                if (object.contains(name) && !has_all(names)) return false;
        if (const auto* needs = get(s, "dependentSchemas"))
            for (const auto& [name, schema] : needs->as_object())
                if (object.contains(name) && !valid(schema, v)) return false;
        return std::all_of(object.begin(), object.end(),
                           [&](const auto& member) { return member_fits(s, member.key(), member.value()); });
    }
    bool member_fits(const json::object& s, std::string_view key, const json::value& v) const {
        const json::value *names = get(s, "propertyNames"), *properties = get(s, "properties");
        const json::value *patterns = get(s, "patternProperties"), *additional = get(s, "additionalProperties");
        if (names != nullptr && !valid(*names, json::value(key))) return false;
        bool named = false;
        const auto fits = [&](const json::value& schema) {
            named = true;
            return valid(schema, v);
        };
        if (properties != nullptr)
            if (const auto* own = properties->as_object().if_contains(key); own != nullptr && !fits(*own)) return false;
        if (patterns != nullptr)
            for (const auto& [pattern, schema] : patterns->as_object())
                if (matches(std::string(pattern), key) && !fits(schema)) return false;
        return named || additional == nullptr || valid(*additional, v);
    }

    json::value root_;
    mutable std::map<std::string, Regex> patterns_;
    mutable int steps_ = 0, depth_ = 0;
};

}  // namespace riptide::testing
