// Statements and names.
#include "text/jinja/frames.h"

#include "base/json.h"

namespace riptide::jinja {

Interpreter::Interpreter(const Program& program, const json::object& variables, const RenderOptions& options)
    : program_(program),
      variables_(variables),
      options_(options),
      own_work_(options.work == nullptr ? std::optional(WorkBudget()) : std::nullopt),
      heap_(program.limits, options.work == nullptr ? *own_work_ : *options.work),
      outside_(program.symbols.size()) {}

Interpreter::~Interpreter() = default;

Rendered Interpreter::run() {
    try {
        TextBuilder out(heap_);
        out_ = &out;
        const Enter root(*this, nullptr);
        run_body(program_.body);
        Rendered rendered;
        rendered.trusted = out.text().trusted();
        rendered.text = out.take().bytes();
        return rendered;
    } catch (const Raised& raised) {
        const std::string message = std::string(raised.what()).substr(0, 1000);
        throw RaisedError(
            fmt::format("{}:{}: the template refuses this conversation: {}", program_.name, line_, message), message);
    } catch (const TooMuchWork& found) {
        throw TooMuchWork(fmt::format("{}:{}: {}", program_.name, line_, found.what()));
    } catch (const Fault& found) {
        throw Error(fmt::format("{}:{}: {}", program_.name, line_, std::string_view(found.what()).substr(0, 1000)));
    }
}

// ---- names

Value Interpreter::lookup(const Expr& name) {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
        for (const auto& [symbol, value] : scope->names) {
            if (symbol == name.symbol) return value;
        }
    }
    if (const Value* value = outside(name.symbol)) return *value;
    if (const Method function = find_global(name.text)) {
        CallableObject callable;
        callable.name = name.text;
        callable.function = function;
        return heap_.callable(std::move(callable));
    }
    return heap_.undefined(fmt::format("'{}' is undefined", name.text));
}

/// The variable that the caller gave, or nullptr.
const Value* Interpreter::outside(int symbol) {
    std::optional<Value>& slot = outside_[static_cast<std::size_t>(symbol)];
    if (slot) return &*slot;
    const std::string& name = program_.symbols[static_cast<std::size_t>(symbol)];
    const json::value* found = options_.trusted_variables.if_contains(name);
    const bool trusted = found != nullptr;
    if (!trusted) found = variables_.if_contains(name);
    if (found == nullptr) return nullptr;
    slot = from_json(*found, trusted);
    return &*slot;
}

void Interpreter::assign_name(int symbol, const Value& value) {
    for (auto& [name, old] : scope_->names) {
        if (name != symbol) continue;
        old = value;
        return;
    }
    scope_->names.emplace_back(symbol, value);
}

void Interpreter::assign_attribute(const Target& target, const Value& value) {
    Expr name;
    name.symbol = target.symbol;
    name.text = program_.symbols[static_cast<std::size_t>(target.symbol)];
    const Value owner = lookup(name);
    if (!owner.is(Kind::space) || owner.space().what != Space::What::name_space) {
        fault("cannot assign attribute on non-namespace object '{}'", name.text);
    }
    for (auto& [key, old] : owner.space().attributes) {
        if (key != target.attribute) continue;
        old = value;
        return;
    }
    heap_.take(static_cast<int64_t>(target.attribute.size() + 96));
    owner.space().attributes.emplace_back(target.attribute, value);
}

void Interpreter::assign(const Target& target, const Value& value) {
    if (target.parts.empty()) {
        if (target.attribute.empty()) assign_name(target.symbol, value);
        else assign_attribute(target, value);
        return;
    }
    const std::vector<Value> items = iterate(heap_, value);
    if (items.size() != target.parts.size()) {
        fault("cannot unpack {} values into {} names", items.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
}

// ---- statements

Interpreter::Flow Interpreter::run_body(const Body& body) {
    const Depth depth(*this);
    for (const Stmt* stmt : body) {
        const Flow flow = run_stmt(*stmt);
        if (flow != Flow::on) return flow;
    }
    return Flow::on;
}

Interpreter::Flow Interpreter::run_stmt(const Stmt& stmt) {
    heap_.step();
    line_ = stmt.line;
    switch (stmt.act) {
        case Act::text:
            out_->append(stmt.expr->value.text());
            return Flow::on;
        case Act::print:
            print(eval(*stmt.expr));
            return Flow::on;
        case Act::assign:
            assign(stmt.target, eval(*stmt.expr));
            return Flow::on;
        case Act::assign_block:
            run_assign_block(stmt);
            return Flow::on;
        case Act::condition:
            return run_condition(stmt);
        case Act::loop:
            return run_items(stmt, iterate(heap_, eval(*stmt.expr)), 1);
        case Act::with:
            return run_with(stmt);
        case Act::macro:
            assign(stmt.target, make_macro(*stmt.macro));
            return Flow::on;
        case Act::call:
            run_call(stmt);
            return Flow::on;
        case Act::filter:
            run_filter(stmt);
            return Flow::on;
        case Act::scope: {
            const Enter scope(*this, scope_);
            return run_body(stmt.body);
        }
        case Act::leave:
            return Flow::leave;
        case Act::next:
            return Flow::next;
    }
    return Flow::on;
}

void Interpreter::print(const Value& value) {
    if (value.is_string()) {
        out_->append(value.text());
    } else if (!value.is_undefined()) {
        out_->append(to_text(heap_, value));
    }
}

Interpreter::Flow Interpreter::run_condition(const Stmt& stmt) {
    for (const Branch& branch : stmt.branches) {
        if (branch.test == nullptr || truth(eval(*branch.test))) return run_body(branch.body);
    }
    return Flow::on;
}

std::vector<Value> Interpreter::filter_items(const Stmt& stmt, std::vector<Value> items) {
    std::vector<Value> kept;
    for (Value& item : items) {
        const Enter scope(*this, scope_);
        assign(stmt.target, item);
        if (truth(eval(*stmt.test))) kept.push_back(std::move(item));
    }
    return kept;
}

Interpreter::Flow Interpreter::run_items(const Stmt& stmt, std::vector<Value> items, int depth) {
    if (stmt.test != nullptr) items = filter_items(stmt, std::move(items));
    if (items.empty()) {
        const Enter scope(*this, scope_);
        return run_body(stmt.other);
    }
    auto fresh = std::make_unique<Loop>();
    fresh->stmt = stmt.recursive ? &stmt : nullptr;
    fresh->scope = scope_;
    fresh->count = static_cast<int64_t>(items.size());
    fresh->depth = depth;
    fresh->items = std::move(items);
    const Value value = heap_.loop(std::move(fresh));
    struct Ended {  // a template may keep `loop`; it must not keep what the loop was over
        Loop& loop;
        ~Ended() {
            loop.stmt = nullptr;
            loop.index = std::min(loop.index, loop.count - 1);
            loop.items.clear();
            loop.changed.clear();
        }
    };
    const Ended ended{value.loop()};
    Loop& loop = value.loop();
    const int symbol = program_.find_symbol("loop");
    for (loop.index = 0; loop.index < loop.count; ++loop.index) {
        heap_.step();
        const Enter scope(*this, scope_);
        if (symbol >= 0) assign_name(symbol, value);
        assign(stmt.target, loop.items[static_cast<std::size_t>(loop.index)]);
        if (run_body(stmt.body) == Flow::leave) break;
    }
    return Flow::on;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt) {
    std::vector<Value> values;
    for (const Expr* expr : stmt.values) values.push_back(eval(*expr));
    const Enter scope(*this, scope_);
    for (std::size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
    return run_body(stmt.body);
}

Text Interpreter::capture(const Body& body) {
    TextBuilder text(heap_);
    struct Redirect {
        TextBuilder*& slot;
        TextBuilder* before;
        ~Redirect() { slot = before; }
    };
    const Redirect redirect{out_, out_};
    out_ = &text;
    const Enter scope(*this, scope_);
    run_body(body);
    return text.take();
}

void Interpreter::run_assign_block(const Stmt& stmt) {
    Value text = heap_.text(capture(stmt.body));
    if (stmt.expr != nullptr) text = filter_through(*stmt.expr, std::move(text));
    assign(stmt.target, text);
}

void Interpreter::run_filter(const Stmt& stmt) { print(filter_through(*stmt.expr, heap_.text(capture(stmt.body)))); }

}  // namespace riptide::jinja
