// One row of x times large matrices (kquant_i8_wide_row1_sm90.cu): how rows are shared out, and how their weights come.
//
// A pair is two rows that a warp multiplies together: neighbours of a matrix (the last of a matrix may be alone), or a
// row of gate and the same of up. A step is 32 sub-blocks of both rows of a pair, one for each lane.
#pragma once

#include "ops/cuda/linear/gemv/any.cuh"
#include "ops/cuda/linear/shared/dot_batch.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

constexpr int kRowThreads = 32 * kRowWarps;

struct WideMatrix {
    const char* data;
    const char* high;
    const char* scales;
    const char* d;  // planes_q6_k
    float* y;
    int32_t rows, first;  // first pair, among those of the group
    DType type;
};

struct WideRowArgs {
    WideMatrix m[kMostPlanes];
    Matrix floats[kMostFloats];
    int32_t matrices, pairs, steps;  // steps of a pair
    int32_t float_rows;              // one each for the last warps of the first CTAs
    int32_t fuller, fuller_pairs;    // CTAs that have a float row more than the others, and pairs of all of them
    int32_t gate_up;                 // pair p is row p of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t slot_start;              // the rings lie there in shared memory
    ActLayout layout;
    ActSource x;
    float* residual;
};

/// Where the parts of a step lie in a slot; row g of the pair `g` times the part's size on.
template <bool Q4>
struct Slot {
    static constexpr int kHeads = 1024, kHigh = 1152, kD = 1664, kBytes = row_slot_bytes(Q4);
    static constexpr int kDRow = 32;  // two pieces of sixteen bytes that hold a row's d
};

#if __CUDA_ARCH__ >= 900

/// The matrix of pair `pair` of the group.
__device__ __forceinline__ int matrix_of_pair(const WideRowArgs& a, int pair) {
    int i = 0;
    if (a.gate_up == 0)
#pragma unroll
        for (int k = 1; k < kMostPlanes; ++k)
            if (k < a.matrices && pair >= a.m[k].first) i = k;
    return i;
}

/// What a warp multiplies, in its order: the head of a pair whose tail is the next warp's, whole pairs, and the tail of
/// the pair whose head the warp before it did first. So every warp of a CTA has the same number of steps, and the sum
/// of a pair that two warps share is made in the order of one.
struct RowShare {
    int first;       // the first of the whole pairs
    int whole;       // how many
    int head, tail;  // steps of the head; the first step of the tail; 0: there is none

    /// Pairs [begin, end) shared out among `warps` warps.
    __device__ static RowShare of(int begin, int end, int steps, int warp, int warps) {
        const int pairs = end - begin;
        if (pairs < warps) {
            const int from = share(pairs, warp, warps);
            return {begin + from, share(pairs, warp + 1, warps) - from, 0, 0};
        }
        const int from = share(pairs * steps, warp, warps), to = share(pairs * steps, warp + 1, warps);
        const int first = (from + steps - 1) / steps, last = to / steps;
        return {begin + first, last - first, to - last * steps, from - from / steps * steps};
    }
};

/// A walk over the pairs of a share.
struct RowWalk {
    int pair = 0, step = 0, end = 0;  // the pair's steps to do
    int left;                         // pairs, with this one
    bool opening;                     // the head of a pair comes next

    __device__ __forceinline__ explicit RowWalk(const RowShare& s)
        : pair(s.first - 1), left(s.whole + (s.head > 0) + (s.tail > 0) + 1), opening(s.head > 0) {}
    /// To the next pair, if there is one.
    __device__ __forceinline__ bool next(const RowShare& s, int steps) {
        if (--left == 0) return false;
        step = 0;
        end = steps;
        if (opening) {
            opening = false;
            pair = s.first + s.whole;
            end = s.head;
        } else {
            pair = pair == s.first + s.whole ? s.first : pair + 1;
            if (left == 1 && s.tail > 0) {
                pair = s.first - 1;
                step = s.tail;
            }
        }
        return true;
    }
};

/// A warp's ring of `Slots` steps in shared memory, and its walk over the steps that it asks for. Lanes copy sixteen
/// bytes at a time, their own nibbles and some of what all lanes read.
template <bool Q4, int Slots>
struct RowRing {
    using At = Slot<Q4>;
    RowWalk walk;
    const char* nibbles[2];  // of the lane, in both rows
    const char* other;       // the piece of headers, high bits or d that this lane copies besides
    const char* high;        // Q6_K: the piece of high bits
    int nibble_steps;        // the lane's nibbles exist up to this step, the others up to
    int other_steps, high_steps;
    int other_to;  // place in the slot
    bool second_d, d;
    int other_each;

    __device__ __forceinline__ explicit RowRing(const RowShare& s) : walk(s), nibble_steps(0) {}

    __device__ __forceinline__ void begin_pair(const WideRowArgs& a, int lane) {
        const int groups = a.layout.groups, k = matrix_of_pair(a, walk.pair);
        const bool both = a.gate_up != 0;
        const WideMatrix& m = a.m[k];
        const WideMatrix& n = both ? a.m[1] : m;
        const int local = walk.pair - m.first;
        const int64_t row0 = both ? local : 2 * local, row1 = both ? local : min(2 * local + 1, m.rows - 1);
        const int step = walk.step;
        nibbles[0] = m.data + 16 * (row0 * groups + 32 * step + lane);
        nibbles[1] = n.data + 16 * (row1 * groups + 32 * step + lane);
        nibble_steps = (groups - lane + 31) / 32;
        // Headers: lanes 0 to 7, a piece of eight sub-blocks each.
        const bool second = lane / 4 % 2 != 0;
        other = (second ? n.scales : m.scales) + 2 * ((second ? row1 : row0) * groups + 32 * step + 8 * (lane % 4));
        other_steps = lane < 8 ? (groups - 8 * (lane % 4) + 31) / 32 : 0;
        other_to = At::kHeads + 16 * lane;
        if constexpr (!Q4) {
            other_each = 64;
            d = false;
            high_steps = 0;
            if (m.type == DType::planes_q6_k) {
                const bool up = lane >= 16;  // two sub-blocks a lane
                high = (up ? n.high : m.high) + 8 * ((up ? row1 : row0) * groups + 32 * step + 2 * (lane % 16));
                high_steps = (groups - 2 * (lane % 16) + 31) / 32;
                if (lane >= 8 && lane < 12) {  // d: eight bytes a step and row, in one or two pieces
                    const bool low = lane >= 10;
                    d = true;
                    second_d = lane % 2 != 0;
                    other = (low ? n.d : m.d) + (low ? row1 : row0) * (groups / 4) + 8 * step;
                    other_steps = (groups + 31) / 32;
                    other_to = At::kD + 16 * (lane - 8);
                    other_each = 8;
                }
            } else if (m.type == DType::planes_q5_k && lane >= 8 && lane < 24) {
                const bool low = lane >= 16;  // four sub-blocks a lane
                other = (low ? n.high : m.high) + 4 * ((low ? row1 : row0) * groups + 32 * step + 4 * (lane % 8));
                other_steps = (groups - 4 * (lane % 8) + 31) / 32;
                other_to = At::kHigh + 16 * (lane - 8);
                other_each = 128;
            }
        }
    }
    __device__ __forceinline__ static void copy(uint32_t to, const char* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    }
    /// Asks for the next step, if there is one, to the slot at `slot`. All lanes.
    __device__ __forceinline__ void ask(const WideRowArgs& a, const RowShare& s, uint32_t slot, int lane) {
        if (walk.step == walk.end && walk.left > 0 && walk.next(s, a.steps)) begin_pair(a, lane);
        if (walk.left > 0) {
            if (walk.step < nibble_steps) {
                copy(slot + 16 * lane, nibbles[0]);
                copy(slot + 512 + 16 * lane, nibbles[1]);
            }
            nibbles[0] += 512;
            nibbles[1] += 512;
            if constexpr (Q4) {
                if (walk.step < other_steps) copy(slot + other_to, other);
                other += 64;
            } else {
                if (walk.step < high_steps) copy(slot + At::kHigh + 16 * lane, high);
                high += 256;
                if (walk.step < other_steps) {
                    const char* from = other;
                    bool wanted = true;
                    if (d) {
                        const int before = static_cast<int>(reinterpret_cast<uintptr_t>(other) & 15);
                        const int bytes = min(8, a.layout.groups / 4 - 8 * walk.step);
                        from += (second_d ? 16 : 0) - before;
                        wanted = !second_d || before + bytes > 16;
                    }
                    if (wanted) copy(slot + other_to, from);
                }
                other += other_each;
            }
            ++walk.step;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    /// The oldest step that was asked for is there, in all lanes; Slots - 2 may be on their way.
    __device__ __forceinline__ static void wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(Slots - 2) : "memory");
        __syncwarp();
    }
};

/// A sum that one warp of the CTA begins and the next one ends.
struct HandedSums {
    float2 sums[kRowWarps][32];
    uint64_t ready[kRowWarps];

    __device__ __forceinline__ uint32_t barrier(int warp) const {
        return static_cast<uint32_t>(__cvta_generic_to_shared(ready + warp));
    }
    __device__ __forceinline__ void init() {
        if (threadIdx.x < kRowWarps)
            asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(barrier(threadIdx.x)) : "memory");
    }
    __device__ __forceinline__ void give(int warp, int lane, const float (&acc)[2]) {
        sums[warp][lane] = make_float2(acc[0], acc[1]);
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier(warp)) : "memory");
    }
    __device__ __forceinline__ void take(int warp, int lane, float (&acc)[2]) const {
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n@!p bra again_%=;\n}" ::"r"(
                barrier(warp))
            : "memory");
        const float2 given = sums[warp][lane];
        acc[0] = given.x;
        acc[1] = given.y;
    }
};

#endif  // __CUDA_ARCH__ >= 900

}  // namespace riptide::ops::cuda::decode
