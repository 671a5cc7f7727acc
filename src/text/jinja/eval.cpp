// Expressions.
#include "text/jinja/frames.h"

namespace riptide::jinja {

Value Interpreter::eval(const Expr& expr) {
    const Depth depth(*this);
    heap_.step();
    line_ = expr.line;
    switch (expr.op) {
        case Op::constant:
            return expr.value;
        case Op::name:
            return lookup(expr);
        case Op::list:
            return eval_all(expr, Shape::list);
        case Op::tuple:
            return eval_all(expr, Shape::tuple);
        case Op::dict:
            return eval_dict(expr);
        case Op::negate:
            return arithmetic(heap_, Sign::sub, Value::integer(0), eval(*expr.parts[0]));
        case Op::plus:
            return arithmetic(heap_, Sign::add, Value::integer(0), eval(*expr.parts[0]));
        case Op::logic_not:
            return Value::boolean(!truth(eval(*expr.parts[0])));
        case Op::logic_and:
        case Op::logic_or:
            return eval_logic(expr);
        case Op::arithmetic:
            return eval_arithmetic(expr);
        case Op::concat:
            return eval_concat(expr);
        case Op::compare:
            return eval_compare(expr);
        case Op::condition:
            return eval_condition(expr);
        case Op::attribute: {
            const Value owner = eval(*expr.parts[0]);
            line_ = expr.line;
            return attribute(owner, expr.text);
        }
        case Op::item:
            return eval_item(expr);
        case Op::slice:
            break;  // only inside an item
        case Op::call:
            return eval_call(expr);
        case Op::filter:
            return eval_filter(expr);
        case Op::test:
            return eval_test(expr);
    }
    fault("a slice stands outside a subscript");
}

Value Interpreter::eval_all(const Expr& expr, Shape shape) {
    std::vector<Value> items;
    items.reserve(expr.parts.size());
    for (const Expr* part : expr.parts) items.push_back(eval(*part));
    return heap_.sequence(std::move(items), shape);
}

Value Interpreter::eval_dict(const Expr& expr) {
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i < expr.parts.size(); i += 2) {
        Value key = eval(*expr.parts[i]);
        items.emplace_back(std::move(key), eval(*expr.parts[i + 1]));
    }
    return heap_.dict(std::move(items));
}

Value Interpreter::eval_logic(const Expr& expr) {
    const bool stops_at = expr.op == Op::logic_or;
    Value value;
    for (const Expr* part : expr.parts) {
        value = eval(*part);
        if (truth(value) == stops_at) break;
    }
    return value;
}

Value Interpreter::eval_arithmetic(const Expr& expr) {
    Value value = eval(*expr.parts[0]);
    for (std::size_t i = 1; i < expr.parts.size(); ++i) {
        const Value right = eval(*expr.parts[i]);
        line_ = expr.parts[i]->line;
        value = arithmetic(heap_, expr.operators[i - 1], value, right);
    }
    return value;
}

Value Interpreter::eval_concat(const Expr& expr) {
    TextBuilder out(heap_);
    for (const Expr* part : expr.parts) {
        const Value value = eval(*part);
        if (value.is_string()) out.append(value.text());
        else out.append(to_text(heap_, value));
    }
    return heap_.text(out.take());
}

Value Interpreter::eval_compare(const Expr& expr) {
    Value left = eval(*expr.parts[0]);
    for (std::size_t i = 1; i < expr.parts.size(); ++i) {
        Value right = eval(*expr.parts[i]);
        if (!compare_values(heap_, expr.operators[i - 1], left, right)) return Value::boolean(false);
        left = std::move(right);
    }
    return Value::boolean(true);
}

Value Interpreter::eval_condition(const Expr& expr) {
    if (truth(eval(*expr.parts[0]))) return eval(*expr.parts[1]);
    if (expr.parts[2] != nullptr) return eval(*expr.parts[2]);
    return heap_.undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Interpreter::eval_item(const Expr& expr) {
    const Value owner = eval(*expr.parts[0]);
    if (expr.parts[1]->op == Op::slice) return eval_slice(owner, *expr.parts[1]);
    const Value key = eval(*expr.parts[1]);
    line_ = expr.line;
    return item(owner, key);
}

namespace {

/// The positions that start:stop:step takes out of `length` items, as Python counts them.
struct Slice {
    int64_t start = 0, stop = 0, step = 1;
    int64_t count() const {
        if (step > 0) return stop > start ? (stop - start - 1) / step + 1 : 0;
        return start > stop ? (start - stop - 1) / -step + 1 : 0;
    }
};

Slice resolve_slice(const Value bounds[3], int64_t length) {
    const auto whole = [&](const Value& bound) {
        if (!bound.is_whole()) fault("slice indices must be integers or None");
        return bound.as_int();
    };
    Slice slice;
    if (!bounds[2].is(Kind::none)) slice.step = whole(bounds[2]);
    if (slice.step == 0) fault("slice step cannot be zero");
    slice.step = std::clamp(slice.step, -INT64_MAX, INT64_MAX);
    const int64_t low = slice.step > 0 ? 0 : -1, high = slice.step > 0 ? length : length - 1;
    const auto place = [&](const Value& bound, int64_t fallback) {
        if (bound.is(Kind::none)) return fallback;
        const int64_t at = whole(bound);
        return std::clamp(at < 0 ? std::max(at, -length - 1) + length : at, low, high);
    };
    slice.start = place(bounds[0], slice.step > 0 ? low : high);
    slice.stop = place(bounds[1], slice.step > 0 ? high : low);
    return slice;
}

Value slice_text(Heap& heap, const StringObject& string, const Slice& slice) {
    const Text& text = string.text;
    heap.step_chars(text.size());
    if (slice.step == 1) {
        if (slice.start >= slice.stop) return heap.text("", true);
        const int64_t begin = string.ascii() ? slice.start : byte_of_char(text.bytes(), slice.start);
        const int64_t end = string.ascii() ? slice.stop : byte_of_char(text.bytes(), slice.stop);
        return heap.text(text.part(begin, end), string.markup);
    }
    TextBuilder out(heap);
    const int64_t count = slice.count();
    int64_t at = byte_of_char(text.bytes(), slice.start);
    for (int64_t i = 0; i < count; ++i) {
        out.append(text, at, at + char_at(text.bytes(), at).bytes);
        if (i + 1 == count) break;
        for (int64_t to = 0; to < slice.step; ++to) at += char_at(text.bytes(), at).bytes;
        for (int64_t to = 0; to > slice.step; --to) at = char_before(text.bytes(), at);
    }
    return heap.text(out.take(), string.markup);
}

}  // namespace

Value Interpreter::eval_slice(const Value& value, const Expr& expr) {
    Value bounds[3] = {Value::none(), Value::none(), Value::none()};
    for (std::size_t i = 0; i < 3; ++i) {
        if (expr.parts[i] != nullptr) bounds[i] = eval(*expr.parts[i]);
    }
    line_ = expr.line;
    if (value.is_undefined()) throw Fault(value.undefined_message());
    if (value.is_string()) return slice_text(heap_, value.string(), resolve_slice(bounds, value.string().chars));
    if (!value.is(Kind::sequence) || !value.sequence().indexable()) {
        fault("'{}' object cannot be sliced", type_name(value));
    }
    const SequenceObject& sequence = value.sequence();
    const Slice slice = resolve_slice(bounds, static_cast<int64_t>(sequence.items.size()));
    std::vector<Value> items;
    const int64_t count = slice.count();
    for (int64_t i = 0, at = slice.start; i < count; ++i, at += i < count ? slice.step : 0) {
        items.push_back(sequence.items[static_cast<std::size_t>(at)]);
    }
    return heap_.sequence(std::move(items), sequence.shape == Shape::group ? Shape::tuple : sequence.shape);
}

void Interpreter::eval_arguments(const Expr& expr, Arguments& out) {
    out.positional.reserve(expr.arguments.size());
    for (const Expr* argument : expr.arguments) out.positional.push_back(eval(*argument));
    for (const auto& [name, argument] : expr.named) out.named.emplace_back(name, eval(*argument));
    if (expr.rest != nullptr) {
        for (Value& value : iterate(heap_, eval(*expr.rest))) out.positional.push_back(std::move(value));
    }
    if (expr.named_rest != nullptr) {
        const Value rest = eval(*expr.named_rest);
        if (!rest.is(Kind::dict)) fault("argument after ** must be a mapping, not {}", type_name(rest));
        for (const auto& [key, value] : rest.dict().items) {
            if (!key.is_string()) fault("keywords must be strings");
            out.named.emplace_back(key.bytes(), value);
        }
    }
    for (std::size_t i = 0; i < out.named.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            heap_.step();
            if (out.named[i].first == out.named[j].first) fault("keyword argument repeated: {}", out.named[i].first);
        }
    }
    line_ = expr.line;
}

Value Interpreter::eval_call(const Expr& expr) {
    const Value callee = eval(*expr.parts[0]);
    Arguments arguments;
    eval_arguments(expr, arguments);
    return call(callee, arguments);
}

Value Interpreter::eval_filter(const Expr& expr) { return filter_through(expr, Value()); }

/// A chain of filters; its innermost input is `input` if the chain has none of its own.
Value Interpreter::filter_through(const Expr& chain, Value input) {
    if (chain.parts[0] != nullptr) {
        const Expr& inner = *chain.parts[0];
        if (inner.op == Op::filter) {
            const Depth depth(*this);
            input = filter_through(inner, std::move(input));
        } else {
            input = eval(inner);
        }
    }
    Arguments arguments;
    eval_arguments(chain, arguments);
    heap_.step();
    if (chain.filter == nullptr) fault("there is no filter '{}'", chain.text);
    return chain.filter(*this, input, arguments);
}

Value Interpreter::eval_test(const Expr& expr) {
    const Value input = eval(*expr.parts[0]);
    Arguments arguments;
    eval_arguments(expr, arguments);
    if (expr.test == nullptr) fault("there is no test '{}'", expr.text);
    return Value::boolean(expr.test(*this, input, arguments));
}

Value Interpreter::apply_filter(std::string_view name, const Value& input, Arguments& arguments) {
    const Filter filter = find_filter(name);
    if (filter == nullptr) fault("there is no filter '{}'", name);
    heap_.step();
    return filter(*this, input, arguments);
}

bool Interpreter::apply_test(std::string_view name, const Value& input, Arguments& arguments) {
    const Test test = find_test(name);
    if (test == nullptr) fault("there is no test '{}'", name);
    heap_.step();
    return test(*this, input, arguments);
}

}  // namespace riptide::jinja
