// Arithmetic and comparison, as Python has them (whole numbers up to 64 bits).
#include <cmath>

#include "text/jinja/interpreter.h"

namespace riptide::jinja {
namespace {

std::string_view sign_text(Sign sign) {
    constexpr std::string_view kTexts[] = {
        "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
    return kTexts[static_cast<int>(sign)];
}

[[noreturn]] void unsupported(Sign sign, const Value& a, const Value& b) {
    if (a.is_undefined()) throw Fault(a.undefined_message());
    if (b.is_undefined()) throw Fault(b.undefined_message());
    if (sign == Sign::add && a.is_string()) fault("can only concatenate str (not \"{}\") to str", type_name(b));
    fault("unsupported operand types for {}: '{}' and '{}'", sign_text(sign), type_name(a), type_name(b));
}

[[noreturn]] void overflow() { fault("the result of a calculation is beyond 64 bits"); }
[[noreturn]] void division_by_zero() { fault("division by zero"); }

int64_t power_whole(int64_t base, int64_t exponent) {
    int64_t result = 1;
    while (true) {
        if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
        exponent >>= 1;
        if (exponent == 0) return result;
        if (__builtin_mul_overflow(base, base, &base)) overflow();
    }
}

Value whole_arithmetic(Sign sign, int64_t a, int64_t b) {
    int64_t result = 0;
    bool too_big = false;
    switch (sign) {
        case Sign::add:
            too_big = __builtin_add_overflow(a, b, &result);
            break;
        case Sign::sub:
            too_big = __builtin_sub_overflow(a, b, &result);
            break;
        case Sign::mul:
            too_big = __builtin_mul_overflow(a, b, &result);
            break;
        case Sign::div:
            if (b == 0) division_by_zero();
            return Value::floating(static_cast<double>(a) / static_cast<double>(b));
        case Sign::floor_div:
        case Sign::mod: {
            if (b == 0) division_by_zero();
            if (b == -1) {  // INT64_MIN / -1 would trap
                if (sign == Sign::mod) return Value::integer(0);
                too_big = __builtin_sub_overflow(int64_t{0}, a, &result);
                break;
            }
            const bool down = a % b != 0 && (a < 0) != (b < 0);
            result = sign == Sign::mod ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
            break;
        }
        default:
            if (b >= 0) return Value::integer(power_whole(a, b));
            if (a == 0) division_by_zero();
            return Value::floating(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    if (too_big) overflow();
    return Value::integer(result);
}

Value real_arithmetic(Sign sign, double a, double b) {
    switch (sign) {
        case Sign::add:
            return Value::floating(a + b);
        case Sign::sub:
            return Value::floating(a - b);
        case Sign::mul:
            return Value::floating(a * b);
        case Sign::div:
            if (b == 0) division_by_zero();
            return Value::floating(a / b);
        case Sign::floor_div:
        case Sign::mod: {
            if (b == 0) division_by_zero();
            double rest = std::fmod(a, b);
            if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
            else if (rest == 0) rest = std::copysign(0.0, b);
            if (sign == Sign::mod) return Value::floating(rest);
            const double quotient = (a - rest) / b;
            return Value::floating(std::floor(quotient) + (quotient - std::floor(quotient) > 0.5 ? 1 : 0));
        }
        default:
            if (a == 0 && b < 0) division_by_zero();
            if (a < 0 && b != std::floor(b)) fault("a negative number to a fractional power is no real number");
            const double result = std::pow(a, b);
            if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) fault("the result of ** is out of range");
            return Value::floating(result);
    }
}

Text repeat_text(Heap& heap, const Text& text, int64_t count) {
    if (text.empty()) return {};
    heap.check_text(count > INT64_MAX / text.memory() ? INT64_MAX : count * text.memory());
    TextBuilder out(heap);
    for (Text power = text; count > 0; count >>= 1) {  // of as many as the bit means
        if ((count & 1) != 0) out.append(power);
        if (count == 1) break;
        Text twice = power;
        twice.append(power);
        power = std::move(twice);
    }
    return out.take();
}

Value repeat(Heap& heap, const Value& value, int64_t count) {
    count = std::max<int64_t>(count, 0);
    if (value.is_string()) return heap.text(repeat_text(heap, value.text(), count), value.string().markup);
    const SequenceObject& sequence = value.sequence();
    std::vector<Value> items;
    if (!sequence.items.empty()) {
        for (int64_t i = 0; i < count; ++i) {
            heap.step(static_cast<int64_t>(sequence.items.size()));
            items.insert(items.end(), sequence.items.begin(), sequence.items.end());
        }
    }
    return heap.sequence(std::move(items), sequence.shape == Shape::group ? Shape::tuple : sequence.shape);
}

bool is_joinable(const Value& value) { return value.is(Kind::sequence) && value.sequence().shape <= Shape::group; }

Value add_texts(Heap& heap, const Value& a, const Value& b) {
    TextBuilder out(heap);
    const bool markup = a.string().markup || b.string().markup;
    for (const Value* part : {&a, &b}) {
        if (markup && !part->string().markup) out.append(escape_html(heap, part->text()));
        else out.append(part->text());
    }
    return heap.text(out.take(), markup);
}

Value add_lists(Heap& heap, const Value& a, const Value& b) {
    const bool list = a.sequence().shape == Shape::list;
    if (list != (b.sequence().shape == Shape::list)) unsupported(Sign::add, a, b);
    std::vector<Value> items = a.sequence().items;
    items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
    return heap.sequence(std::move(items), list ? Shape::list : Shape::tuple);
}

}  // namespace

Value arithmetic(Heap& heap, Sign sign, const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) {
        if (a.is_whole() && b.is_whole()) return whole_arithmetic(sign, a.as_int(), b.as_int());
        return real_arithmetic(sign, a.as_double(), b.as_double());
    }
    if (sign == Sign::add && a.is_string() && b.is_string()) return add_texts(heap, a, b);
    if (sign == Sign::add && is_joinable(a) && is_joinable(b)) return add_lists(heap, a, b);
    if (sign == Sign::mod && a.is_string()) return format_percent(heap, a, b);
    if (sign == Sign::mul) {
        if ((a.is_string() || is_joinable(a)) && b.is_whole()) return repeat(heap, a, b.as_int());
        if ((b.is_string() || is_joinable(b)) && a.is_whole()) return repeat(heap, b, a.as_int());
    }
    unsupported(sign, a, b);
}

bool compare_values(Heap& heap, Sign sign, const Value& a, const Value& b) {
    switch (sign) {
        case Sign::eq:
            return equal(heap, a, b);
        case Sign::ne:
            return !equal(heap, a, b);
        case Sign::in:
            return contains(heap, b, a);
        case Sign::not_in:
            return !contains(heap, b, a);
        default:
            return ordered(heap, a, b, sign_text(sign));
    }
}

}  // namespace riptide::jinja
