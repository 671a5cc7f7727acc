// Drawing tokens behind filters that keep many: top_p or min_p over the whole vocabulary, top_k above 256, equal
// logits.
//
// Bytes: a row of 100352 f32 logits, 401 KB, once from L2; then 803 KB of doubles in shared memory, 100 KB in each of
// the eight CTAs of a cluster. Floor: about 8 us on eight SMs for the exponentials and logarithms of 100352 doubles
// (some 120 instructions of each CTA's 32 x 4 lanes a token). Design: both filters ask where, in an order of keys, a
// sum from the top reaches `need`: the count reaches k in the order of values, the mass reaches top_p in the order of
// weights, and among equal weights in the order of ids. Each pass cuts the range of keys in four and sums, in integers,
// what lies above each cut: about 11 passes until one token is left, 32 if thousands have one key. Nothing depends on
// the order of sums, there are no atomics. Limited by latency: per pass two barriers of a CTA, one of the cluster, 40
// shuffles. Chips without clusters: one CTA a row, with the doubles in device memory; right, but several times slower.
#include "ops/cuda/sampling/filter.cuh"

#include <cooperative_groups.h>

namespace riptide::ops::drawing {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;

template <int kCount>
struct Words {
    uint64_t v[kCount] = {};
};

struct Shared {
    Words<4> warps[kWarps];
    Words<4> ctas[2][kCluster];
};

/// The CTAs that work on a row: a cluster, or one.
struct Team {
    Shared& shared;
    int size, rank;
    int turn = 0;

    __device__ explicit Team(Shared& shared_) : shared(shared_) {
#if __CUDA_ARCH__ >= 900
        const auto cluster = cooperative_groups::this_cluster();
        size = static_cast<int>(cluster.num_blocks());
        rank = static_cast<int>(cluster.block_rank());
#else
        size = 1;
        rank = 0;
#endif
    }
    __device__ void barrier() const {
#if __CUDA_ARCH__ >= 900
        cooperative_groups::this_cluster().sync();
#else
        __syncthreads();
#endif
    }
    __device__ Shared* of(int cta) const {
#if __CUDA_ARCH__ >= 900
        return cooperative_groups::this_cluster().map_shared_rank(&shared, static_cast<unsigned>(cta));
#else
        return &shared;
#endif
    }

    /// v combined over all threads, in every thread. Zeros change nothing. The order is fixed.
    template <int kCount, class Combine>
    __device__ Words<kCount> reduce(Words<kCount> v, const Combine& combine) {
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
        v = over_lanes(v, combine);
        if (lane == 0)
            for (int i = 0; i < kCount; ++i) shared.warps[warp].v[i] = v.v[i];
        __syncthreads();
        if (warp == 0) {
            for (int i = 0; i < kCount; ++i) v.v[i] = lane < kWarps ? shared.warps[lane].v[i] : 0;
            v = over_lanes(v, combine);
            if (lane < size)
                for (int i = 0; i < kCount; ++i) of(lane)->ctas[turn][rank].v[i] = v.v[i];
        }
        barrier();
        v = {};
        for (int c = 0; c < size; ++c) {
            Words<kCount> other;
            for (int i = 0; i < kCount; ++i) other.v[i] = shared.ctas[turn][c].v[i];
            v = combine(v, other);
        }
        turn ^= 1;  // a CTA may be one reduction ahead of another, not two
        return v;
    }
    template <int kCount, class Combine>
    __device__ static Words<kCount> over_lanes(Words<kCount> v, const Combine& combine) {
        for (int mask = 16; mask > 0; mask /= 2) {
            Words<kCount> other;
            for (int i = 0; i < kCount; ++i) other.v[i] = __shfl_xor_sync(0xFFFFFFFFu, v.v[i], mask);
            v = combine(v, other);
        }
        return v;
    }
    template <int kCount>
    __device__ Words<kCount> sum(Words<kCount> v) {
        return reduce(v, [](Words<kCount> a, const Words<kCount>& b) {
            for (int i = 0; i < kCount; ++i) a.v[i] += b.v[i];
            return a;
        });
    }
    template <int kCount>
    __device__ Words<kCount> largest(Words<kCount> v) {
        return reduce(v, [](Words<kCount> a, const Words<kCount>& b) {
            for (int i = 0; i < kCount; ++i) a.v[i] = b.v[i] > a.v[i] ? b.v[i] : a.v[i];
            return a;
        });
    }
    __device__ Best best(Best v) {
        // The lower id has the larger word; 0: no token.
        Words<2> words{{v.key, v.token < 0 ? 0 : uint64_t{~static_cast<uint32_t>(v.token)}}};
        words = reduce(words, [](const Words<2>& a, const Words<2>& b) {
            return a.v[0] > b.v[0] || (a.v[0] == b.v[0] && a.v[1] >= b.v[1]) ? a : b;
        });
        return {words.v[0], words.v[1] == 0 ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(words.v[1]))};
    }
};

/// What a token is in a search: its place in the order (larger keys first), and its mass; 0: not part of it.
struct Item {
    uint64_t key = 0;
    uint64_t mass = 0;
};

/// The items of a search, or those of one range of keys.
struct Range {
    uint64_t low = 0, high = 0;  // keys
    uint64_t above = 0;          // mass of larger keys
    uint64_t mass = 0, count = 0;
};

/// One row, or a CTA's part of it: tokens [begin, end), of which each thread always takes the same.
struct Part {
    Team& team;
    int begin, end;

    template <class Visit>
    __device__ void each(const Visit& visit) const {
        for (int token = begin + static_cast<int>(threadIdx.x); token < end; token += kThreads) visit(token);
    }

    template <class ItemOf>
    __device__ Range survey(const ItemOf& item_of) const {
        Words<2> extent, totals;
        each([&](int token) {
            const Item item = item_of(token);
            if (item.mass == 0) return;
            extent.v[0] = item.key > extent.v[0] ? item.key : extent.v[0];
            extent.v[1] = ~item.key > extent.v[1] ? ~item.key : extent.v[1];
            totals.v[0] += item.mass;
            ++totals.v[1];
        });
        extent = team.largest(extent);
        totals = team.sum(totals);
        return {~extent.v[1], extent.v[0], 0, totals.v[0], totals.v[1]};
    }

    /// Narrows the range to the one key at which the mass, summed from the largest key, reaches `need`.
    /// REQUIRES 1 <= need <= mass of the whole range.
    template <class ItemOf>
    __device__ Range search(Range range, uint64_t need, const ItemOf& item_of) const {
        while (range.low < range.high && range.count > 1) range = quarter(range, need, item_of);
        if (range.low == range.high) return range;
        Words<1> key;  // of the only item
        each([&](int token) {
            const Item item = item_of(token);
            if (item.mass != 0 && item.key >= range.low && item.key <= range.high) key.v[0] = item.key;
        });
        range.low = range.high = team.largest(key).v[0];
        return range;
    }

    template <class ItemOf>
    __device__ Range quarter(const Range& range, uint64_t need, const ItemOf& item_of) const {
        const uint64_t span = range.high - range.low;
        const uint64_t cut[3] = {range.low + span / 4 + (span % 4 != 0 ? 1 : 0), range.low + span / 2 + span % 2,
                                 range.high - span / 4};
        Words<4> sums;  // mass from each cut up to high; the three counts, 21 bits each
        each([&](int token) {
            const Item item = item_of(token);
            if (item.mass == 0 || item.key < cut[0] || item.key > range.high) return;
            sums.v[0] += item.mass;
            sums.v[1] += item.key >= cut[1] ? item.mass : 0;
            sums.v[2] += item.key >= cut[2] ? item.mass : 0;
            sums.v[3] +=
                1 + (item.key >= cut[1] ? uint64_t{1} << 21 : 0) + (item.key >= cut[2] ? uint64_t{1} << 42 : 0);
        });
        sums = team.sum(sums);
        Range part = range;
        uint64_t above_mass = 0, above_count = 0;
        for (int q = 2; q >= 0; --q) {
            const uint64_t mass = sums.v[q], count = sums.v[3] >> (21 * q) & ((1 << 21) - 1);
            part.low = cut[q];
            part.above = range.above + above_mass;
            part.mass = mass - above_mass;
            part.count = count - above_count;
            if (range.above + mass >= need) return part;
            part.high = cut[q] - 1;
            above_mass = mass;
            above_count = count;
        }
        return {range.low, cut[0] - 1, range.above + above_mass, range.mass - above_mass, range.count - above_count};
    }
};

/// CTA (c, r): part c of row r. `scratch`: f64 [n, vocab], or nullptr: `per_cta` doubles of shared memory.
__device__ void filter_row(const Draw& draw, int per_cta, double* scratch) {
    extern __shared__ __align__(16) unsigned char memory[];
    pdl_trigger();
    pdl_wait();
    const int r = static_cast<int>(blockIdx.y);
    if (draw.unfinished[r] == 0) return;
    Team team(*reinterpret_cast<Shared*>(memory));
    team.barrier();  // the others' shared memory is there
    const Row row(draw, r);
    const SampleParams& params = row.params;
    const int begin = min(team.rank * per_cta, draw.vocab);
    const Part part{team, begin, min(begin + per_cta, draw.vocab)};
    double* const cells = scratch != nullptr ? scratch + int64_t{r} * draw.vocab + begin
                                             : reinterpret_cast<double*>(memory + sizeof(Shared));
    const auto cell = [&](int token) -> double& { return cells[token - begin]; };
    const auto weight_key = [&](int token) { return static_cast<uint64_t>(__double_as_longlong(cell(token))); };

    Words<1> top;
    part.each([&](int token) {
        const double value = row.value(token);
        cell(token) = value;
        top.v[0] = order_key(value) > top.v[0] ? order_key(value) : top.v[0];
    });
    const double largest = from_order_key(team.largest(top).v[0]);

    uint64_t least = 0;
    if (limits(params, draw.vocab)) {
        const auto item = [&](int token) { return Item{order_key(cell(token)), 1}; };
        least = part.search(part.survey(item), static_cast<uint64_t>(params.top_k), item).low;
    }
    part.each([&](int token) {
        const double value = cell(token);
        cell(token) = order_key(value) >= least ? row.weight(value, largest) : 0.0;
    });

    uint64_t edge_key = 0, edge_token = 0xFFFFFFFFu;  // the last token of the prefix
    if (params.top_p < 1) {
        const auto item = [&](int token) {
            return Item{weight_key(token), static_cast<uint64_t>(cell(token) * draw.mass_scale)};
        };
        const Range whole = part.survey(item);
        const auto enough = static_cast<uint64_t>(ceil(params.top_p * static_cast<double>(whole.mass)));
        const uint64_t need = enough < 1 ? 1 : enough > whole.mass ? whole.mass : enough;
        const Range edge = part.search(whole, need, item);
        edge_key = edge.low;
        const uint64_t each = edge.mass / edge.count, equals = (need - edge.above + each - 1) / each;
        if (equals < edge.count) {
            const auto by_id = [&](int token) {
                return Item{~static_cast<uint64_t>(token), weight_key(token) == edge_key ? uint64_t{1} : 0};
            };
            edge_token = ~part.search(part.survey(by_id), equals, by_id).low;
        }
    }

    Best best;
    part.each([&](int token) {
        const double weight = cell(token);
        const uint64_t key = weight_key(token);
        if (weight <= 0 || weight < params.min_p) return;
        if (key < edge_key || (key == edge_key && static_cast<uint64_t>(token) > edge_token)) return;
        best = Best::better(best, Best::drawn(row, token, weight));
    });
    best = team.best(best);
    if (team.rank == 0 && threadIdx.x == 0) finish_row(draw, row, r, best.token);
}

__global__ void __launch_bounds__(kThreads) sample_filter_kernel(Draw draw, int per_cta, double* scratch) {
    filter_row(draw, per_cta, scratch);
}
__global__ void __launch_bounds__(kThreads)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // older chips have no clusters and are not asked for one
    __cluster_dims__(kCluster, 1, 1)
#endif
        filter_kernel_cluster(Draw draw, int per_cta, double* scratch) {
    filter_row(draw, per_cta, scratch);
}

int64_t shared_bytes(const Gpu& gpu, int64_t vocab) {
    const int64_t team = gpu.programmatic() ? kCluster : 1;
    return int64_t{sizeof(Shared)} + (vocab + team - 1) / team * int64_t{sizeof(double)};
}

}  // namespace

bool filter_needs_scratch(const Gpu& gpu, int64_t vocab) { return shared_bytes(gpu, vocab) > gpu.info().shared_bytes; }

void launch_filter(const Gpu& gpu, const Draw& draw, int64_t rows, double* scratch) {
    const bool cluster = gpu.programmatic();
    const int team = cluster ? kCluster : 1;
    const int per_cta = (draw.vocab + team - 1) / team;
    const int64_t bytes = scratch != nullptr ? int64_t{sizeof(Shared)} : shared_bytes(gpu, draw.vocab);
    const auto kernel = cluster ? filter_kernel_cluster : sample_filter_kernel;
    allow_shared(reinterpret_cast<const void*>(kernel), static_cast<size_t>(bytes));
    launch(gpu, kernel, dim3(static_cast<unsigned>(team), static_cast<unsigned>(rows)), dim3(kThreads),
           static_cast<size_t>(bytes), draw, per_cta, scratch);
}

}  // namespace riptide::ops::drawing
