// Expressions, with Jinja's precedence: condition < or < and < not < comparison < + - < ~ < * / // % < ** < unary <
// postfix.
#include "text/jinja/parser.h"

namespace riptide::jinja {

/// One expression, or several with commas between them.
Expr* Parser::tuple(bool with_condition, bool explicit_parentheses) {
    const auto ends = [&] {
        const bool tag_end = now().type == Tok::print_end || now().type == Tok::block_end;
        return tag_end || is_op(")") || (!with_condition && is_name("recursive"));
    };
    const int line = now().line;
    std::vector<Expr*> parts;
    bool is_tuple = false;
    while (!ends()) {
        parts.push_back(with_condition ? condition() : logic_or());
        if (!skip_op(",")) break;
        is_tuple = true;
    }
    if (!is_tuple && !parts.empty()) return parts[0];
    if (parts.empty() && !explicit_parentheses) fail_expected("an expression");
    Expr* node = make(Op::tuple, line);
    node->parts = std::move(parts);
    return node;
}

Expr* Parser::condition() {
    const Level level(*this);
    const int line = now().line;
    const auto known = static_cast<std::ptrdiff_t>(unknown_.size());
    Expr* node = logic_or();
    while (is_name("if")) {
        const Soft soft(*this, true);
        unknown_.erase(unknown_.begin() + known, unknown_.end());  // the first part was of an inline if
        ++at_;
        Expr* test = logic_or();
        Expr* other = skip_name("else") ? condition() : nullptr;
        Expr* outer = make(Op::condition, line);
        outer->parts = {test, node, other};
        node = outer;
    }
    return node;
}

Expr* Parser::logic_or() {
    Expr* first = logic_and();
    if (!is_name("or")) return first;
    Expr* node = make(Op::logic_or, first->line);
    node->parts.push_back(first);
    while (skip_name("or")) node->parts.push_back(logic_and());
    return node;
}

Expr* Parser::logic_and() {
    Expr* first = logic_not();
    if (!is_name("and")) return first;
    Expr* node = make(Op::logic_and, first->line);
    node->parts.push_back(first);
    while (skip_name("and")) node->parts.push_back(logic_not());
    return node;
}

Expr* Parser::logic_not() {
    if (!is_name("not")) return comparison();
    const Level level(*this);
    const int line = now().line;
    ++at_;
    Expr* inner = logic_not();
    Expr* node = make(Op::logic_not, line);
    node->parts = {inner};
    return node;
}

bool Parser::comparison_sign(Sign& sign) {
    if (is_name("in")) {
        ++at_;
        sign = Sign::in;
        return true;
    }
    if (is_name("not") && ahead().type == Tok::name && ahead().text == "in") {
        at_ += 2;
        sign = Sign::not_in;
        return true;
    }
    static constexpr std::pair<std::string_view, Sign> kSigns[] = {
        {"==", Sign::eq}, {"!=", Sign::ne}, {"<", Sign::lt}, {"<=", Sign::le}, {">", Sign::gt}, {">=", Sign::ge}};
    for (const auto& [text, value] : kSigns) {
        if (!skip_op(text)) continue;
        sign = value;
        return true;
    }
    return false;
}

Expr* Parser::comparison() {
    Expr* first = sum();
    Sign sign{};
    if (!comparison_sign(sign)) return first;
    Expr* node = make(Op::compare, first->line);
    node->parts.push_back(first);
    do {
        node->operators.push_back(sign);
        node->parts.push_back(sum());
    } while (comparison_sign(sign));
    return node;
}

Expr* Parser::sum() {
    Expr* first = concat();
    if (!is_op("+") && !is_op("-")) return first;
    Expr* node = make(Op::arithmetic, first->line);
    node->parts.push_back(first);
    while (is_op("+") || is_op("-")) {
        node->operators.push_back(is_op("+") ? Sign::add : Sign::sub);
        ++at_;
        node->parts.push_back(concat());
    }
    return node;
}

Expr* Parser::concat() {
    Expr* first = product();
    if (!is_op("~")) return first;
    Expr* node = make(Op::concat, first->line);
    node->parts.push_back(first);
    while (skip_op("~")) node->parts.push_back(product());
    return node;
}

Expr* Parser::product() {
    Expr* first = power();
    const auto sign = [&]() -> int {
        if (now().type != Tok::op) return -1;
        if (now().text == "*") return static_cast<int>(Sign::mul);
        if (now().text == "/") return static_cast<int>(Sign::div);
        if (now().text == "//") return static_cast<int>(Sign::floor_div);
        if (now().text == "%") return static_cast<int>(Sign::mod);
        return -1;
    };
    if (sign() < 0) return first;
    Expr* node = make(Op::arithmetic, first->line);
    node->parts.push_back(first);
    for (int found = sign(); found >= 0; found = sign()) {
        ++at_;
        node->operators.push_back(static_cast<Sign>(found));
        node->parts.push_back(power());
    }
    return node;
}

/// Left to right, as Jinja has it (Python would go right to left).
Expr* Parser::power() {
    Expr* first = unary(true);
    if (!is_op("**")) return first;
    Expr* node = make(Op::arithmetic, first->line);
    node->parts.push_back(first);
    while (skip_op("**")) {
        node->operators.push_back(Sign::pow);
        node->parts.push_back(unary(true));
    }
    return node;
}

Expr* Parser::unary(bool with_filter) {
    Expr* node = nullptr;
    if (is_op("-") || is_op("+")) {
        const Level level(*this);
        const int line = now().line;
        const Op op = is_op("-") ? Op::negate : Op::plus;
        ++at_;
        Expr* inner = unary(false);
        node = make(op, line);
        node->parts = {inner};
    } else {
        node = primary();
    }
    node = postfix(node);
    return with_filter ? filters_and_tests(node) : node;
}

}  // namespace riptide::jinja
