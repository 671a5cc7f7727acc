// Equality, order and hashes of values, as Python has them.
#include <cmath>

#include "text/jinja/value.h"

namespace riptide::jinja {
namespace {

/// A number exactly, for comparing: whole numbers fit __int128.
__extension__ typedef __int128 Wide;
Wide wide(const Value& value) {
    return value.is_big() ? static_cast<Wide>(value.as_big()) : static_cast<Wide>(value.as_int());
}

/// -1, 0, 1, or 2 if one is NaN.
int compare_numbers(const Value& a, const Value& b) {
    if (a.is_whole() && b.is_whole()) return wide(a) < wide(b) ? -1 : wide(a) > wide(b) ? 1 : 0;
    const double x = a.as_double(), y = b.as_double();
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y ? 1 : 0;
}

bool same_text(Heap& heap, const Value& a, const Value& b) {
    if (a.text().size() != b.text().size()) return false;
    heap.step_bytes(a.text().size());
    return a.bytes() == b.bytes();
}

bool is_list(const Value& value) { return value.is(Kind::sequence) && value.sequence().shape == Shape::list; }
bool is_tuple(const Value& value) {
    return value.is(Kind::sequence) &&
           (value.sequence().shape == Shape::tuple || value.sequence().shape == Shape::group);
}

bool equal_items(Heap& heap, const std::vector<Value>& a, const std::vector<Value>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!equal(heap, a[i], b[i])) return false;
    }
    return true;
}

bool equal_dicts(Heap& heap, const DictObject& a, const DictObject& b) {
    if (a.items.size() != b.items.size()) return false;
    for (const auto& [key, value] : a.items) {
        const Value* other = b.find(heap, key);
        if (other == nullptr || !equal(heap, value, *other)) return false;
    }
    return true;
}

/// As compare(), 2 if a NaN decides.
int order(Heap& heap, const Value& a, const Value& b, std::string_view op) {
    if (a.is_number() && b.is_number()) return compare_numbers(a, b);
    heap.step();
    if (a.is_string() && b.is_string()) {
        heap.step_bytes(std::min(a.text().size(), b.text().size()));
        const int result = a.bytes().compare(b.bytes());
        return result < 0 ? -1 : result > 0 ? 1 : 0;
    }
    if ((is_list(a) && is_list(b)) || (is_tuple(a) && is_tuple(b))) {
        const std::vector<Value>&x = a.sequence().items, &y = b.sequence().items;
        for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
            if (!equal(heap, x[i], y[i])) return order(heap, x[i], y[i], op);
        }
        return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
    }
    if (a.is_undefined()) throw Fault(a.undefined_message());
    if (b.is_undefined()) throw Fault(b.undefined_message());
    fault("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
    heap.step();
    if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
        case Kind::undefined:
        case Kind::none:
            return true;
        case Kind::string:
            return same_text(heap, a, b);
        case Kind::sequence:
            if (a.identity() == b.identity()) return true;
            if (is_list(a) != is_list(b) || is_tuple(a) != is_tuple(b)) return false;
            if (is_list(a) || is_tuple(a) || (a.sequence().shape == b.sequence().shape && a.sequence().sized())) {
                return equal_items(heap, a.sequence().items, b.sequence().items);
            }
            return false;
        case Kind::dict:
            return a.identity() == b.identity() || equal_dicts(heap, a.dict(), b.dict());
        default:
            return a.identity() == b.identity();
    }
}

int compare(Heap& heap, const Value& a, const Value& b, std::string_view op) {
    const int result = order(heap, a, b, op);
    return result == 2 ? 0 : result;
}

bool ordered(Heap& heap, const Value& a, const Value& b, std::string_view op) {
    const int result = order(heap, a, b, op);
    if (result == 2) return false;
    if (op == "<") return result < 0;
    if (op == "<=") return result <= 0;
    if (op == ">") return result > 0;
    return result >= 0;
}

std::size_t hash(Heap& heap, const Value& value) {
    heap.step();
    switch (value.kind()) {
        case Kind::boolean:
        case Kind::integer:
        case Kind::floating:
            return std::hash<double>{}(value.as_double());
        case Kind::string:
            heap.step_bytes(value.text().size());
            return std::hash<std::string_view>{}(value.bytes());
        case Kind::dict:
            fault("unhashable type: 'dict'");
        case Kind::sequence: {
            if (!is_tuple(value)) {
                if (is_list(value)) fault("unhashable type: 'list'");
                return std::hash<const void*>{}(value.identity());
            }
            std::size_t sum = 17;
            for (const Value& item : value.sequence().items) sum = sum * 31 + hash(heap, item);
            return sum;
        }
        default:
            return std::hash<const void*>{}(value.identity());
    }
}

}  // namespace riptide::jinja
