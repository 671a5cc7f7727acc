// Runs the syntax tree of one template for one set of variables.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/unicode.h"

namespace riptide::jinja {

/// Names of one block, loop turn or macro call.
struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<int, Value>> names;
    bool captured = false;  // a macro was made inside: keep it until the end of the rendering
};

/// The `loop` of a for statement. Emptied when its statement ends.
struct Loop {
    const Stmt* stmt = nullptr;  // null once ended, or if it is not recursive
    Scope* scope = nullptr;      // where the statement stands
    std::vector<Value> items;
    int64_t index = 0;
    int64_t count = 0;
    int depth = 1;
    std::vector<Value> changed;
    bool changed_known = false;

    int64_t length() const { return count; }
};

/// raise_exception was called.
class Raised : public Fault {
  public:
    using Fault::Fault;
};

/// Missing and surplus arguments of one call of a filter, test or method, bound to names.
class Bound {
  public:
    /// Fault if there are more positional arguments than names, or a named one that is not among them.
    Bound(Arguments& arguments, std::string_view function, std::initializer_list<std::string_view> names);
    bool has(std::size_t i) const { return given_[i] != nullptr; }
    const Value& operator[](std::size_t i) const;  // Fault if not given
    const Value& get(std::size_t i, const Value& fallback) const { return has(i) ? *given_[i] : fallback; }
    bool flag(std::size_t i, bool fallback) const { return has(i) ? truth(*given_[i]) : fallback; }
    int64_t number(std::size_t i, int64_t fallback) const;  // None counts as not given
    /// Fault if it is no string.
    const Text& text(std::size_t i) const;

  private:
    std::string_view function_;
    std::vector<std::string_view> names_;
    std::vector<const Value*> given_;
};

class Interpreter {
  public:
    Interpreter(const Program& program, const json::object& variables, const RenderOptions& options);
    ~Interpreter();
    Interpreter(const Interpreter&) = delete;

    /// Throws Error.
    Rendered run();

    // For filters, tests and methods:
    Heap& heap() { return heap_; }
    const Program& program() const { return program_; }
    const RenderOptions& options() const { return options_; }
    /// value.name and value[key]: undefined if it is not there.
    Value attribute(const Value& value, std::string_view name);
    Value item(const Value& value, const Value& key);
    Value call(const Value& callee, Arguments& arguments);
    Value apply_filter(std::string_view name, const Value& input, Arguments& arguments);
    bool apply_test(std::string_view name, const Value& input, Arguments& arguments);
    Space& new_space(Space::What what);
    /// A value from outside; strings are untrusted unless `trusted`.
    Value from_json(const json::value& value, bool trusted, int depth = 0);

  private:
    enum class Flow : uint8_t { on, leave, next };

    // names
    Value lookup(const Expr& name);
    const Value* outside(int symbol);
    void assign(const Target& target, const Value& value);
    void assign_name(int symbol, const Value& value);
    void assign_attribute(const Target& target, const Value& value);
    class Enter;  // a new scope, while it lives
    class Depth;  // one level of evaluation, while it lives

    // statements
    Flow run_body(const Body& body);
    Flow run_stmt(const Stmt& stmt);
    Flow run_condition(const Stmt& stmt);
    Flow run_items(const Stmt& stmt, std::vector<Value> items, int depth);
    std::vector<Value> filter_items(const Stmt& stmt, std::vector<Value> items);
    Flow run_with(const Stmt& stmt);
    void run_assign_block(const Stmt& stmt);
    void run_call(const Stmt& stmt);
    void run_filter(const Stmt& stmt);
    Text capture(const Body& body);
    void print(const Value& value);

    // expressions
    Value eval(const Expr& expr);
    Value eval_all(const Expr& expr, Shape shape);
    Value eval_dict(const Expr& expr);
    Value eval_logic(const Expr& expr);
    Value eval_arithmetic(const Expr& expr);
    Value eval_concat(const Expr& expr);
    Value eval_compare(const Expr& expr);
    Value eval_condition(const Expr& expr);
    Value eval_item(const Expr& expr);
    Value eval_slice(const Value& value, const Expr& slice);
    Value eval_call(const Expr& expr);
    Value eval_filter(const Expr& expr);
    Value eval_test(const Expr& expr);
    void eval_arguments(const Expr& expr, Arguments& out);
    Value filter_through(const Expr& chain, Value input);

    // calls
    Value make_macro(const Macro& macro);
    Value call_macro(const CallableObject& callable, Arguments& arguments);
    void bind_parameters(const Macro& macro, Arguments& arguments);
    void bind_extras(const Macro& macro, Arguments& arguments);
    Value call_loop(Loop& loop, Arguments& arguments);
    bool loop_attribute(const Value& value, std::string_view name, Value& out);

    const Program& program_;
    const json::object& variables_;
    const RenderOptions& options_;
    std::optional<WorkBudget> own_work_;  // if there is no other
    Heap heap_;
    std::deque<Space> spaces_;
    std::deque<std::unique_ptr<Scope>> scopes_;  // captured ones
    std::vector<std::unique_ptr<Scope>> free_scopes_;
    std::vector<std::optional<Value>> outside_;  // by symbol, read from the variables when first used
    Scope* scope_ = nullptr;
    TextBuilder* out_ = nullptr;
    int line_ = 1;
    int depth_ = 0;
    int macro_depth_ = 0;
};

/// x|string: what {{ x }} prints.
Text to_text(Heap& heap, const Value& value);
/// The value as text, strings without a copy.
Value to_string(Heap& heap, const Value& value);
/// Python's repr.
void append_repr(TextBuilder& out, const Value& value);
std::string repr_of(double value);
struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    std::optional<Text> indent;
    Text item_separator{", ", false}, key_separator{": ", false};
};
/// json.dumps. Fault for what JSON has not.
void append_json(TextBuilder& out, const Value& value, const JsonStyle& style, int depth = 0);

/// a + b, a - b ...; a % b formats if a is a string.
Value arithmetic(Heap& heap, Sign sign, const Value& a, const Value& b);
bool compare_values(Heap& heap, Sign sign, const Value& a, const Value& b);
/// "%s" % value
Value format_percent(Heap& heap, const Value& format, const Value& value);
/// "{}".format(...)
Value format_braces(Interpreter& interpreter, const Value& format, Arguments& arguments);
/// `text`, and markup if `self`, the string it was made of, is.
Value text_like(Interpreter& interpreter, const Value& self, Text text);
/// Letters mapped to a case, which `choose` says for each character in turn; provenance follows the letters.
Text map_case(Heap& heap, const Text& text, const std::function<Case(char32_t)>& choose);
Text map_case(Heap& heap, const Text& text, Case to);
/// & < > ' " as HTML entities.
Text escape_html(Heap& heap, const Text& text);
/// All occurrences of `from`, at most `count` if it is not negative.
Text replace_all(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t count);
/// Where the lines lie, without their ends (or with them).
std::vector<TextSpan> split_lines(Heap& heap, const Text& text, bool keep_ends = false);

/// Bound methods of strings, containers, loops and the like; empty function if there is none.
Method find_string_method(std::string_view name);
Method find_letter_method(std::string_view name);  // the part of it in letters.cpp
Method find_container_method(const Value& value, std::string_view name);
bool is_unsafe_method(const Value& value, std::string_view name);
/// Functions such as range; nullptr if there is none.
Method find_global(std::string_view name);

}  // namespace riptide::jinja
