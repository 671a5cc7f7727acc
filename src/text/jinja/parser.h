// From tokens to the syntax tree.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace riptide::jinja {

/// Recursive descent over the tokens of one template. The depth of recursion is bounded by Limits::depth.
class Parser {
  public:
    Parser(Program& program, std::vector<Token> tokens) : program_(program), tokens_(std::move(tokens)) {}

    /// Fills program.body. Throws SourceFault.
    void parse();

  private:
    /// Counts one level of nesting while it lives.
    class Level {
      public:
        explicit Level(Parser& parser);
        ~Level() { --parser_.depth_; }
        Level(const Level&) = delete;

      private:
        Parser& parser_;
    };
    /// A piece of the source in which unknown filters matter only if they are reached (as Jinja has it), or not.
    class Soft {
      public:
        Soft(Parser& parser, bool soft) : parser_(parser), before_(parser.soft_) { parser.soft_ = soft; }
        ~Soft() { parser_.soft_ = before_; }
        Soft(const Soft&) = delete;

      private:
        Parser& parser_;
        bool before_;
    };

    // tokens
    const Token& now() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    bool is_op(std::string_view op) const { return now().type == Tok::op && now().text == op; }
    bool is_name(std::string_view name) const { return now().type == Tok::name && now().text == name; }
    bool skip_op(std::string_view op);
    bool skip_name(std::string_view name);
    void expect_op(std::string_view op);
    void expect_name(std::string_view name);
    std::string expect_any_name(std::string_view what);
    [[noreturn]] void fail_at(const Token& token, const std::string& message) const;
    [[noreturn]] void fail_expected(std::string_view what) const;
    /// Fails at the end, unless what was read turns out to be a part of an inline if.
    void note_unknown(const Token& token, const std::string& message);
    Expr* make(Op op, int line);
    Stmt* make(Act act, int line);
    void count_node();

    // statements
    Body body(std::initializer_list<std::string_view> ends);
    Body block(std::initializer_list<std::string_view> ends);
    void data_or_print(Body& out);
    Stmt* statement();
    Stmt* parse_set();
    Stmt* parse_for();
    Stmt* parse_if();
    Stmt* parse_with();
    Stmt* parse_macro();
    Stmt* parse_call_block();
    Stmt* parse_filter_block();
    Stmt* parse_generation();
    Stmt* parse_print();
    void signature(Macro& macro);
    Target target(bool with_attribute);
    Target one_target(bool with_attribute);

    // expressions
    Expr* expression() { return condition(); }
    Expr* tuple(bool with_condition, bool explicit_parentheses = false);
    Expr* condition();
    Expr* logic_or();
    Expr* logic_and();
    Expr* logic_not();
    Expr* comparison();
    bool comparison_sign(Sign& sign);
    Expr* sum();
    Expr* concat();
    Expr* product();
    Expr* power();
    Expr* unary(bool with_filter);
    Expr* primary();
    Expr* name_or_constant();
    Expr* number();
    Expr* list();
    Expr* dict();
    Expr* postfix(Expr* node);
    Expr* filters_and_tests(Expr* node);
    Expr* subscript(Expr* node);
    Expr* subscribed();
    Expr* filter_chain(Expr* node, bool first);
    Expr* test(Expr* node);
    void call_arguments(Expr& call);
    std::string dotted_name();
    Expr* constant(Value value, int line);
    void note_macro_use(const std::string& name);

    Program& program_;
    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0;
    bool soft_ = false;
    std::vector<SourceFault> unknown_;  // filters and tests, where not soft
    int loops_ = 0;                     // open in this macro
    std::vector<Macro*> macros_;
};

}  // namespace riptide::jinja
