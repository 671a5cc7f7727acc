// Attributes, items, and everything that can be called.
#include "text/jinja/frames.h"

namespace riptide::jinja {

// ---- attributes and items

namespace {

Value bind(Heap& heap, std::string_view name, Method function, const Value& self) {
    CallableObject callable;
    callable.name = name;
    callable.function = function;
    callable.self = self;
    return heap.callable(std::move(callable));
}

/// What Python's getattr would find: methods, and the attributes of namespaces, loops and groups. Undefined if nothing.
bool find_attribute(Heap& heap, const Value& value, std::string_view name, Value& out) {
    if (is_unsafe_method(value, name)) {
        out = heap.undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(value)));
        return true;
    }
    if (value.is_string()) {
        const Method method = find_string_method(name);
        if (method != nullptr) out = bind(heap, name, method, value);
        return method != nullptr;
    }
    if (value.is(Kind::space)) {
        for (const auto& [key, found] : value.space().attributes) {
            if (key != name) continue;
            out = found;
            return true;
        }
    }
    const Method method = find_container_method(value, name);
    if (method == nullptr) return false;
    out = bind(heap, name, method, value);
    return true;
}

Value no_attribute(Heap& heap, const Value& value, std::string_view name) {
    return heap.undefined(fmt::format("'{} object' has no attribute '{}'", type_name(value), name));
}

bool find_item(Heap& heap, const Value& value, const Value& key, Value& out) {
    if (value.is(Kind::dict)) {
        if (key.is(Kind::dict) || (key.is(Kind::sequence) && key.sequence().shape == Shape::list)) return false;
        const Value* found = value.dict().find(heap, key);
        if (found != nullptr) out = *found;
        return found != nullptr;
    }
    const bool text = value.is_string();
    if (!text && !(value.is(Kind::sequence) && value.sequence().indexable())) return false;
    if (!key.is_whole() || key.is_big()) return false;
    const int64_t count = length(value);
    const int64_t at = key.as_int() < 0 ? key.as_int() + count : key.as_int();
    if (at < 0 || at >= count) return false;
    if (!text) {
        out = value.sequence().items[static_cast<std::size_t>(at)];
        return true;
    }
    const StringObject& string = value.string();
    heap.step_bytes(string.ascii() ? 0 : string.text.size());
    const int64_t begin = string.ascii() ? at : byte_of_char(string.text.bytes(), at);
    out = heap.text(string.text.part(begin, begin + char_at(string.text.bytes(), begin).bytes), string.markup);
    return true;
}

}  // namespace

Value Interpreter::attribute(const Value& value, std::string_view name) {
    if (value.is_undefined()) throw Fault(value.undefined_message());
    Value out;
    if (value.is(Kind::loop) && loop_attribute(value, name, out)) return out;
    if (value.is(Kind::sequence) && value.sequence().shape == Shape::group && (name == "grouper" || name == "list")) {
        return value.sequence().items[name == "list" ? 1 : 0];
    }
    if (value.is(Kind::space) && value.space().what == Space::What::cycler && name == "current") {
        return value.space().items[value.space().position];
    }
    if (find_attribute(heap_, value, name, out)) return out;
    if (value.is(Kind::dict)) {
        if (const Value* found = value.dict().find(name)) return *found;
    }
    return no_attribute(heap_, value, name);
}

Value Interpreter::item(const Value& value, const Value& key) {
    if (value.is_undefined()) throw Fault(value.undefined_message());
    Value out;
    if (find_item(heap_, value, key, out)) return out;
    if (key.is_string()) {
        if (value.is(Kind::dict)) {
            if (find_attribute(heap_, value, key.bytes(), out)) return out;
            return no_attribute(heap_, value, key.bytes());
        }
        return attribute(value, key.bytes());
    }
    return heap_.undefined(
        fmt::format("'{} object' has no element {}", type_name(value), to_text(heap_, key).bytes().substr(0, 60)));
}

bool Interpreter::loop_attribute(const Value& value, std::string_view name, Value& out) {
    const Loop& loop = value.loop();
    const auto neighbour = [&](int64_t at, std::string_view what) {
        if (at >= 0 && at < static_cast<int64_t>(loop.items.size())) return loop.items[static_cast<std::size_t>(at)];
        return heap_.undefined(fmt::format("there is no {} item", what));
    };
    if (name == "index") out = Value::integer(loop.index + 1);
    else if (name == "index0") out = Value::integer(loop.index);
    else if (name == "revindex") out = Value::integer(loop.count - loop.index);
    else if (name == "revindex0") out = Value::integer(loop.count - loop.index - 1);
    else if (name == "first") out = Value::boolean(loop.index == 0);
    else if (name == "last") out = Value::boolean(loop.index + 1 == loop.count);
    else if (name == "length") out = Value::integer(loop.count);
    else if (name == "depth") out = Value::integer(loop.depth);
    else if (name == "depth0") out = Value::integer(loop.depth - 1);
    else if (name == "previtem") out = neighbour(loop.index - 1, "previous");
    else if (name == "nextitem") out = neighbour(loop.index + 1, "next");
    else return false;
    return true;
}

// ---- calls

Value Interpreter::call(const Value& callee, Arguments& arguments) {
    heap_.step();
    if (callee.is_undefined()) throw Fault(callee.undefined_message());
    if (callee.is(Kind::loop)) return call_loop(callee.loop(), arguments);
    if (callee.is(Kind::space) && callee.space().what == Space::What::joiner) {
        Space& joiner = callee.space();
        if (joiner.position++ == 0) return heap_.text("", true);
        return joiner.items[0];
    }
    if (!callee.is(Kind::callable)) fault("'{}' object is not callable", type_name(callee));
    const CallableObject& callable = callee.callable();
    if (callable.macro != nullptr) return call_macro(callable, arguments);
    return callable.function(*this, callable.self, arguments);
}

Value Interpreter::make_macro(const Macro& macro) {
    for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
        heap_.take(static_cast<int64_t>(sizeof(Scope) + scope->names.capacity() * sizeof(scope->names[0])));
        scope->captured = true;
    }
    CallableObject callable;
    callable.name = macro.name;
    callable.macro = &macro;
    callable.scope = scope_;
    return heap_.callable(std::move(callable));
}

Value Interpreter::call_macro(const CallableObject& callable, Arguments& arguments) {
    struct Deeper {
        int& depth;
        ~Deeper() { --depth; }
    };
    if (macro_depth_ >= program_.limits.macro_depth) {
        fault("macros call each other more than {} deep", program_.limits.macro_depth);
    }
    const Deeper deeper{++macro_depth_};
    const Enter scope(*this, callable.scope);
    bind_parameters(*callable.macro, arguments);
    return heap_.text(capture(callable.macro->body));
}

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments) {
    const std::size_t count = macro.parameters.size();
    const std::size_t required = count - macro.defaults.size();
    for (std::size_t i = 0; i < count; ++i) {
        const int symbol = macro.parameters[i].first;
        const std::string& name = macro.parameters[i].second;
        if (i < arguments.positional.size()) {
            assign_name(symbol, arguments.positional[i]);
            continue;
        }
        const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                        [&](const auto& argument) { return argument.first == name; });
        if (named != arguments.named.end()) {
            assign_name(symbol, named->second);
            arguments.named.erase(named);
        } else if (i >= required) {
            assign_name(symbol, eval(*macro.defaults[i - required]));
        } else {
            assign_name(symbol, heap_.undefined(fmt::format("parameter '{}' was not provided", name)));
        }
    }
    bind_extras(macro, arguments);
}

/// caller, kwargs, varargs.
void Interpreter::bind_extras(const Macro& macro, Arguments& arguments) {
    const auto bind_name = [&](const char* name, const Value& value) {
        const int symbol = program_.find_symbol(name);
        if (symbol >= 0) assign_name(symbol, value);
    };
    if (macro.uses_caller) {
        Value caller = heap_.undefined("no caller defined");
        const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                        [](const auto& argument) { return argument.first == "caller"; });
        if (found != arguments.named.end()) {
            caller = found->second;
            arguments.named.erase(found);
        }
        const bool parameter = std::any_of(macro.parameters.begin(), macro.parameters.end(),
                                           [](const auto& declared) { return declared.second == "caller"; });
        if (!parameter) bind_name("caller", caller);
    }
    if (macro.uses_kwargs) {
        std::vector<std::pair<Value, Value>> items;
        for (auto& [name, value] : arguments.named) items.emplace_back(heap_.text(name, true), std::move(value));
        bind_name("kwargs", heap_.dict(std::move(items)));
    } else if (!arguments.named.empty()) {
        fault("macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
    }
    const std::size_t count = macro.parameters.size();
    std::vector<Value> rest;
    for (std::size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    if (macro.uses_varargs) bind_name("varargs", heap_.sequence(std::move(rest), Shape::tuple));
    else if (!rest.empty()) fault("macro '{}' takes not more than {} argument(s)", macro.name, count);
}

/// {% call(...) f() %}: the call, given the block as its caller.
void Interpreter::run_call(const Stmt& stmt) {
    const Value callee = eval(*stmt.expr->parts[0]);
    Arguments arguments;
    eval_arguments(*stmt.expr, arguments);
    arguments.named.emplace_back("caller", make_macro(*stmt.macro));
    print(call(callee, arguments));
}

/// loop(items): the body of a recursive loop again, a level deeper.
Value Interpreter::call_loop(Loop& loop, Arguments& arguments) {
    if (loop.stmt == nullptr) fault("the loop is not recursive, or has ended");
    if (arguments.positional.size() != 1 || !arguments.named.empty()) fault("a recursive loop takes one argument");
    if (macro_depth_ >= program_.limits.macro_depth) {
        fault("recursive loops are more than {} deep", program_.limits.macro_depth);
    }
    TextBuilder text(heap_);
    struct Restore {
        Interpreter& self;
        TextBuilder* out;
        Scope* scope;
        ~Restore() {
            self.out_ = out;
            self.scope_ = scope;
            --self.macro_depth_;
        }
    };
    const Restore restore{*this, out_, scope_};
    ++macro_depth_;
    out_ = &text;
    scope_ = loop.scope;
    run_items(*loop.stmt, iterate(heap_, arguments.positional[0]), loop.depth + 1);
    return heap_.text(text.take());
}

// ---- arguments of filters, tests and methods

Bound::Bound(Arguments& arguments, std::string_view function, std::initializer_list<std::string_view> names)
    : function_(function), names_(names), given_(names.size(), nullptr) {
    if (arguments.positional.size() > names.size()) {
        fault("{}() takes at most {} argument(s), {} given", function, names.size(), arguments.positional.size());
    }
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) given_[i] = &arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
        const auto found = std::find(names_.begin(), names_.end(), name);
        if (found == names_.end()) fault("{}() got an unexpected keyword argument '{}'", function, name);
        const Value*& slot = given_[static_cast<std::size_t>(found - names_.begin())];
        if (slot != nullptr) fault("{}() got multiple values for argument '{}'", function, name);
        slot = &value;
    }
}

const Value& Bound::operator[](std::size_t i) const {
    if (!has(i)) fault("{}() misses its argument '{}'", function_, names_[i]);
    return *given_[i];
}

int64_t Bound::number(std::size_t i, int64_t fallback) const {
    if (!has(i) || given_[i]->is(Kind::none)) return fallback;
    if (!given_[i]->is_whole())
        fault("{}(): '{}' must be an integer, not {}", function_, names_[i], type_name(*given_[i]));
    return given_[i]->as_int();
}

const Text& Bound::text(std::size_t i) const {
    const Value& value = (*this)[i];
    if (!value.is_string()) fault("{}(): '{}' must be a string, not {}", function_, names_[i], type_name(value));
    return value.text();
}

}  // namespace riptide::jinja
