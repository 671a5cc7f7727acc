#include "engine/execution/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "cache/delta_states.h"

namespace riptide {

namespace {

constexpr int32_t kChunks[] = {8192, 4096, 2048, 1024, 512};
constexpr int64_t kMinContext = 256;  // less is of no use to anyone

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

struct KvCost {
    int64_t per_token = 0;  // paged layers
    int64_t bounded = 0;    // window and delta layers, for all sequences
};

/// Of a delta layer: slots, spares, and the stash (DeltaStates).
int64_t delta_cost(const MemoryRequest& r, const StateSpec& spec, int32_t chunk) {
    const int64_t slots = r.sequences + std::min(r.sequences, DeltaStates::kSpares);
    const int64_t stashed = std::min<int64_t>(DeltaStates::kStashRows, int64_t{chunk} * r.sequences);
    return slots * spec.delta_bytes() + stashed * spec.delta.stash_floats() * int64_t{sizeof(float)};
}

KvCost kv_cost(const MemoryRequest& r, int32_t chunk) {
    KvCost cost;
    cost.per_token = r.drafter_per_token;
    for (const StateSpec& spec : r.specs) {
        if (spec.kind == StateSpec::Kind::delta) cost.bounded += delta_cost(r, spec, chunk);
        if (!spec.has_kv()) continue;
        const int64_t token =
            spec.num_kv_heads * (row_bytes(r.k_dtype, spec.head_dim) + row_bytes(r.v_dtype, spec.head_dim));
        if (spec.kind == StateSpec::Kind::paged) cost.per_token += token;
        if (spec.kind == StateSpec::Kind::window)
            cost.bounded += r.sequences * ((spec.window - 1 + chunk + 63) / 64 * 64) * token;
    }
    return cost;
}

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t workspace(const MemoryRequest& r, int32_t chunk, int64_t context) {
    return r.workspace.fixed + chunk * r.workspace.per_row + context * r.workspace.per_token;
}

int64_t needed(const MemoryRequest& r, int32_t chunk, int64_t context) {
    const KvCost kv = kv_cost(r, chunk);
    return r.drafter + kv.bounded + round_up(context, r.page_rows) * kv.per_token + workspace(r, chunk, context);
}

/// The largest context that fits beside a chunk; less than kMinContext if none does.
int64_t largest_context(const MemoryRequest& r, int32_t chunk) {
    const int64_t each = kv_cost(r, chunk).per_token + r.workspace.per_token;
    const int64_t left = r.available - needed(r, chunk, 0);
    if (left < 0) return 0;
    const int64_t fits = each == 0 ? r.max_context : left / each / r.page_rows * r.page_rows;
    return std::min(r.max_context, fits);
}

}  // namespace

void add_drafter(MemoryRequest& request, const DrafterMemory& drafter) {
    request.drafter = drafter.fixed;
    request.drafter_per_token = drafter.per_token;
    request.workspace.per_row += drafter.per_row;
}

MemoryPlan plan_gpu_memory(const MemoryRequest& r) {
    const int64_t wanted = r.context > 0 ? r.context : std::min(kMinContext, r.max_context);
    int32_t chunk = r.chunk_rows;
    if (chunk == 0) {
        // A large chunk is faster, but a context that the model offers is worth more.
        const int64_t hoped = r.context > 0 ? r.context : r.max_context;
        for (const int32_t candidate : kChunks) {
            if (candidate > r.max_chunk_rows) continue;
            chunk = candidate;
            if (needed(r, candidate, hoped) <= r.available) break;
        }
    }
    const int64_t fits = largest_context(r, chunk);
    if (fits < wanted)
        fail(ErrorKind::unavailable,
             "{:.1f} GiB of GPU memory are free after {:.1f} GiB of weights, but a context of {} tokens with chunks of "
             "{} "
             "rows needs {:.1f} GiB: {}",
             gib(r.available), gib(r.weights), wanted, chunk, gib(needed(r, chunk, wanted)),
             fits >= kMinContext
                 ? fmt::format("--ctx {} would fit, and smaller K/V types (--kv q8_0, q4_0, tq3_0) hold more", fits)
                 : "a smaller --chunk, smaller K/V types (--kv q4_0) or a smaller model would help");
    MemoryPlan plan;
    plan.context = r.context > 0 ? r.context : fits;
    plan.chunk_rows = chunk;
    plan.weights = r.weights;
    const KvCost kv = kv_cost(r, chunk);
    plan.per_token = kv.per_token;
    plan.kv = kv.bounded + round_up(plan.context, r.page_rows) * kv.per_token;
    plan.workspace = workspace(r, chunk, plan.context);
    plan.drafter = r.drafter;
    plan.spare = r.available - plan.drafter - plan.kv - plan.workspace;
    return plan;
}

std::string describe(const MemoryPlan& plan, DType k_dtype, DType v_dtype) {
    const std::string kv =
        k_dtype == v_dtype ? dtype_name(k_dtype) : fmt::format("{}/{}", dtype_name(k_dtype), dtype_name(v_dtype));
    const std::string drafter = plan.drafter > 0 ? fmt::format("drafter {:.2f} GiB + ", gib(plan.drafter)) : "";
    return fmt::format("weights {:.2f} GiB + {}K/V {:.2f} GiB ({} tokens, {}) + workspace {:.2f} GiB, {:.2f} GiB spare",
                       gib(plan.weights), drafter, gib(plan.kv), plan.context, kv, gib(plan.workspace),
                       gib(plan.spare));
}

}  // namespace riptide
