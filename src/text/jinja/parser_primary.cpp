// The innermost expressions: constants, names, brackets, and what may follow them: subscripts, calls, filters, tests.
#include <charconv>
#include <cmath>

#include "text/jinja/parser.h"

namespace riptide::jinja {

Expr* Parser::constant(Value value, int line) {
    Expr* node = make(Op::constant, line);
    node->value = std::move(value);
    return node;
}

Expr* Parser::primary() {
    const Token& token = now();
    switch (token.type) {
        case Tok::name:
            return name_or_constant();
        case Tok::integer:
        case Tok::floating:
            return number();
        case Tok::string: {
            std::string text;
            while (now().type == Tok::string) text += tokens_[at_++].text;
            return constant(program_.heap.text(text, true), token.line);
        }
        default:
            break;
    }
    if (is_op("[")) return list();
    if (is_op("{")) return dict();
    if (!is_op("(")) fail_expected("an expression");
    ++at_;
    Expr* inner = tuple(true, true);
    expect_op(")");
    return inner;
}

void Parser::note_macro_use(const std::string& name) {
    for (Macro* macro : macros_) {
        macro->uses_caller |= name == "caller";
        macro->uses_varargs |= name == "varargs";
        macro->uses_kwargs |= name == "kwargs";
    }
}

Expr* Parser::name_or_constant() {
    const Token& token = tokens_[at_++];
    if (token.text == "true" || token.text == "True") return constant(Value::boolean(true), token.line);
    if (token.text == "false" || token.text == "False") return constant(Value::boolean(false), token.line);
    if (token.text == "none" || token.text == "None") return constant(Value::none(), token.line);
    Expr* node = make(Op::name, token.line);
    node->text = token.text;
    node->symbol = program_.symbol(token.text);
    note_macro_use(token.text);
    return node;
}

Expr* Parser::number() {
    const Token& token = tokens_[at_++];
    std::string digits;
    for (const char c : token.text) {
        if (c != '_') digits += c;
    }
    const char* begin = digits.data();
    const char* end = begin + digits.size();
    if (token.type == Tok::floating) {
        double value = 0;
        const auto result = std::from_chars(begin, end, value);
        if (result.ec == std::errc::result_out_of_range) value = digits.find("e-") != std::string::npos ? 0 : HUGE_VAL;
        return constant(Value::floating(value), token.line);
    }
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0' && digits[1] > '9') {
        base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
        begin += 2;
    }
    int64_t value = 0;
    const auto result = std::from_chars(begin, end, value, base);
    if (result.ec != std::errc() || result.ptr != end)
        fail_at(token, fmt::format("the number {} is beyond 64 bits", token.text.substr(0, 40)));
    return constant(Value::integer(value), token.line);
}

Expr* Parser::list() {
    Expr* node = make(Op::list, now().line);
    ++at_;
    while (!is_op("]")) {
        if (!node->parts.empty()) {
            expect_op(",");
            if (is_op("]")) break;
        }
        node->parts.push_back(expression());
    }
    ++at_;
    return node;
}

Expr* Parser::dict() {
    Expr* node = make(Op::dict, now().line);
    ++at_;
    while (!is_op("}")) {
        if (!node->parts.empty()) {
            expect_op(",");
            if (is_op("}")) break;
        }
        node->parts.push_back(expression());
        expect_op(":");
        node->parts.push_back(expression());
    }
    ++at_;
    return node;
}

Expr* Parser::postfix(Expr* node) {
    while (true) {
        if (is_op(".") || is_op("[")) {
            node = subscript(node);
        } else if (is_op("(")) {
            Expr* call = make(Op::call, now().line);
            call->parts = {node};
            call_arguments(*call);
            node = call;
        } else {
            return node;
        }
    }
}

Expr* Parser::filters_and_tests(Expr* node) {
    while (true) {
        if (is_op("|")) {
            node = filter_chain(node, false);
        } else if (is_name("is")) {
            node = test(node);
        } else if (is_op("(")) {
            Expr* call = make(Op::call, now().line);
            call->parts = {node};
            call_arguments(*call);
            node = call;
        } else {
            return node;
        }
    }
}

Expr* Parser::subscript(Expr* node) {
    const Token& token = tokens_[at_++];
    if (token.text == ".") {
        if (now().type == Tok::name) {
            Expr* out = make(Op::attribute, token.line);
            out->parts = {node};
            out->text = tokens_[at_++].text;
            return out;
        }
        if (now().type != Tok::integer) fail_expected("a name or number after '.'");
        Expr* index = number();
        Expr* out = make(Op::item, token.line);
        out->parts = {node, index};
        return out;
    }
    std::vector<Expr*> keys;
    while (!is_op("]")) {
        if (!keys.empty()) expect_op(",");
        keys.push_back(subscribed());
    }
    ++at_;
    Expr* key = nullptr;
    if (keys.size() == 1) {
        key = keys[0];
    } else {
        for (const Expr* part : keys) {
            if (part->op == Op::slice) fail_at(token, "slices cannot stand in a tuple");
        }
        key = make(Op::tuple, token.line);
        key->parts = std::move(keys);
    }
    Expr* out = make(Op::item, token.line);
    out->parts = {node, key};
    return out;
}

/// What stands between brackets: an expression or start:stop:step.
Expr* Parser::subscribed() {
    const int line = now().line;
    Expr* start = is_op(":") ? nullptr : expression();
    if (!skip_op(":")) return start;
    const auto bound = [&]() -> Expr* { return is_op(":") || is_op("]") || is_op(",") ? nullptr : expression(); };
    Expr* stop = bound();
    Expr* step = skip_op(":") ? bound() : nullptr;
    Expr* node = make(Op::slice, line);
    node->parts = {start, stop, step};
    return node;
}

std::string Parser::dotted_name() {
    std::string name = expect_any_name("a name");
    while (skip_op(".")) name += "." + expect_any_name("a name");
    return name;
}

/// `first`: the chain begins with a name (filter blocks), not with a bar.
Expr* Parser::filter_chain(Expr* node, bool first) {
    while (first || is_op("|")) {
        if (!first) ++at_;
        first = false;
        const Token& token = now();
        Expr* out = make(Op::filter, token.line);
        out->text = dotted_name();
        out->parts = {node};
        out->filter = find_filter(out->text);
        if (out->filter == nullptr) note_unknown(token, fmt::format("there is no filter '{}'", out->text));
        if (is_op("(")) call_arguments(*out);
        node = out;
    }
    return node;
}

Expr* Parser::test(Expr* node) {
    ++at_;
    const bool negated = skip_name("not");
    const Token& token = now();
    Expr* out = make(Op::test, token.line);
    out->text = dotted_name();
    out->parts = {node};
    out->test = find_test(out->text);
    if (out->test == nullptr) note_unknown(token, fmt::format("there is no test '{}'", out->text));
    const Tok type = now().type;
    const bool operand = type == Tok::string || type == Tok::integer || type == Tok::floating || is_op("[") ||
                         is_op("{") || (type == Tok::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_op("(")) {
        call_arguments(*out);
    } else if (operand) {
        if (is_name("is")) fail_at(now(), "tests cannot be chained with 'is'");
        out->arguments.push_back(postfix(primary()));
    }
    if (!negated) return out;
    Expr* node_not = make(Op::logic_not, token.line);
    node_not->parts = {out};
    return node_not;
}

void Parser::call_arguments(Expr& call) {
    const Token& open = now();
    expect_op("(");
    const auto ensure = [&](bool condition) {
        if (!condition) fail_at(open, "arguments in a wrong order");
    };
    bool any = false;
    while (!is_op(")")) {
        if (any) {
            expect_op(",");
            if (is_op(")")) break;
        }
        any = true;
        if (skip_op("*")) {
            ensure(call.rest == nullptr && call.named_rest == nullptr);
            call.rest = expression();
        } else if (skip_op("**")) {
            ensure(call.named_rest == nullptr);
            call.named_rest = expression();
        } else if (now().type == Tok::name && ahead().type == Tok::op && ahead().text == "=") {
            ensure(call.named_rest == nullptr);
            const std::string name = now().text;
            at_ += 2;
            call.named.emplace_back(name, expression());
        } else {
            ensure(call.rest == nullptr && call.named_rest == nullptr && call.named.empty());
            call.arguments.push_back(expression());
        }
    }
    ++at_;
}

}  // namespace riptide::jinja
