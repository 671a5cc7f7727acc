// How the products of kquant_f16_mma_sm90.cu come together: the chains of a strip lie in several warps of a team and,
// where CTAs share strips, in a cluster of 2 or 4 of them. A piece is eight columns of x's rows of a strip's products,
// as an mma has them; each has a warp and a CTA that finish it. Order: ((c0 + c4) + (c1 + c5)) + ((c2 + c6) + (c3 +
// c7)) of the chains, wherever they lie.
//
// Sums go to another CTA by st.async to the inbox of its team, where an mbarrier counts bytes; an acknowledgement lets
// the next ones come. A release at that would wait for a thread's stores to device memory (MEMBAR.ALL.GPU in machine
// code: 16 rows of the head 312 instead of 290 us, H200), so the fence before it looks at shared memory alone.
//
// Behind the last strip nobody sends, so nobody acknowledges: an acknowledgement that comes when its CTA has ended is a
// launch failure, and no barrier that does not wait for stores keeps a CTA until it has come. (One was there; a GPU
// that many processes shared failed in one of 40 runs.) All else that a CTA is sent it waits for.
#pragma once

#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/linear/shared/kquant_f16_ring.cuh"

namespace riptide::ops::cuda::decode {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Columns 8 nt .. of a strip's products, as an mma has them: where they go.
struct PiecePlace {
    int64_t at[4];
    bool there[4];

    __device__ __forceinline__ PiecePlace(const F16Args& a, const StripRows& rows, int nt) {
        const int lane = threadIdx.x % 32, row = rows.row[0] + lane / 4, col = 8 * nt + 2 * (lane % 4);
        const int of = a.m[rows.matrix[0]].rows;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            at[e] = static_cast<int64_t>(col + e % 2) * of + row + (a.gate_up != 0 ? 0 : e / 2 * 8);
            there[e] = col + e % 2 < a.n && row + (a.gate_up != 0 ? 0 : e / 2 * 8) < of;
        }
    }
    __device__ __forceinline__ void load(const float* from, float (&old)[4]) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) old[e] = from != nullptr && there[e] ? from[at[e]] : 0.0f;
    }
    /// by: 1 / rms of the columns. old: what stood in the residual.
    __device__ __forceinline__ void store(const F16Args& a, const StripRows& rows, const float (&v)[4],
                                          const float (&by)[2], const float (&old)[4]) const {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) w[e] = a.rms != nullptr ? __fmul_rn(v[e], by[e % 2]) : v[e];
        float* const y = a.m[rows.matrix[0]].y;
        if (a.gate_up != 0) {  // one matrix's rows; e + 2: the other one's
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (there[e]) y[at[e]] = a.gate_up == 1 ? swiglu_value(w[e], w[e + 2]) : swiglu_value(w[e + 2], w[e]);
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!there[e]) continue;
            y[at[e]] = w[e];
            if (a.residual != nullptr) a.residual[at[e]] = __fadd_rn(old[e], w[e]);
        }
    }
};

__device__ __forceinline__ void add_piece(float (&c)[4], float4 s) {
    c[0] = __fadd_rn(c[0], s.x), c[1] = __fadd_rn(c[1], s.y), c[2] = __fadd_rn(c[2], s.z), c[3] = __fadd_rn(c[3], s.w);
}
__device__ __forceinline__ void set_piece(float (&c)[4], float4 s) { c[0] = s.x, c[1] = s.y, c[2] = s.z, c[3] = s.w; }
__device__ __forceinline__ float4 piece_of(const float (&c)[4]) { return make_float4(c[0], c[1], c[2], c[3]); }

/// Tells the other CTAs of a cluster that what they sent has been read; so many bytes come next. By one lane.
template <int C>
__device__ __forceinline__ void acknowledge(uint32_t there, int bytes, int rank) {
    expect_bytes(there, bytes);
    // A release that looks at shared memory alone: one for all waits for stores to device memory.
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
#pragma unroll
    for (int r = 0; r < C; ++r)
        if (r != rank)
            asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                             in_cta(there + 8, static_cast<uint32_t>(r)))
                         : "memory");
}

/// What a strip's chains make together, and where it goes: the warps of a team add theirs through shared memory, the
/// CTAs of a cluster through each other's inboxes. Each piece has a warp and a CTA that finish it.
template <int NT, int C>
struct F16Finish {
    using S = F16Shape<NT, C>;
    static constexpr int W = S::W;

    float4* meeting;  // of the team
    float4* inbox;    // of the team: [piece / C][sender]
    uint32_t there;   // the barrier that counts what comes there; behind it one of acknowledgements
    int rank, of_team, named;
    bool receives, sends;
    int turn = 0;  // of the two places
    uint32_t there_parity = 0, read_parity = 1;
    float rms[S::kOwn][2];  // 1 / rms of the columns that the warp finishes

    /// barriers: two for each warp. By all lanes; a barrier of the cluster comes before run().
    __device__ __forceinline__ F16Finish(const F16Args& a, char* shared, uint64_t* barriers, int warp, int rank_)
        : rank(rank_), of_team(warp % W), named(6 + warp / W) {
        const int lane = threadIdx.x % 32, team = warp / W;
        meeting = reinterpret_cast<float4*>(shared + a.meeting_at + team * S::kMeeting * kPieceBytes) + lane;
        inbox = reinterpret_cast<float4*>(shared + a.inbox_at + team * S::kInbox * kPieceBytes) + lane;
        there = shared_address(barriers + 2 * warp);
        int finishers = 0;  // other CTAs that finish pieces of this warp
        receives = false;
        if constexpr (C > 1) {
#pragma unroll
            for (int f = 0; f < C; ++f) {
                bool some = false;
#pragma unroll
                for (int i = 0; i < S::kOwn; ++i) some = some || (has(i) && finisher(i) == f);
                if (f == rank) receives = some;
                else finishers += some ? 1 : 0;
            }
            if (lane == 0) {
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(there) : "memory");
                asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(there + 8), "r"(max(1, finishers)) : "memory");
                publish_barriers();
                if (receives) expect_bytes(there, expected());
            }
        }
        sends = finishers > 0;
    }
    /// Once x is there.
    __device__ __forceinline__ void enter(const F16Args& a) {
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int col = 8 * piece(i) + 2 * (static_cast<int>(threadIdx.x) % 4) + e;
                rms[i][e] = a.rms != nullptr && col < a.n ? a.rms[col] : 1.0f;
            }
    }
    /// Whether the warp has an i-th piece.
    __device__ __forceinline__ int piece(int i) const { return of_team + W * i; }
    /// The CTA that finishes it.
    __device__ __forceinline__ int finisher(int i) const { return piece(i) % C; }
    __device__ __forceinline__ bool has(int i) const { return piece(i) < NT; }
    __device__ __forceinline__ int expected() const {
        int pieces = 0;
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i) pieces += has(i) && finisher(i) == rank ? C - 1 : 0;
        return pieces * kPieceBytes;
    }
    __device__ __forceinline__ void sync() const {
        asm volatile("bar.sync %0, %1;" ::"r"(named), "n"(32 * W) : "memory");
    }

    /// c: of the warp's chains. By all warps of the team. last: of the kernel, for this team in all CTAs of the
    /// cluster.
    __device__ __forceinline__ void run(const F16Args& a, const StripRows& rows, const float (&c)[NT][4], bool last) {
        float old[S::kOwn][4];
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
            if (has(i) && finisher(i) == rank) PiecePlace(a, rows, piece(i)).load(a.residual, old[i]);
        float4* const place = meeting + (C == 1 ? 32 * W * NT * turn : 0);
#pragma unroll
        for (int j = 0; j < NT; ++j)
            if (j % W != of_team) place[32 * (C == 1 ? of_team * NT + j : j)] = piece_of(c[j]);
        sync();
        float sum[S::kOwn][4];
#pragma unroll
        for (int j = 0; j < NT; ++j) {
            if (j % W != of_team) continue;
            float(&s)[4] = sum[j / W];
#pragma unroll
            for (int e = 0; e < 4; ++e) s[e] = c[j][e];
            if constexpr (C == 1) {
                float high[4];
                const float4 second = place[32 * (NT + j)], third = place[32 * (2 * NT + j)],
                             fourth = place[32 * (3 * NT + j)];
                high[0] = third.x, high[1] = third.y, high[2] = third.z, high[3] = third.w;
                add_piece(s, second), add_piece(high, fourth);
#pragma unroll
                for (int e = 0; e < 4; ++e) s[e] = __fadd_rn(s[e], high[e]);
            } else {
                add_piece(s, place[32 * j]);
            }
        }
        if constexpr (C == 1) {
            turn ^= 1;
        } else {
            sync();  // it has been read
            exchange(sum, last);
        }
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
            if (has(i) && finisher(i) == rank) PiecePlace(a, rows, piece(i)).store(a, rows, sum[i], rms[i], old[i]);
    }

    /// Sends what others finish, adds what others sent.
    __device__ __forceinline__ void exchange(float (&sum)[S::kOwn][4], bool last) {
        if (sends) {
            wait_parity(there + 8, read_parity);  // what was sent before was read
            read_parity ^= 1;
#pragma unroll
            for (int i = 0; i < S::kOwn; ++i) {
                const int to = finisher(i);
                if (!has(i) || to == rank) continue;
                const int place = piece(i) / C * (C - 1) + (rank - to + C) % C - 1;
                send(in_cta(shared_address(inbox + 32 * place), static_cast<uint32_t>(to)), piece_of(sum[i]),
                     in_cta(there, static_cast<uint32_t>(to)));
            }
        }
        if (!receives) return;
        wait_cluster(there, there_parity);
        there_parity ^= 1;
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i) {
            if (!has(i) || finisher(i) != rank) continue;
            const auto part = [&](int from) {
                return from == rank ? piece_of(sum[i])
                                    : inbox[32 * (piece(i) / C * (C - 1) + (from - rank + C) % C - 1)];
            };
            if constexpr (C == 2) {
                add_piece(sum[i], part(rank ^ 1));
            } else {
                const float4 p[4] = {part(0), part(1), part(2), part(3)};
                float low[4] = {p[0].x, p[0].y, p[0].z, p[0].w}, high[4] = {p[2].x, p[2].y, p[2].z, p[2].w};
                add_piece(low, p[1]), add_piece(high, p[3]);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][e] = __fadd_rn(low[e], high[e]);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0 && !last) acknowledge<C>(there, expected(), rank);
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace riptide::ops::cuda::decode
