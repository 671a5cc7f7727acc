#include "text/jinja/value.h"

#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/search.h"
#include "text/jinja/unicode.h"

namespace riptide::jinja {

Value Value::boolean(bool value) {
    Value out(Kind::boolean);
    out.bool_ = value;
    return out;
}
Value Value::integer(int64_t value) {
    Value out(Kind::integer);
    out.int_ = value;
    return out;
}
Value Value::big(uint64_t value) {
    Value out = integer(static_cast<int64_t>(value));
    out.big_ = value > static_cast<uint64_t>(INT64_MAX);
    return out;
}
Value Value::floating(double value) {
    Value out(Kind::floating);
    out.double_ = value;
    return out;
}
Value Value::space(Space* space) {
    Value out(Kind::space);
    out.space_ = space;
    return out;
}

int64_t Value::as_int() const {
    if (is_big()) fault("the number {} is beyond 64 bits", as_big());
    return kind_ == Kind::boolean ? bool_ : int_;
}
double Value::as_double() const {
    if (kind_ == Kind::floating) return double_;
    return is_big() ? static_cast<double>(as_big()) : static_cast<double>(as_int());
}
const std::string& Value::bytes() const { return string().text.bytes(); }
const Text& Value::text() const { return string().text; }
Loop& Value::loop() const { return *const_cast<Loop*>(static_cast<const Loop*>(object_.get())); }
std::string Value::undefined_message() const {
    return object_ ? static_cast<const UndefinedObject*>(object_.get())->message : "value is undefined";
}

// ---- Heap

void Heap::check_text(int64_t bytes) const {
    if (bytes > limits_.output_bytes) fault("a text grows beyond {} bytes", limits_.output_bytes);
}

void Heap::take(int64_t bytes) {
    if (live_ + bytes > limits_.value_bytes) fault("values need more than {} bytes of memory", limits_.value_bytes);
    live_ += bytes;
}

/// What making a value costs, in bytes copied.
constexpr int64_t kMake = 512;

template <class T>
Value Heap::make(Kind kind, std::unique_ptr<T> object, int64_t bytes) {
    bytes += static_cast<int64_t>(sizeof(T)) + 48;  // with the control block
    step_bytes(kMake);
    take(bytes);
    std::shared_ptr<const T> shared(object.release(), [this, bytes](const T* dead) {
        delete dead;
        give_back(bytes);
    });
    return Value(kind, std::move(shared));
}

Value Heap::text(Text text, bool markup) {
    const int64_t bytes = text.memory();
    check_text(bytes);
    step_bytes(2 * bytes);
    auto object = std::make_unique<StringObject>();
    object->chars = count_chars(text.bytes());
    object->text = std::move(text);
    object->markup = markup;
    return make(Kind::string, std::move(object), bytes);
}

Value Heap::undefined(std::string message) {
    auto object = std::make_unique<UndefinedObject>();
    const auto bytes = static_cast<int64_t>(message.size());
    object->message = std::move(message);
    return make(Kind::undefined, std::move(object), bytes);
}

Value Heap::sequence(std::vector<Value> items, Shape shape) {
    step(static_cast<int64_t>(items.size()));
    auto object = std::make_unique<SequenceObject>();
    for (const Value& item : items) object->depth = std::max(object->depth, 1 + depth_of(item));
    if (object->depth > limits_.value_depth) fault("values are nested more than {} deep", limits_.value_depth);
    const auto bytes = static_cast<int64_t>(items.capacity() * sizeof(Value));
    object->items = std::move(items);
    object->shape = shape;
    return make(Kind::sequence, std::move(object), bytes);
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items) {
    step(static_cast<int64_t>(items.size()));
    auto object = std::make_unique<DictObject>();
    for (auto& [key, value] : items) {
        object->depth = std::max({object->depth, 1 + depth_of(key), 1 + depth_of(value)});
        if (const Value* old = object->find(*this, key)) {
            const_cast<Value&>(*old) = value;
            continue;
        }
        object->items.emplace_back(key, value);
        const std::size_t count = object->items.size();
        if (count == kIndexedDict + 1) {
            for (std::size_t i = 0; i < count; ++i) object->index.emplace(hash(*this, object->items[i].first), i);
        } else if (count > kIndexedDict) {
            object->index.emplace(hash(*this, key), count - 1);
        }
    }
    if (object->depth > limits_.value_depth) fault("values are nested more than {} deep", limits_.value_depth);
    const auto bytes = static_cast<int64_t>(object->items.capacity() * 2 * sizeof(Value) + object->index.size() * 48);
    return make(Kind::dict, std::move(object), bytes);
}

Value Heap::callable(CallableObject callable) {
    return make(Kind::callable, std::make_unique<CallableObject>(std::move(callable)), 0);
}

Value Heap::loop(std::unique_ptr<Loop> loop) {
    const auto bytes = static_cast<int64_t>(loop->items.capacity() * sizeof(Value));
    return make(Kind::loop, std::move(loop), bytes);
}

// ---- dict lookup

const Value* DictObject::find(Heap& heap, const Value& key) const {
    const std::size_t wanted = hash(heap, key);  // also refuses what cannot be a key
    if (index.empty()) {
        for (const auto& [k, v] : items) {
            if (equal(heap, k, key)) return &v;
        }
        return nullptr;
    }
    const auto [begin, end] = index.equal_range(wanted);
    for (auto at = begin; at != end; ++at) {
        if (equal(heap, items[at->second].first, key)) return &items[at->second].second;
    }
    return nullptr;
}

const Value* DictObject::find(std::string_view key) const {
    if (index.empty()) {
        for (const auto& [k, v] : items) {
            if (k.is_string() && k.bytes() == key) return &v;
        }
        return nullptr;
    }
    const auto [begin, end] = index.equal_range(std::hash<std::string_view>{}(key));
    for (auto at = begin; at != end; ++at) {
        const Value& k = items[at->second].first;
        if (k.is_string() && k.bytes() == key) return &items[at->second].second;
    }
    return nullptr;
}

// ---- protocols

std::string_view type_name(const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
            return "Undefined";
        case Kind::none:
            return "NoneType";
        case Kind::boolean:
            return "bool";
        case Kind::integer:
            return "int";
        case Kind::floating:
            return "float";
        case Kind::string:
            return "str";
        case Kind::dict:
            return "dict";
        case Kind::callable:
            return value.callable().macro != nullptr ? "Macro" : "function";
        case Kind::space:
            return value.space().what == Space::What::name_space ? "Namespace" : "object";
        case Kind::loop:
            return "LoopContext";
        case Kind::sequence:
            break;
    }
    constexpr std::string_view kNames[] = {"list",      "tuple",     "tuple",       "range",
                                           "generator", "dict_keys", "dict_values", "dict_items"};
    return kNames[static_cast<int>(value.sequence().shape)];
}

bool truth(const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
        case Kind::none:
            return false;
        case Kind::boolean:
            return value.as_bool();
        case Kind::integer:
            return value.is_big() || value.as_int() != 0;
        case Kind::floating:
            return value.as_double() != 0;
        case Kind::string:
            return !value.text().empty();
        case Kind::sequence:
            return !value.sequence().sized() || !value.sequence().items.empty();
        case Kind::dict:
            return !value.dict().items.empty();
        default:
            return true;
    }
}

int depth_of(const Value& value) {
    if (value.is(Kind::sequence)) return value.sequence().depth;
    if (value.is(Kind::dict)) return value.dict().depth;
    if (value.is(Kind::callable)) return 1 + depth_of(value.callable().self);
    return 0;
}

int64_t length(const Value& value) {
    switch (value.kind()) {
        case Kind::undefined:
            return 0;
        case Kind::string:
            return value.string().chars;
        case Kind::dict:
            return static_cast<int64_t>(value.dict().items.size());
        case Kind::loop:
            return value.loop().length();
        case Kind::sequence:
            if (value.sequence().sized()) return static_cast<int64_t>(value.sequence().items.size());
            break;
        default:
            break;
    }
    fault("object of type '{}' has no len()", type_name(value));
}

std::vector<Value> iterate(Heap& heap, const Value& value) {
    std::vector<Value> out;
    switch (value.kind()) {
        case Kind::undefined:
            return out;
        case Kind::sequence: {
            const SequenceObject& sequence = value.sequence();
            out.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.taken), sequence.items.end());
            if (!sequence.sized()) sequence.taken = sequence.items.size();
            break;
        }
        case Kind::dict:
            out.reserve(value.dict().items.size());
            for (const auto& item : value.dict().items) out.push_back(item.first);
            break;
        case Kind::string: {
            const Text& text = value.text();
            heap.step(value.string().chars);
            for (int64_t at = 0; at < text.size();) {
                const int64_t next = at + char_at(text.bytes(), at).bytes;
                out.push_back(heap.text(text.part(at, next)));
                at = next;
            }
            break;
        }
        default:
            fault("'{}' object is not iterable", type_name(value));
    }
    heap.step(static_cast<int64_t>(out.size()));
    return out;
}

bool contains(Heap& heap, const Value& container, const Value& item) {
    if (container.is_string()) {
        if (!item.is_string()) fault("'in <string>' requires string as left operand, not {}", type_name(item));
        return TextFinder(heap, item.bytes()).find(container.bytes()) != std::string::npos;
    }
    if (container.is(Kind::dict)) return container.dict().find(heap, item) != nullptr;
    if (!container.is(Kind::sequence) && !container.is_undefined()) {
        fault("argument of type '{}' is not iterable", type_name(container));
    }
    for (const Value& other : iterate(heap, container)) {
        if (equal(heap, other, item)) return true;
    }
    return false;
}

}  // namespace riptide::jinja
