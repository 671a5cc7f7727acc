// The filters that work on sequences and mappings.
#include <algorithm>

#include "text/jinja/filters.h"

namespace riptide::jinja {
namespace {

/// Which part of an item a filter looks at: "name", "a.b", "0", a number, or (not given) the item itself.
class Getter {
  public:
    Getter(Interpreter& in, const Value* attribute, bool fold_case = false, const Value* fallback = nullptr)
        : in_(in), fold_case_(fold_case), fallback_(fallback) {
        if (attribute == nullptr || attribute->is(Kind::none)) return;
        if (!attribute->is_string()) {
            parts_.push_back(*attribute);
            return;
        }
        std::string_view rest = attribute->bytes();
        while (true) {
            const std::size_t dot = std::min(rest.find('.'), rest.size());
            const std::string_view part = rest.substr(0, dot);
            const bool number =
                !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
            if (number) parts_.push_back(Value::integer(std::stoll(std::string(part))));
            else parts_.push_back(in.heap().text(part, true));
            if (dot == rest.size()) return;
            rest = rest.substr(dot + 1);
        }
    }
    Value operator()(const Value& item) const {
        Value value = item;
        for (const Value& part : parts_) {
            value = in_.item(value, part);
            if (value.is_undefined() && fallback_ != nullptr) value = *fallback_;
        }
        if (fold_case_ && value.is_string()) return in_.heap().text(map_case(in_.heap(), value.text(), Case::lower));
        return value;
    }

  private:
    Interpreter& in_;
    std::vector<Value> parts_;
    bool fold_case_;
    const Value* fallback_;
};

const Value* pointer(const Bound& args, std::size_t i) { return args.has(i) ? &args[i] : nullptr; }

Value f_length(Interpreter&, const Value& input, Arguments& arguments) {
    Bound args(arguments, "length", {});
    return Value::integer(length(input));
}

Value f_list(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "list", {});
    return in.heap().sequence(iterate(in.heap(), input));
}

Value f_join(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "join", {"d", "attribute"});
    const Text separator = args.has(0) ? to_text(in.heap(), args[0]) : Text();
    const Getter get(in, pointer(args, 1));
    TextBuilder out(in.heap());
    bool first = true;
    for (const Value& item : iterate(in.heap(), input)) {
        if (!first) out.append(separator);
        first = false;
        out.append(to_text(in.heap(), get(item)));
    }
    return in.heap().text(out.take());
}

Value f_first(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "first", {});
    if (input.is(Kind::sequence)) {
        const SequenceObject& sequence = input.sequence();
        if (sequence.taken < sequence.items.size()) {
            const Value& found = sequence.items[sequence.taken];
            if (!sequence.sized()) ++sequence.taken;
            return found;
        }
    } else if (input.is_string() && !input.text().empty()) {
        return in.heap().text(input.text().part(0, char_at(input.bytes(), 0).bytes));
    } else {
        const std::vector<Value> items = iterate(in.heap(), input);
        if (!items.empty()) return items[0];
    }
    return in.heap().undefined("no first item, the sequence was empty");
}

Value f_last(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "last", {});
    if (input.is(Kind::sequence) && !input.sequence().sized()) fault("'generator' object is not reversible");
    if (input.is_string() && !input.text().empty()) {
        return in.heap().text(input.text().part(char_before(input.bytes(), input.text().size()), input.text().size()));
    }
    const std::vector<Value> items = iterate(in.heap(), input);
    return items.empty() ? in.heap().undefined("no last item, the sequence was empty") : items.back();
}

Value f_reverse(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "reverse", {});
    const bool iterator = input.is(Kind::sequence) && !input.sequence().sized();
    std::vector<Value> items = iterate(in.heap(), input);
    std::reverse(items.begin(), items.end());
    if (!input.is_string()) return in.heap().sequence(std::move(items), iterator ? Shape::list : Shape::iterator);
    TextBuilder out(in.heap());
    for (const Value& item : items) out.append(item.text());
    return in.heap().text(out.take(), input.string().markup);
}

Value f_items(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "items", {});
    if (!input.is(Kind::dict) && !input.is_undefined()) fault("can only get item pairs from a mapping");
    std::vector<Value> items;
    if (input.is(Kind::dict)) {
        for (const auto& [key, value] : input.dict().items)
            items.push_back(in.heap().sequence({key, value}, Shape::tuple));
    }
    return in.heap().sequence(std::move(items), Shape::iterator);
}

/// Items with their keys, sorted by these; equal ones stay in order (also when reversed).
std::vector<Value> sort_by_key(Interpreter& in, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        return reverse ? ordered(in.heap(), b.first, a.first, "<") : ordered(in.heap(), a.first, b.first, "<");
    });
    std::vector<Value> out;
    for (auto& item : keyed) out.push_back(std::move(item.second));
    return out;
}

Value f_dictsort(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
    const std::string by = args.has(1) ? args.text(1).bytes() : "key";
    if (by != "key" && by != "value") fault("dictsort(): 'by' must be key or value");
    if (!input.is(Kind::dict)) fault("'{}' object has no attribute 'items'", type_name(input));
    const Getter get(in, nullptr, !args.flag(0, false));
    std::vector<std::pair<Value, Value>> keyed;
    for (const auto& [key, value] : input.dict().items) {
        keyed.emplace_back(get(by == "key" ? key : value), in.heap().sequence({key, value}, Shape::tuple));
    }
    return in.heap().sequence(sort_by_key(in, std::move(keyed), args.flag(2, false)));
}

Value f_sort(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
    std::vector<Getter> getters;
    std::vector<Value> names;
    if (args.has(2) && args[2].is_string()) {  // several, with commas between them
        std::string_view rest = args[2].bytes();
        for (std::size_t comma = 0; comma != std::string_view::npos;
             rest = rest.substr(std::min(comma + 1, rest.size()))) {
            comma = rest.find(',');
            names.push_back(in.heap().text(rest.substr(0, comma), true));
            if (comma == std::string_view::npos) break;
        }
    } else {
        names.push_back(args.get(2, Value::none()));
    }
    for (const Value& name : names) getters.emplace_back(in, &name, !args.flag(1, false));
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : iterate(in.heap(), input)) {
        std::vector<Value> key;
        for (const Getter& get : getters) key.push_back(get(item));
        keyed.emplace_back(in.heap().sequence(std::move(key)), std::move(item));
    }
    return in.heap().sequence(sort_by_key(in, std::move(keyed), args.flag(0, false)));
}

Value f_unique(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "unique", {"case_sensitive", "attribute"});
    const Getter get(in, pointer(args, 1), !args.flag(0, false));
    std::unordered_multimap<std::size_t, Value> seen;
    std::vector<Value> out;
    for (Value& item : iterate(in.heap(), input)) {
        Value key = get(item);
        const std::size_t code = hash(in.heap(), key);
        const auto [begin, end] = seen.equal_range(code);
        if (std::any_of(begin, end, [&](const auto& other) { return equal(in.heap(), other.second, key); })) continue;
        seen.emplace(code, std::move(key));
        out.push_back(std::move(item));
    }
    return in.heap().sequence(std::move(out), Shape::iterator);
}

Value extreme(Interpreter& in, const Value& input, Arguments& arguments, std::string_view op) {
    Bound args(arguments, op == "<" ? "min" : "max", {"case_sensitive", "attribute"});
    const Getter get(in, pointer(args, 1), !args.flag(0, false));
    const std::vector<Value> items = iterate(in.heap(), input);
    if (items.empty()) return in.heap().undefined("no aggregated item, the sequence was empty");
    Value best = items[0], best_key = get(items[0]);
    for (std::size_t i = 1; i < items.size(); ++i) {
        Value key = get(items[i]);
        if (!ordered(in.heap(), key, best_key, op)) continue;
        best = items[i];
        best_key = std::move(key);
    }
    return best;
}
Value f_min(Interpreter& in, const Value& input, Arguments& arguments) { return extreme(in, input, arguments, "<"); }
Value f_max(Interpreter& in, const Value& input, Arguments& arguments) { return extreme(in, input, arguments, ">"); }

Value f_sum(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "sum", {"attribute", "start"});
    const Getter get(in, pointer(args, 0));
    Value total = args.get(1, Value::integer(0));
    if (total.is_string()) fault("sum() can't sum strings");
    for (const Value& item : iterate(in.heap(), input)) total = arithmetic(in.heap(), Sign::add, total, get(item));
    return total;
}

/// What map, select and the like walk over: nothing if the input is false, be it even None.
std::vector<Value> items_if_true(Interpreter& in, const Value& input) {
    return truth(input) ? iterate(in.heap(), input) : std::vector<Value>();
}

/// The rest of the arguments of map, select and the like: those behind the first `skip`.
Arguments behind(const Arguments& arguments, std::size_t skip) {
    Arguments rest;
    for (std::size_t i = skip; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
    rest.named = arguments.named;
    return rest;
}

std::string name_argument(const Arguments& arguments, std::size_t i, std::string_view filter) {
    if (i >= arguments.positional.size() || !arguments.positional[i].is_string())
        fault("{}() needs a name as argument {}", filter, i + 1);
    return arguments.positional[i].bytes();
}

Value f_map(Interpreter& in, const Value& input, Arguments& arguments) {
    std::vector<Value> out;
    const bool by_attribute =
        arguments.positional.empty() && std::any_of(arguments.named.begin(), arguments.named.end(),
                                                    [](const auto& a) { return a.first == "attribute"; });
    if (by_attribute) {
        Bound args(arguments, "map", {"attribute", "default"});
        const Getter get(in, &args[0], false, pointer(args, 1));
        for (const Value& item : items_if_true(in, input)) out.push_back(get(item));
        return in.heap().sequence(std::move(out), Shape::iterator);
    }
    const std::string name = name_argument(arguments, 0, "map");
    for (const Value& item : items_if_true(in, input)) {
        Arguments rest = behind(arguments, 1);
        out.push_back(in.apply_filter(name, item, rest));
    }
    return in.heap().sequence(std::move(out), Shape::iterator);
}

/// select and reject, by attribute or not. Without a test, what is true counts.
Value choose(Interpreter& in, const Value& input, Arguments& arguments, bool by_attribute, bool wanted) {
    const std::size_t skip = by_attribute ? 1 : 0;
    if (by_attribute && arguments.positional.empty()) fault("selectattr() misses the name of the attribute");
    const Getter get(in, by_attribute ? &arguments.positional[0] : nullptr);
    const bool tested = arguments.positional.size() > skip;
    const std::string name = tested ? name_argument(arguments, skip, "select") : "";
    std::vector<Value> out;
    for (Value& item : items_if_true(in, input)) {
        const Value value = get(item);
        bool holds = false;
        if (tested) {
            Arguments rest = behind(arguments, skip + 1);
            holds = in.apply_test(name, value, rest);
        } else {
            holds = truth(value);
        }
        if (holds == wanted) out.push_back(std::move(item));
    }
    return in.heap().sequence(std::move(out), Shape::iterator);
}
Value f_select(Interpreter& in, const Value& input, Arguments& arguments) {
    return choose(in, input, arguments, false, true);
}
Value f_reject(Interpreter& in, const Value& input, Arguments& arguments) {
    return choose(in, input, arguments, false, false);
}
Value f_selectattr(Interpreter& in, const Value& input, Arguments& arguments) {
    return choose(in, input, arguments, true, true);
}
Value f_rejectattr(Interpreter& in, const Value& input, Arguments& arguments) {
    return choose(in, input, arguments, true, false);
}

Value f_groupby(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "groupby", {"attribute", "default", "case_sensitive"});
    const bool fold = !args.flag(2, false);
    const Getter get(in, &args[0], fold, pointer(args, 1)), get_exact(in, &args[0], false, pointer(args, 1));
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : iterate(in.heap(), input)) {
        Value key = get(item);
        keyed.emplace_back(std::move(key), std::move(item));
    }
    std::vector<Value> groups, members;
    const std::vector<Value> sorted = sort_by_key(in, std::move(keyed), false);
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        members.push_back(sorted[i]);
        if (i + 1 < sorted.size() && equal(in.heap(), get(sorted[i]), get(sorted[i + 1]))) continue;
        const Value key = get_exact(members[0]);
        groups.push_back(in.heap().sequence({key, in.heap().sequence(std::exchange(members, {}))}, Shape::group));
    }
    return in.heap().sequence(std::move(groups));
}

Value f_batch(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "batch", {"linecount", "fill_with"});
    args[0];  // must be given
    const int64_t size = args.number(0, 1);
    if (size < 1) fault("batch(): the size must be at least 1");
    std::vector<Value> out, batch;
    for (Value& item : iterate(in.heap(), input)) {
        if (static_cast<int64_t>(batch.size()) == size) out.push_back(in.heap().sequence(std::exchange(batch, {})));
        batch.push_back(std::move(item));
    }
    if (!batch.empty()) {
        while (args.has(1) && !args[1].is(Kind::none) && static_cast<int64_t>(batch.size()) < size) {
            in.heap().step();
            batch.push_back(args[1]);
        }
        out.push_back(in.heap().sequence(std::move(batch)));
    }
    return in.heap().sequence(std::move(out), Shape::iterator);
}

Value f_slice(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "slice", {"slices", "fill_with"});
    args[0];  // must be given
    const int64_t slices = args.number(0, 1);
    if (slices < 1) fault("slice(): there must be at least 1 slice");
    const std::vector<Value> items = iterate(in.heap(), input);
    const auto count = static_cast<int64_t>(items.size());
    std::vector<Value> out;
    int64_t at = 0;
    for (int64_t i = 0; i < slices; ++i) {
        in.heap().step();
        const bool longer = i < count % slices;
        const int64_t end = at + count / slices + (longer ? 1 : 0);
        std::vector<Value> part(items.begin() + at, items.begin() + end);
        if (args.has(1) && !args[1].is(Kind::none) && !longer) part.push_back(args[1]);
        out.push_back(in.heap().sequence(std::move(part)));
        at = end;
    }
    return in.heap().sequence(std::move(out), Shape::iterator);
}

struct SequenceFilter {
    std::string_view name;
    Filter filter;
};
constexpr SequenceFilter kFilters[] = {
    {"batch", f_batch},     {"count", f_length},    {"dictsort", f_dictsort},
    {"first", f_first},     {"groupby", f_groupby}, {"items", f_items},
    {"join", f_join},       {"last", f_last},       {"length", f_length},
    {"list", f_list},       {"map", f_map},         {"max", f_max},
    {"min", f_min},         {"reject", f_reject},   {"rejectattr", f_rejectattr},
    {"reverse", f_reverse}, {"select", f_select},   {"selectattr", f_selectattr},
    {"slice", f_slice},     {"sort", f_sort},       {"sum", f_sum},
    {"unique", f_unique},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
    for (const SequenceFilter& entry : kFilters) {
        if (entry.name == name) return entry.filter;
    }
    return nullptr;
}

}  // namespace riptide::jinja
