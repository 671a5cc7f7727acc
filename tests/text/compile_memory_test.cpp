// What compiling a form takes of memory: every allocation of this test binary goes through the operator new below, but
// not in builds with sanitizers, which have one of their own and check that all its forms are theirs.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/json.h"
#include "tests/text/constraint_world.h"

namespace {

std::atomic<int64_t> g_live{0}, g_peak{0};

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RT_OWN_NEW 0
#elif defined(__has_feature)
#define RT_OWN_NEW !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define RT_OWN_NEW 1
#endif
#if RT_OWN_NEW

// Not inlined: the compiler would see free() on what new gave and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc();
    const auto got = static_cast<int64_t>(malloc_usable_size(memory));
    const int64_t live = g_live.fetch_add(got, std::memory_order_relaxed) + got;
    int64_t peak = g_peak.load(std::memory_order_relaxed);
    while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
    }
    return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    if (memory != nullptr)
        g_live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

#endif

namespace riptide::testing {
namespace {

/// Bytes that compiling a schema takes at its most, beside the schema.
int64_t memory_to_compile(const json::value& schema) {
    const std::shared_ptr<const TokenTrie> trie = crossing_trie();
    const int64_t before = g_live;
    g_peak = before;
    try {
        Grammar grammar;
        grammar.set_root(add_json_schema(grammar, schema));
        (void)Constraint::compile(grammar, trie);
    } catch (const GrammarError&) {  // too large: what it took until that was found counts as well
    }
    return g_peak - before;
}

/// A request may take 64 MiB beside 32 times its body; here the body is small as against that.
TEST(CompileMemory, of_objects_with_as_many_members_as_fit_is_bounded) {
    if (!(RT_OWN_NEW)) GTEST_SKIP() << "memory is counted without sanitizers";
    for (const bool must : {false, true})
        for (const int members : {6'000, 9'000, 11'000, 13'000, 20'000}) {
            json::object properties;
            json::array required;
            for (int i = 0; i < members; ++i) {
                const std::string name = fmt::format("p{:07}", i);
                properties[name] = json::object();
                if (must) required.emplace_back(name);
            }
            const json::value schema = {{"properties", properties}, {"required", required}};
            EXPECT_LT(memory_to_compile(schema), int64_t{64} << 20) << members << (must ? " that must be there" : "");
        }
}

/// Ways out of states are counted too, not only states: these classes have 47 of them between two states.
TEST(CompileMemory, of_large_character_classes_is_bounded) {
    if (!(RT_OWN_NEW)) GTEST_SKIP() << "memory is counted without sanitizers";
    std::string odd = "[";
    for (char c = '!'; c < 127; c = static_cast<char>(c + 2))
        odd += (std::string_view("[]\\^-").find(c) != std::string_view::npos ? "\\" : "") + std::string(1, c);
    odd += "]";
    json::object properties;
    for (int i = 0; i < 400; ++i) {
        std::string pattern = "^";
        for (int k = 0; k < 100; ++k) pattern += odd;
        properties[fmt::format("p{}", i)] = {{"type", "string"}, {"pattern", pattern + std::to_string(i) + "$"}};
    }
    EXPECT_LT(memory_to_compile({{"properties", properties}}), int64_t{64} << 20);
}

}  // namespace
}  // namespace riptide::testing
