// The values of a template: Python's, without mutation, counted against a memory budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/template.h"
#include "text/jinja/text.h"

namespace riptide::jinja {

/// What went wrong, before the template's name and line are put before it.
class Fault : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};
template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
    throw Fault(fmt::format(format, std::forward<Args>(args)...));
}

enum class Kind : uint8_t {
    undefined,
    none,
    boolean,
    integer,
    floating,
    string,
    sequence,
    dict,
    callable,
    space,
    loop
};

struct StringObject;
struct SequenceObject;
struct DictObject;
struct CallableObject;
struct Loop;
struct Space;
class Heap;

/// One value: 32 bytes, copied freely (strings and containers are shared and never change).
/// The accessors REQUIRE the kind that they name.
class Value {
  public:
    Value() = default;  // undefined, without a message
    static Value none() { return Value(Kind::none); }
    static Value boolean(bool value);
    static Value integer(int64_t value);
    /// Above int64_t: can be shown and compared, not calculated with.
    static Value big(uint64_t value);
    static Value floating(double value);
    static Value space(Space* space);
    Value(Kind kind, std::shared_ptr<const void> object) : kind_(kind), object_(std::move(object)) {}

    Kind kind() const { return kind_; }
    bool is(Kind kind) const { return kind_ == kind; }
    bool is_undefined() const { return kind_ == Kind::undefined; }
    bool is_string() const { return kind_ == Kind::string; }
    bool is_number() const { return kind_ == Kind::boolean || kind_ == Kind::integer || kind_ == Kind::floating; }
    /// An int in Python's sense, which a bool is.
    bool is_whole() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }
    bool is_big() const { return kind_ == Kind::integer && big_; }

    bool as_bool() const { return bool_; }
    /// Of an int or bool; Fault if it is above int64_t.
    int64_t as_int() const;
    uint64_t as_big() const { return static_cast<uint64_t>(int_); }
    /// Of any number.
    double as_double() const;
    const StringObject& string() const { return *static_cast<const StringObject*>(object_.get()); }
    const std::string& bytes() const;
    const Text& text() const;
    const SequenceObject& sequence() const { return *static_cast<const SequenceObject*>(object_.get()); }
    const DictObject& dict() const { return *static_cast<const DictObject*>(object_.get()); }
    const CallableObject& callable() const { return *static_cast<const CallableObject*>(object_.get()); }
    Loop& loop() const;
    Space& space() const { return *space_; }
    /// Why it is undefined.
    std::string undefined_message() const;
    const void* identity() const { return kind_ == Kind::space ? static_cast<const void*>(space_) : object_.get(); }

  private:
    explicit Value(Kind kind) : kind_(kind) {}

    Kind kind_ = Kind::undefined;
    bool big_ = false;
    union {
        bool bool_;
        int64_t int_ = 0;
        double double_;
        Space* space_;
    };
    std::shared_ptr<const void> object_;
};

struct StringObject {
    Text text;
    int64_t chars = 0;    // code points
    bool markup = false;  // came out of `safe` or `escape`: adding to it escapes what is added
    bool ascii() const { return chars == text.size(); }
};

struct UndefinedObject {
    std::string message;
};

/// What a sequence is to Python. An iterator can be walked once, has no length and no items by number.
enum class Shape : uint8_t { list, tuple, group, range, iterator, keys, values, items };
struct SequenceObject {
    Shape shape = Shape::list;
    std::vector<Value> items;
    int depth = 1;
    mutable std::size_t taken = 0;  // iterators: how many items are gone

    bool indexable() const { return shape <= Shape::range; }
    bool sized() const { return shape != Shape::iterator; }
};

struct DictObject {
    std::vector<std::pair<Value, Value>> items;
    std::unordered_multimap<std::size_t, std::size_t> index;  // hash -> item; only above kIndexedDict items
    int depth = 1;

    /// nullptr if absent. Fault if the key cannot be one (a list, a dict).
    const Value* find(Heap& heap, const Value& key) const;
    const Value* find(std::string_view key) const;
};
inline constexpr std::size_t kIndexedDict = 12;

/// A namespace, cycler or joiner: the only values that change. The interpreter owns them.
struct Space {
    enum class What : uint8_t { name_space, cycler, joiner };
    What what = What::name_space;
    std::vector<std::pair<std::string, Value>> attributes;
    std::vector<Value> items;
    std::size_t position = 0;
};

class Interpreter;
struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
};
using Method = Value (*)(Interpreter&, const Value& self, Arguments&);
struct Macro;
struct Scope;
/// A function of the engine, a bound method (function + self), or a macro.
struct CallableObject {
    std::string_view name;
    Method function = nullptr;
    Value self;
    const Macro* macro = nullptr;
    Scope* scope = nullptr;  // where the macro was made
};

/// Counts memory and sizes against the limits, work against its budget, and makes the values that need memory.
/// Values made by a heap must not outlive it. Not thread-safe; but destroying values of an idle heap touches only
/// counters.
class Heap {
  public:
    Heap(const Limits& limits, WorkBudget& work) : limits_(limits), work_(work) {}
    Heap(const Heap&) = delete;
    Heap& operator=(const Heap&) = delete;

    const Limits& limits() const { return limits_; }
    /// Counts work; throws as WorkBudget does.
    void step(int64_t count = 1) { work_.spend(count); }
    /// Counts work on so many bytes that are copied or compared.
    void step_bytes(int64_t bytes) { work_.spend_bytes(bytes); }
    /// The same for bytes that are looked at character by character.
    void step_chars(int64_t bytes) { work_.spend_bytes(bytes * 8); }
    /// Fault if a string of that size may not be made.
    void check_text(int64_t bytes) const;
    void take(int64_t bytes);
    void give_back(int64_t bytes) { live_ -= bytes; }
    int64_t live() const { return live_; }

    Value text(Text text, bool markup = false);
    Value text(std::string_view bytes, bool trusted) { return this->text(Text(std::string(bytes), trusted)); }
    Value undefined(std::string message);
    Value sequence(std::vector<Value> items, Shape shape = Shape::list);
    /// Later keys replace earlier ones, at the earlier one's place.
    Value dict(std::vector<std::pair<Value, Value>> items);
    Value callable(CallableObject callable);
    Value loop(std::unique_ptr<Loop> loop);

  private:
    template <class T>
    Value make(Kind kind, std::unique_ptr<T> object, int64_t bytes);

    Limits limits_;
    WorkBudget& work_;
    int64_t live_ = 0;
};

/// A text under construction, counted and checked against the size limit as it grows.
class TextBuilder {
  public:
    explicit TextBuilder(Heap& heap) : heap_(heap) {}
    void append(std::string_view bytes, bool trusted) {
        count(static_cast<int64_t>(bytes.size()));
        text_.append(bytes, trusted);
    }
    void append(const Text& other) { append(other, 0, other.size()); }
    void append(const Text& other, int64_t begin, int64_t end) {
        count(end - begin);
        text_.append(other, begin, end);
    }
    const Text& text() const { return text_; }
    Text take() { return std::move(text_); }
    Heap& heap() { return heap_; }

  private:
    void count(int64_t more) {
        heap_.check_text(text_.memory() + more);
        heap_.step_bytes(more + kAppend);
    }
    static constexpr int64_t kAppend = 32;  // what a call costs, in bytes copied

    Heap& heap_;
    Text text_;
};

/// Python's type name ("str", "dict", ...), for messages.
std::string_view type_name(const Value& value);
bool truth(const Value& value);
/// ==
bool equal(Heap& heap, const Value& a, const Value& b);
/// < 0, 0, > 0 for values that have an order; Fault ("'<' not supported ...") otherwise. `op` names the operator.
/// Not for NaN: see `ordered`.
int compare(Heap& heap, const Value& a, const Value& b, std::string_view op);
/// a OP b, with op one of "<", "<=", ">", ">=".
bool ordered(Heap& heap, const Value& a, const Value& b, std::string_view op);
/// Fault for a list or dict.
std::size_t hash(Heap& heap, const Value& value);
int depth_of(const Value& value);
/// len(); Fault if it has none.
int64_t length(const Value& value);
/// The items that a for loop would visit; uses an iterator up. Fault if it is not iterable.
std::vector<Value> iterate(Heap& heap, const Value& value);
/// a in b
bool contains(Heap& heap, const Value& container, const Value& item);

}  // namespace riptide::jinja
