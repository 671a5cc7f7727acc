// The syntax tree of a template. Nodes lie in one list, so that destroying a tree never recurses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace riptide::jinja {

class Interpreter;
using Filter = Value (*)(Interpreter&, const Value& input, Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, Arguments&);

/// Filters and tests by name; nullptr if there is none.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

enum class Op : uint8_t {
    constant,    // value
    name,        // symbol, text
    list,        // parts
    tuple,       // parts
    dict,        // parts: key, value, key, value ...
    negate,      // parts[0]
    plus,        // parts[0]
    logic_not,   // parts[0]
    logic_and,   // parts, two or more
    logic_or,    // parts, two or more
    arithmetic,  // parts[0] operators[0] parts[1] operators[1] ..., left to right
    concat,      // parts joined by ~
    compare,     // parts[0] operators[0] parts[1] ..., as a chain
    condition,   // parts: test, then, else (may be null)
    attribute,   // parts[0] . text
    item,        // parts[0] [ parts[1] ]
    slice,       // parts: start, stop, step (each may be null); only as parts[1] of item
    call,        // parts[0] ( arguments )
    filter,      // parts[0] (null in filter blocks) | text ( arguments )
    test,        // parts[0] is text ( arguments )
};

/// Binary and comparison operators.
enum class Sign : uint8_t { add, sub, mul, div, floor_div, mod, pow, eq, ne, lt, le, gt, ge, in, not_in };

struct Expr {
    Op op = Op::constant;
    int line = 0;
    int symbol = -1;
    std::string text;
    Value value;
    std::vector<Expr*> parts;
    std::vector<Sign> operators;
    // arguments of call, filter, test
    std::vector<Expr*> arguments;
    std::vector<std::pair<std::string, Expr*>> named;
    Expr* rest = nullptr;        // *rest
    Expr* named_rest = nullptr;  // **named_rest
    Filter filter = nullptr;
    Test test = nullptr;
};

/// What an assignment writes: a name, an attribute of a namespace, or several of these.
struct Target {
    int symbol = -1;
    std::string attribute;  // of the namespace in `symbol`, if not empty
    std::vector<Target> parts;
};

enum class Act : uint8_t {
    text,          // expr: the constant
    print,         // expr
    assign,        // target = expr
    assign_block,  // target = body, through `expr` (a filter chain) if there is one
    condition,     // branches
    loop,          // for target in expr if test: body, else: other
    with,          // targets = values: body
    macro,         // macro
    call,          // expr (a call) with macro as its caller
    filter,        // body through expr
    scope,         // body, in a scope of its own
    leave,         // break
    next,          // continue
};

struct Stmt;
using Body = std::vector<Stmt*>;

struct Macro {
    std::string name;
    std::vector<std::pair<int, std::string>> parameters;
    std::vector<Expr*> defaults;  // of the last parameters
    Body body;
    bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Branch {
    Expr* test = nullptr;  // null: else
    Body body;
};

struct Stmt {
    Act act = Act::text;
    int line = 0;
    bool recursive = false;
    Expr* expr = nullptr;
    Expr* test = nullptr;
    Target target;
    std::vector<Target> targets;
    std::vector<Expr*> values;
    std::vector<Branch> branches;
    std::unique_ptr<Macro> macro;
    Body body, other;
};

/// A parsed template.
struct Program {
    explicit Program(const Limits& all_limits) : limits(all_limits), heap(all_limits, work) {}

    std::string name;
    Limits limits;
    WorkBudget work;  // of the parser
    Heap heap;        // of the constants; before the nodes, which it must outlive
    std::vector<std::unique_ptr<Expr>> exprs;
    std::vector<std::unique_ptr<Stmt>> stmts;
    std::vector<std::string> symbols;
    std::map<std::string, int> symbol_ids;
    Body body;

    int symbol(const std::string& text) {
        const auto [at, fresh] = symbol_ids.emplace(text, static_cast<int>(symbols.size()));
        if (fresh) symbols.push_back(text);
        return at->second;
    }
    /// -1 if the template never uses the name.
    int find_symbol(const std::string& text) const {
        const auto at = symbol_ids.find(text);
        return at == symbol_ids.end() ? -1 : at->second;
    }
};

}  // namespace riptide::jinja
