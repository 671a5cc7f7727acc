#include "text/dialects/json_call.h"

#include <cctype>
#include <utility>

#include "base/json.h"
#include "text/json/tool_arguments.h"

namespace riptide {

namespace {

constexpr std::size_t kDeepestValue = 101;  // brackets, the outermost included

bool is_scalar_byte(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '+' || c == '.';
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/// `text`: the inside of a JSON string.
std::string decoded(const std::string& text) { return std::string(json::parse("\"" + text + "\"").as_string()); }

}  // namespace

std::size_t JsonCall::push(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (!step(text[i])) {
            state_ = State::broken;
            return i;
        }
        if (state_ == State::closed) return i + 1;
    }
    if (in_string() && !is_key_ && inside_arguments()) out_ += std::exchange(text_, {});
    return text.size();
}

std::string JsonCall::take() { return std::exchange(out_, {}); }

std::string JsonCall::end() { return has_arguments_ ? take() : "{}"; }

bool JsonCall::step(char c) {
    if (expect_ == Expect::string) return string_byte(c);
    if (expect_ == Expect::scalar) {
        if (is_scalar_byte(c)) {
            scalar_ += c;
            return true;
        }
        if (!end_scalar()) return false;
    }
    return structure(c);
}

bool JsonCall::structure(char c) {
    if (is_space(c)) {
        if (inside_arguments()) pending_ += c;
        return true;
    }
    switch (expect_) {
        case Expect::value:
        case Expect::item_or_end:
            return c == ']' ? close(c) : begin_value(c);
        case Expect::key:
            if (c == '}') return close(c);
            is_key_ = true;
            expect_ = Expect::string;
            return c == '"';
        case Expect::colon:
            if (inside_arguments()) pending_ += c;
            expect_ = Expect::value;
            return c == ':';
        case Expect::comma:
            if (c != ',') return close(c);
            if (inside_arguments()) pending_ += c;
            expect_ = stack_.back() == '{' ? Expect::key : Expect::item_or_end;
            return true;
        case Expect::string:
        case Expect::scalar:
            break;
    }
    return false;
}

bool JsonCall::begin_value(char c) {
    if (c == '{' || c == '[') return open(c);
    if (stack_.empty()) return false;
    if (c == '"') {
        if (inside_arguments()) give("\"");
        is_key_ = false;
        expect_ = Expect::string;
        return true;
    }
    scalar_ = c;
    expect_ = Expect::scalar;
    return is_scalar_byte(c);
}

bool JsonCall::open(char c) {
    const bool outermost = stack_.empty(), arguments = stack_.size() == 1 && role_ == Role::arguments;
    if (stack_.size() == kDeepestValue || ((outermost || arguments) && c != '{')) return false;
    stack_ += c;
    expect_ = c == '{' ? Expect::key : Expect::item_or_end;
    has_arguments_ = has_arguments_ || arguments;
    if (inside_arguments()) give(std::string_view(&c, 1));
    return true;
}

bool JsonCall::close(char c) {
    const bool in_object = !stack_.empty() && stack_.back() == '{';
    if (stack_.empty() || c != (in_object ? '}' : ']') || expect_ == Expect::value) return false;
    if (inside_arguments()) {
        if (pending_.find(',') != std::string::npos) pending_.clear();
        give(std::string_view(&c, 1));
    }
    stack_.pop_back();
    expect_ = Expect::comma;
    if (stack_.empty()) state_ = State::closed;
    if (stack_.size() == 1 && role_ == Role::arguments) {
        arguments_closed_ = true;
        role_ = Role::other;
    }
    return true;
}

bool JsonCall::string_byte(char c) {
    if (escape_.empty()) return plain_byte(c);
    if (escape_.size() == 1 && c == 'u') {
        escape_ += c;
    } else if (escape_.size() == 1 && std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
        end_surrogate();
        text_ += std::exchange(escape_, {}) + c;
    } else if (escape_.size() > 1 && std::isxdigit(static_cast<unsigned char>(c)) != 0) {
        escape_ += c;
        if (escape_.size() == 6) escaped_code_unit();
    } else {  // it escapes nothing
        end_surrogate();
        text_ += "\\" + std::exchange(escape_, {});
        return plain_byte(c);
    }
    return true;
}

bool JsonCall::plain_byte(char c) {
    if (c == '\\') {
        escape_ = c;
        return true;
    }
    end_surrogate();
    if (c == '"') return end_string();
    append_json_escaped(std::string_view(&c, 1), text_);
    return true;
}

void JsonCall::escaped_code_unit() {
    const unsigned long unit = std::stoul(escape_.substr(2), nullptr, 16);
    const std::string written = std::exchange(escape_, {});
    const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    if (low) {
        text_ += surrogate_.empty() ? "\\ufffd" : std::exchange(surrogate_, {}) + written;
        return;
    }
    end_surrogate();
    (high ? surrogate_ : text_) += written;
}

void JsonCall::end_surrogate() {
    if (!surrogate_.empty()) text_ += "\\ufffd";
    surrogate_.clear();
}

bool JsonCall::end_string() {
    const std::string text = std::exchange(text_, {});
    expect_ = is_key_ ? Expect::colon : Expect::comma;
    if (inside_arguments()) {
        if (is_key_) pending_ += "\"" + text + "\"";
        else out_ += text + "\"";
        return true;
    }
    if (stack_.size() > 1) return true;
    if (is_key_) {
        choose_role(decoded(text));
        return true;
    }
    const Role role = std::exchange(role_, Role::other);
    if (role == Role::name) name_ = decoded(text);
    if (role == Role::arguments) return whole_arguments(decoded(text));
    return true;
}

bool JsonCall::end_scalar() {
    const std::string value = json_of_raw(std::exchange(scalar_, {}), ToolSchemas::Type::any);
    expect_ = Expect::comma;
    if (value.starts_with('"')) return false;  // neither a number nor a word
    if (inside_arguments()) give(value);
    if (stack_.size() > 1) return true;
    const Role role = std::exchange(role_, Role::other);
    if (role == Role::arguments) return value == "null" && whole_arguments("");
    return role != Role::name;
}

// Arguments that are not written as an object.
bool JsonCall::whole_arguments(const std::string& text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) {
        out_ += "{}";
    } else {
        JsonCall inner;
        inner.push("{\"arguments\": ");
        if (text[first] == '{') inner.push(text.substr(first));
        if (!inner.arguments_closed_ || inner.state_ != State::open) return false;
        out_ += inner.take();
    }
    has_arguments_ = arguments_closed_ = true;
    return true;
}

void JsonCall::choose_role(const std::string& key) {
    role_ = Role::other;
    if (key == "name" && !std::exchange(has_name_, true)) role_ = Role::name;
    if ((key == "arguments" || key == "parameters") && !has_arguments_) role_ = Role::arguments;
}

// The beginning or the whole of a value, and what stands before it.
void JsonCall::give(std::string_view text) {
    out_ += pending_;
    out_ += text;
    pending_.clear();
}

}  // namespace riptide
