// The functions that every template sees, and the methods of dicts, lists, loops and cyclers.
#include <algorithm>

#include "text/jinja/interpreter.h"

namespace riptide::jinja {
namespace {

// ---- functions

Value g_range(Interpreter& in, const Value&, Arguments& arguments) {
    Bound args(arguments, "range", {"start", "stop", "step"});
    args[0];  // must be given
    const bool one = !args.has(1);
    for (std::size_t i = 0; i < 3; ++i) {
        if (args.has(i) && !args[i].is_whole())
            fault("'{}' object cannot be interpreted as an integer", type_name(args[i]));
    }
    const int64_t start = one ? 0 : args[0].as_int(), stop = one ? args[0].as_int() : args[1].as_int();
    const int64_t step = args.has(2) ? args[2].as_int() : 1;
    if (step == 0) fault("range() arg 3 must not be zero");
    const int64_t limit = in.heap().limits().range_items;
    const double count = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
    if (count > static_cast<double>(limit)) fault("range() would have more than {} items", limit);
    std::vector<Value> items;
    for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
        items.push_back(Value::integer(at));
        if (__builtin_add_overflow(at, step, &at)) break;
    }
    return in.heap().sequence(std::move(items), Shape::range);
}

Value g_dict(Interpreter& in, const Value&, Arguments& arguments) {
    std::vector<std::pair<Value, Value>> items;
    if (arguments.positional.size() > 1) fault("dict() takes at most 1 argument");
    if (arguments.positional.size() == 1 && arguments.positional[0].is(Kind::dict)) {
        items = arguments.positional[0].dict().items;
    } else if (arguments.positional.size() == 1) {
        for (const Value& pair : iterate(in.heap(), arguments.positional[0])) {
            const std::vector<Value> parts = iterate(in.heap(), pair);
            if (parts.size() != 2) fault("dict() needs pairs, not {} values", parts.size());
            items.emplace_back(parts[0], parts[1]);
        }
    }
    for (const auto& [name, value] : arguments.named) items.emplace_back(in.heap().text(name, true), value);
    return in.heap().dict(std::move(items));
}

Value g_namespace(Interpreter& in, const Value&, Arguments& arguments) {
    const Value all = g_dict(in, Value(), arguments);
    Space& space = in.new_space(Space::What::name_space);
    for (const auto& [key, value] : all.dict().items) {
        if (!key.is_string()) fault("a namespace's attributes need names");
        in.heap().take(key.text().size() + 96);
        space.attributes.emplace_back(key.bytes(), value);
    }
    return Value::space(&space);
}

Value g_cycler(Interpreter& in, const Value&, Arguments& arguments) {
    if (arguments.positional.empty() || !arguments.named.empty()) fault("cycler() needs at least one item");
    Space& space = in.new_space(Space::What::cycler);
    in.heap().take(static_cast<int64_t>(arguments.positional.size() * sizeof(Value)));
    space.items = arguments.positional;
    return Value::space(&space);
}

Value g_joiner(Interpreter& in, const Value&, Arguments& arguments) {
    Bound args(arguments, "joiner", {"sep"});
    Space& space = in.new_space(Space::What::joiner);
    space.items = {args.has(0) ? args[0] : in.heap().text(", ", true)};
    return Value::space(&space);
}

Value g_raise_exception(Interpreter& in, const Value&, Arguments& arguments) {
    Bound args(arguments, "raise_exception", {"message"});
    throw Raised(to_text(in.heap(), args[0]).bytes());
}

Value g_strftime_now(Interpreter& in, const Value&, Arguments& arguments) {
    Bound args(arguments, "strftime_now", {"format"});
    const Text& format = args.text(0);
    std::tm now{};
    if (in.options().now) {
        now = *in.options().now;
        std::tm copy = now;  // timegm fills in the day of the week and of the year
        timegm(&copy);
        now.tm_wday = copy.tm_wday;
        now.tm_yday = copy.tm_yday;
    } else {
        const std::time_t seconds = std::time(nullptr);
        localtime_r(&seconds, &now);
    }
    if (format.size() > 1000 || format.bytes().find('\0') != std::string::npos)
        fault("strftime_now(): the format is too long");
    char text[4096];
    // A blank in front tells an empty result from one that does not fit.
    const std::size_t size = std::strftime(text, sizeof text, (" " + format.bytes()).c_str(), &now);
    if (size == 0) fault("strftime_now(): the result is too long");
    return in.heap().text(std::string_view(text + 1, size - 1), format.all_trusted());
}

// ---- dicts

Value d_get(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "get", {"key", "default"});
    const Value* found = self.dict().find(in.heap(), args[0]);
    return found != nullptr ? *found : args.get(1, Value::none());
}
Value d_items(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "items", {});
    std::vector<Value> items;
    for (const auto& [key, value] : self.dict().items) items.push_back(in.heap().sequence({key, value}, Shape::tuple));
    return in.heap().sequence(std::move(items), Shape::items);
}
Value d_keys(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "keys", {});
    std::vector<Value> items;
    for (const auto& item : self.dict().items) items.push_back(item.first);
    return in.heap().sequence(std::move(items), Shape::keys);
}
Value d_values(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "values", {});
    std::vector<Value> items;
    for (const auto& item : self.dict().items) items.push_back(item.second);
    return in.heap().sequence(std::move(items), Shape::values);
}
Value m_copy(Interpreter&, const Value& self, Arguments& arguments) {
    Bound args(arguments, "copy", {});
    return self;
}
Value d_fromkeys(Interpreter& in, const Value&, Arguments& arguments) {
    Bound args(arguments, "fromkeys", {"iterable", "value"});
    std::vector<std::pair<Value, Value>> items;
    for (Value& key : iterate(in.heap(), args[0])) items.emplace_back(std::move(key), args.get(1, Value::none()));
    return in.heap().dict(std::move(items));
}

// ---- lists and tuples

Value l_index(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "index", {"value", "start", "stop"});
    const std::vector<Value>& items = self.sequence().items;
    const auto count = static_cast<int64_t>(items.size());
    const auto place = [&](int64_t at) {
        return std::clamp<int64_t>(at < 0 ? std::max(at, -count) + count : at, 0, count);
    };
    for (int64_t i = place(args.number(1, 0)); i < place(args.number(2, count)); ++i) {
        if (equal(in.heap(), items[static_cast<std::size_t>(i)], args[0])) return Value::integer(i);
    }
    fault("the value is not in the list");
}
Value l_count(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "count", {"value"});
    const std::vector<Value>& items = self.sequence().items;
    return Value::integer(
        std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(in.heap(), item, args[0]); }));
}

// ---- loops and cyclers

Value loop_cycle(Interpreter&, const Value& self, Arguments& arguments) {
    if (arguments.positional.empty() || !arguments.named.empty()) fault("no items for cycling given");
    return arguments.positional[static_cast<std::size_t>(self.loop().index) % arguments.positional.size()];
}
Value loop_changed(Interpreter& in, const Value& self, Arguments& arguments) {
    std::vector<Value>& before = self.loop().changed;
    bool same = self.loop().changed_known && before.size() == arguments.positional.size();
    for (std::size_t i = 0; same && i < before.size(); ++i) same = equal(in.heap(), before[i], arguments.positional[i]);
    if (self.loop().count > 0 && !self.loop().items.empty()) before = arguments.positional;
    self.loop().changed_known = true;
    return Value::boolean(!same);
}
Value cycler_next(Interpreter&, const Value& self, Arguments& arguments) {
    Bound args(arguments, "next", {});
    Space& space = self.space();
    Value out = space.items[space.position];
    space.position = (space.position + 1) % space.items.size();
    return out;
}
Value cycler_reset(Interpreter&, const Value& self, Arguments& arguments) {
    Bound args(arguments, "reset", {});
    self.space().position = 0;
    return Value::none();
}

struct GlobalEntry {
    std::string_view name;
    Method method;
};
constexpr GlobalEntry kGlobals[] = {{"cycler", g_cycler},
                                    {"dict", g_dict},
                                    {"joiner", g_joiner},
                                    {"namespace", g_namespace},
                                    {"range", g_range},
                                    {"raise_exception", g_raise_exception},
                                    {"strftime_now", g_strftime_now}};
constexpr GlobalEntry kDict[] = {{"copy", m_copy},   {"fromkeys", d_fromkeys}, {"get", d_get},
                                 {"items", d_items}, {"keys", d_keys},         {"values", d_values}};
constexpr GlobalEntry kList[] = {{"copy", m_copy}, {"count", l_count}, {"index", l_index}};
constexpr GlobalEntry kTuple[] = {{"count", l_count}, {"index", l_index}};
constexpr GlobalEntry kLoop[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};
constexpr GlobalEntry kCycler[] = {{"next", cycler_next}, {"reset", cycler_reset}};

template <std::size_t N>
Method find_method(const GlobalEntry (&entries)[N], std::string_view name) {
    for (const GlobalEntry& entry : entries) {
        if (entry.name == name) return entry.method;
    }
    return nullptr;
}

}  // namespace

Space& Interpreter::new_space(Space::What what) {
    heap_.take(static_cast<int64_t>(sizeof(Space)));
    spaces_.emplace_back().what = what;
    return spaces_.back();
}

Method find_global(std::string_view name) { return find_method(kGlobals, name); }

Method find_container_method(const Value& value, std::string_view name) {
    if (value.is(Kind::dict)) return find_method(kDict, name);
    if (value.is(Kind::loop)) return find_method(kLoop, name);
    if (value.is(Kind::space) && value.space().what == Space::What::cycler) return find_method(kCycler, name);
    if (!value.is(Kind::sequence)) return nullptr;
    if (value.sequence().shape == Shape::list) return find_method(kList, name);
    return value.sequence().indexable() ? find_method(kTuple, name) : nullptr;
}

/// What would change a list or dict in place: the sandbox hides it.
bool is_unsafe_method(const Value& value, std::string_view name) {
    static constexpr std::string_view kDictUnsafe[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static constexpr std::string_view kListUnsafe[] = {"append", "clear", "pop",    "reverse",
                                                       "insert", "sort",  "extend", "remove"};
    if (value.is(Kind::dict))
        return std::find(std::begin(kDictUnsafe), std::end(kDictUnsafe), name) != std::end(kDictUnsafe);
    if (!value.is(Kind::sequence) || value.sequence().shape != Shape::list) return false;
    return std::find(std::begin(kListUnsafe), std::end(kListUnsafe), name) != std::end(kListUnsafe);
}

}  // namespace riptide::jinja
