// The tests of Jinja: x is NAME.
#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"

namespace riptide::jinja {
namespace {

/// The one argument of a test.
const Value& other(Arguments& arguments, std::string_view test) {
    if (arguments.positional.size() != 1 || !arguments.named.empty()) fault("the test '{}' takes one argument", test);
    return arguments.positional[0];
}
void no_arguments(Arguments& arguments, std::string_view test) {
    if (!arguments.positional.empty() || !arguments.named.empty()) fault("the test '{}' takes no arguments", test);
}

bool t_defined(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "defined"), !v.is_undefined(); }
bool t_undefined(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "undefined"), v.is_undefined(); }
bool t_none(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "none"), v.is(Kind::none); }
bool t_boolean(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "boolean"), v.is(Kind::boolean); }
bool t_true(Interpreter&, const Value& v, Arguments& a) {
    return no_arguments(a, "true"), v.is(Kind::boolean) && v.as_bool();
}
bool t_false(Interpreter&, const Value& v, Arguments& a) {
    return no_arguments(a, "false"), v.is(Kind::boolean) && !v.as_bool();
}
bool t_integer(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "integer"), v.is(Kind::integer); }
bool t_float(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "float"), v.is(Kind::floating); }
bool t_number(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "number"), v.is_number(); }
bool t_string(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "string"), v.is_string(); }
bool t_mapping(Interpreter&, const Value& v, Arguments& a) { return no_arguments(a, "mapping"), v.is(Kind::dict); }
bool t_escaped(Interpreter&, const Value& v, Arguments& a) {
    return no_arguments(a, "escaped"), v.is_string() && v.string().markup;
}

bool t_sequence(Interpreter&, const Value& v, Arguments& a) {
    no_arguments(a, "sequence");
    if (v.is(Kind::sequence)) return v.sequence().indexable();
    return v.is_string() || v.is(Kind::dict) || v.is_undefined();
}
bool t_iterable(Interpreter&, const Value& v, Arguments& a) {
    no_arguments(a, "iterable");
    return v.is_undefined() || v.is_string() || v.is(Kind::sequence) || v.is(Kind::dict) || v.is(Kind::loop);
}
bool t_callable(Interpreter&, const Value& v, Arguments& a) {
    no_arguments(a, "callable");
    return v.is(Kind::callable) || v.is(Kind::loop) || v.is_undefined() ||
           (v.is(Kind::space) && v.space().what == Space::What::joiner);
}

int64_t remainder(Heap& heap, const Value& value, const Value& divisor) {
    const Value rest = arithmetic(heap, Sign::mod, value, divisor);
    if (!rest.is_number()) fault("'{}' is no number", type_name(value));
    return rest.as_double() == 0 ? 0 : rest.as_double() == 1 ? 1 : 2;
}
bool t_odd(Interpreter& in, const Value& v, Arguments& a) {
    return no_arguments(a, "odd"), remainder(in.heap(), v, Value::integer(2)) == 1;
}
bool t_even(Interpreter& in, const Value& v, Arguments& a) {
    return no_arguments(a, "even"), remainder(in.heap(), v, Value::integer(2)) == 0;
}
bool t_divisibleby(Interpreter& in, const Value& v, Arguments& a) {
    Bound args(a, "divisibleby", {"num"});
    return remainder(in.heap(), v, args[0]) == 0;
}

/// str.islower, str.isupper: cased letters, all of one case.
bool all_cased(Interpreter& in, const Value& value, bool upper) {
    const Text text = to_text(in.heap(), value);
    in.heap().step_chars(text.size());
    bool any = false;
    for (int64_t at = 0; at < text.size();) {
        const Char c = char_at(text.bytes(), at);
        if (upper ? is_lower(c.code) : is_upper(c.code)) return false;
        any |= upper ? is_upper(c.code) : is_lower(c.code);
        at += c.bytes;
    }
    return any;
}
bool t_lower(Interpreter& in, const Value& v, Arguments& a) {
    return no_arguments(a, "lower"), all_cased(in, v, false);
}
bool t_upper(Interpreter& in, const Value& v, Arguments& a) { return no_arguments(a, "upper"), all_cased(in, v, true); }

bool t_sameas(Interpreter& in, const Value& v, Arguments& a) {
    const Value& o = other(a, "sameas");
    if (v.kind() != o.kind()) return false;
    if (v.is(Kind::sequence) || v.is(Kind::dict) || v.is(Kind::space) || v.is(Kind::loop))
        return v.identity() == o.identity();
    return equal(in.heap(), v, o);
}
bool t_in(Interpreter& in, const Value& v, Arguments& a) { return contains(in.heap(), other(a, "in"), v); }
bool t_eq(Interpreter& in, const Value& v, Arguments& a) { return equal(in.heap(), v, other(a, "eq")); }
bool t_ne(Interpreter& in, const Value& v, Arguments& a) { return !equal(in.heap(), v, other(a, "ne")); }
bool t_lt(Interpreter& in, const Value& v, Arguments& a) { return ordered(in.heap(), v, other(a, "lt"), "<"); }
bool t_le(Interpreter& in, const Value& v, Arguments& a) { return ordered(in.heap(), v, other(a, "le"), "<="); }
bool t_gt(Interpreter& in, const Value& v, Arguments& a) { return ordered(in.heap(), v, other(a, "gt"), ">"); }
bool t_ge(Interpreter& in, const Value& v, Arguments& a) { return ordered(in.heap(), v, other(a, "ge"), ">="); }

bool t_filter(Interpreter&, const Value& v, Arguments& a) {
    return no_arguments(a, "filter"), v.is_string() && find_filter(v.bytes()) != nullptr;
}
bool t_test(Interpreter&, const Value& v, Arguments& a) {
    return no_arguments(a, "test"), v.is_string() && find_test(v.bytes()) != nullptr;
}

struct TestEntry {
    std::string_view name;
    Test test;
};
constexpr TestEntry kTests[] = {
    {"!=", t_ne},
    {"<", t_lt},
    {"<=", t_le},
    {"==", t_eq},
    {">", t_gt},
    {">=", t_ge},
    {"boolean", t_boolean},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"escaped", t_escaped},
    {"even", t_even},
    {"false", t_false},
    {"filter", t_filter},
    {"float", t_float},
    {"ge", t_ge},
    {"greaterthan", t_gt},
    {"gt", t_gt},
    {"in", t_in},
    {"integer", t_integer},
    {"iterable", t_iterable},
    {"le", t_le},
    {"lessthan", t_lt},
    {"lower", t_lower},
    {"lt", t_lt},
    {"mapping", t_mapping},
    {"ne", t_ne},
    {"none", t_none},
    {"number", t_number},
    {"odd", t_odd},
    {"sameas", t_sameas},
    {"sequence", t_sequence},
    {"string", t_string},
    {"test", t_test},
    {"true", t_true},
    {"undefined", t_undefined},
    {"upper", t_upper},
};

}  // namespace

Test find_test(std::string_view name) {
    for (const TestEntry& entry : kTests) {
        if (entry.name == name) return entry.test;
    }
    return nullptr;
}

}  // namespace riptide::jinja
