// Statements. Expressions are in parser_expr.cpp.
#include "text/jinja/parser.h"

#include <algorithm>

namespace riptide::jinja {

Parser::Level::Level(Parser& parser) : parser_(parser) {
    if (parser.depth_ >= parser.program_.limits.depth) {
        parser.fail_at(parser.now(), fmt::format("nested more than {} deep", parser.program_.limits.depth));
    }
    ++parser.depth_;
}

// ---- tokens

namespace {

std::string describe(const Token& token) {
    switch (token.type) {
        case Tok::end:
            return "the end of the template";
        case Tok::data:
            return "text";
        case Tok::print_begin:
            return "'{{'";
        case Tok::print_end:
            return "'}}'";
        case Tok::block_begin:
            return "'{%'";
        case Tok::block_end:
            return "'%}'";
        case Tok::string:
            return "a string";
        default:
            return "'" + token.text.substr(0, 60) + "'";
    }
}

}  // namespace

void Parser::fail_at(const Token& token, const std::string& message) const {
    throw SourceFault(message, token.line, token.column);
}
void Parser::fail_expected(std::string_view what) const {
    fail_at(now(), fmt::format("expected {}, found {}", what, describe(now())));
}
void Parser::note_unknown(const Token& token, const std::string& message) {
    if (!soft_) unknown_.emplace_back(message, token.line, token.column);
}
bool Parser::skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    ++at_;
    return true;
}
bool Parser::skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    ++at_;
    return true;
}
void Parser::expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected(fmt::format("'{}'", op));
}
void Parser::expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
}
std::string Parser::expect_any_name(std::string_view what) {
    if (now().type != Tok::name) fail_expected(what);
    return tokens_[at_++].text;
}

void Parser::count_node() {
    const auto count = static_cast<int64_t>(program_.exprs.size() + program_.stmts.size());
    if (count >= program_.limits.nodes) {
        fail_at(now(), fmt::format("the template has more than {} nodes", program_.limits.nodes));
    }
}
Expr* Parser::make(Op op, int line) {
    count_node();
    program_.exprs.push_back(std::make_unique<Expr>());
    program_.exprs.back()->op = op;
    program_.exprs.back()->line = line;
    return program_.exprs.back().get();
}
Stmt* Parser::make(Act act, int line) {
    count_node();
    program_.stmts.push_back(std::make_unique<Stmt>());
    program_.stmts.back()->act = act;
    program_.stmts.back()->line = line;
    return program_.stmts.back().get();
}

// ---- statements

void Parser::parse() {
    program_.body = body({});
    if (now().type != Tok::end) fail_expected("the end of the template");
    if (!unknown_.empty()) throw SourceFault(unknown_.front());
}

/// Statements up to a block that begins with one of `ends`, whose name is then the current token; or to the end.
Body Parser::body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body out;
    while (now().type != Tok::end) {
        if (now().type != Tok::block_begin) {
            data_or_print(out);
            continue;
        }
        ++at_;
        if (now().type == Tok::name && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return out;
        if (Stmt* stmt = statement()) out.push_back(stmt);
        if (now().type != Tok::block_end) fail_expected("'%}'");
        ++at_;
    }
    if (ends.size() != 0) fail_expected(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
    return out;
}

/// What follows the head of a block statement: its end, then the body.
Body Parser::block(std::initializer_list<std::string_view> ends) {
    skip_op(":");
    if (now().type != Tok::block_end) fail_expected("'%}'");
    ++at_;
    return body(ends);
}

void Parser::data_or_print(Body& out) {
    const Token& token = now();
    const bool data = token.type == Tok::data;
    Stmt* stmt = make(data ? Act::text : Act::print, token.line);
    out.push_back(stmt);
    ++at_;
    if (data) {
        stmt->expr = constant(program_.heap.text(token.text, true), token.line);
        return;
    }
    stmt->expr = tuple(true);
    if (now().type != Tok::print_end) fail_expected("'}}'");
    ++at_;
}

Stmt* Parser::statement() {
    const Token& token = now();
    if (token.type != Tok::name) fail_expected("the name of a tag");
    const std::string& name = token.text;
    if (name == "set") return parse_set();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "with") return parse_with();
    if (name == "generation") return parse_generation();
    if (name == "print") return parse_print();
    if (name == "break" || name == "continue") {
        if (loops_ == 0) fail_at(token, fmt::format("'{}' outside a loop", name));
        ++at_;
        return make(name == "break" ? Act::leave : Act::next, token.line);
    }
    for (const std::string_view refused : {"include", "import", "from", "extends", "block", "autoescape"}) {
        if (name == refused) fail_at(token, fmt::format("the tag '{}' is not supported", name));
    }
    fail_at(token, fmt::format("unknown tag '{}'", name));
}

Stmt* Parser::parse_set() {
    Stmt* stmt = make(Act::assign, now().line);
    ++at_;
    stmt->target = target(true);
    if (skip_op("=")) {
        stmt->expr = tuple(true);
        return stmt;
    }
    stmt->act = Act::assign_block;
    if (is_op("|")) stmt->expr = filter_chain(nullptr, false);
    const Soft soft(*this, false);
    const int loops = std::exchange(loops_, 0);
    stmt->body = block({"endset"});
    ++at_;
    loops_ = loops;
    return stmt;
}

Stmt* Parser::parse_for() {
    Stmt* stmt = make(Act::loop, now().line);
    ++at_;
    stmt->target = target(false);
    expect_name("in");
    stmt->expr = tuple(false);
    if (skip_name("if")) stmt->test = expression();
    stmt->recursive = skip_name("recursive");
    const Soft soft(*this, false);
    ++loops_;
    stmt->body = block({"else", "endfor"});
    --loops_;
    if (skip_name("else")) stmt->other = block({"endfor"});
    expect_name("endfor");
    return stmt;
}

Stmt* Parser::parse_if() {
    Stmt* stmt = make(Act::condition, now().line);
    const Soft soft(*this, true);
    ++at_;
    while (true) {
        Expr* test = tuple(false);
        stmt->branches.push_back({test, block({"elif", "else", "endif"})});
        if (skip_name("elif")) continue;
        if (skip_name("else")) stmt->branches.push_back({nullptr, block({"endif"})});
        expect_name("endif");
        return stmt;
    }
}

Stmt* Parser::parse_with() {
    Stmt* stmt = make(Act::with, now().line);
    ++at_;
    while (now().type != Tok::block_end) {
        if (!stmt->targets.empty()) expect_op(",");
        stmt->targets.push_back(target(false));
        expect_op("=");
        stmt->values.push_back(expression());
    }
    const Soft soft(*this, false);
    stmt->body = block({"endwith"});
    ++at_;
    return stmt;
}

void Parser::signature(Macro& macro) {
    expect_op("(");
    while (!is_op(")")) {
        if (!macro.parameters.empty()) expect_op(",");
        const std::string name = expect_any_name("a parameter");
        macro.parameters.emplace_back(program_.symbol(name), name);
        if (skip_op("=")) macro.defaults.push_back(expression());
        else if (!macro.defaults.empty()) fail_at(now(), "a parameter without a default follows one with a default");
    }
    ++at_;
}

Stmt* Parser::parse_macro() {
    Stmt* stmt = make(Act::macro, now().line);
    ++at_;
    stmt->macro = std::make_unique<Macro>();
    stmt->macro->name = expect_any_name("the macro's name");
    stmt->target.symbol = program_.symbol(stmt->macro->name);
    macros_.push_back(stmt->macro.get());
    const Soft soft(*this, false);
    const int loops = std::exchange(loops_, 0);
    signature(*stmt->macro);
    stmt->macro->body = block({"endmacro"});
    ++at_;
    loops_ = loops;
    macros_.pop_back();
    return stmt;
}

Stmt* Parser::parse_call_block() {
    Stmt* stmt = make(Act::call, now().line);
    ++at_;
    stmt->macro = std::make_unique<Macro>();
    stmt->macro->name = "caller";
    if (is_op("(")) signature(*stmt->macro);
    stmt->expr = expression();
    if (stmt->expr->op != Op::call) fail_at(now(), "expected a call in a call block");
    macros_.push_back(stmt->macro.get());
    const Soft soft(*this, false);
    const int loops = std::exchange(loops_, 0);
    stmt->macro->body = block({"endcall"});
    ++at_;
    loops_ = loops;
    macros_.pop_back();
    return stmt;
}

Stmt* Parser::parse_filter_block() {
    Stmt* stmt = make(Act::filter, now().line);
    ++at_;
    stmt->expr = filter_chain(nullptr, true);
    const Soft soft(*this, false);
    const int loops = std::exchange(loops_, 0);
    stmt->body = block({"endfilter"});
    ++at_;
    loops_ = loops;
    return stmt;
}

/// {% generation %} marks what a model wrote; for rendering it is only a scope.
Stmt* Parser::parse_generation() {
    Stmt* stmt = make(Act::scope, now().line);
    ++at_;
    const Soft soft(*this, false);
    const int loops = std::exchange(loops_, 0);
    stmt->body = block({"endgeneration"});
    ++at_;
    loops_ = loops;
    return stmt;
}

Stmt* Parser::parse_print() {
    Stmt* stmt = make(Act::print, now().line);
    ++at_;
    stmt->expr = expression();
    return stmt;
}

// ---- assignment targets

Target Parser::one_target(bool with_attribute) {
    const Level level(*this);
    if (is_op("(")) {
        ++at_;
        Target inner = target(with_attribute);
        expect_op(")");
        return inner;
    }
    const Token& token = now();
    const std::string name = expect_any_name("a name to assign to");
    for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
        if (name == reserved) fail_at(token, fmt::format("cannot assign to '{}'", name));
    }
    Target out;
    out.symbol = program_.symbol(name);
    if (with_attribute && is_op(".")) {
        ++at_;
        out.attribute = expect_any_name("an attribute");
    }
    return out;
}

/// a | a, b | (a, b), c
Target Parser::target(bool with_attribute) {
    Target first = one_target(with_attribute);
    if (!is_op(",")) return first;
    Target out;
    out.parts.push_back(std::move(first));
    while (skip_op(",")) {
        if (is_name("in") || is_op("=") || is_op(")") || now().type == Tok::block_end) break;
        out.parts.push_back(one_target(with_attribute));
    }
    return out;
}

}  // namespace riptide::jinja
