// What the tests run on: test binaries take --device cpu|cuda, and --portable for the kernels of the oldest chips; and
// --full for the counts of what is claimed where the usual run makes do with fewer, on --jobs N threads where that
// helps;
// --brief for few sizes of each, --multiprocessors N to leave the rest of a GPU unused.
#pragma once

#include <vector>

#include "tensor/context.h"
#include "tests/sanitizers.h"

namespace riptide {

/// The GPU that was asked for; null: the CPU. Opened once, before the first test.
Gpu* test_gpu();
/// --full was given.
bool full_counts();
/// --brief was given, for tools that slow kernels down a hundredfold.
bool brief_counts();
/// All cases; with --brief `most` of them, the first and the last among them.
template <class T>
std::vector<T> brief(std::vector<T> cases, size_t most) {
    if (!brief_counts() || cases.size() <= most) return cases;
    std::vector<T> some;
    for (size_t i = 0; i < most; ++i) some.push_back(cases[most == 1 ? 0 : i * (cases.size() - 1) / (most - 1)]);
    return some;
}
/// all; with --brief `few`.
template <class T>
T fewer(T all, T few) {
    return brief_counts() ? few : all;
}
/// Lets kernels see a chip of so few multiprocessors as --multiprocessors says, if it does: persistent kernels go round
/// in small shapes, and what counts each access of each CTA has less to count.
void limit_multiprocessors(Gpu& gpu);
/// Threads that a long test may keep busy: --jobs, 1 unless given.
int test_jobs();

/// The kernel sets to test: one on the CPU, two on a GPU.
inline std::vector<Family> test_families() {
    if (test_gpu() == nullptr) return {Family::decode};
    return {Family::decode, Family::prefill};
}

inline const char* family_name(Family family) { return family == Family::decode ? "decode" : "prefill"; }

}  // namespace riptide

/// For a law that only the CPU keeps; `why` says what the GPU does instead.
#define RT_CPU_ONLY(why) \
    if (::riptide::test_gpu() != nullptr) GTEST_SKIP() << "on the CPU only: " << why
/// For tests of kernels.
#define RT_GPU_ONLY() \
    if (::riptide::test_gpu() == nullptr) GTEST_SKIP() << "needs a GPU: --device cuda"
