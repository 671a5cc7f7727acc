#include "ops/op_cost.h"

#include <cmath>

#include "quant/planes.h"

namespace riptide::ops {

namespace {

/// n rows through `copies` matrices like w, each row through `each` of them.
void add_product(OpCost& cost, const Weight& w, double n, double copies = 1, double each = 1) {
    cost.weight_bytes += copies * static_cast<double>(placed_bytes(w));
    cost.flops += 2 * n * each * static_cast<double>(w.rows) * static_cast<double>(w.cols);
}

}  // namespace

OpScope announce(Context& ctx, std::string_view name, int64_t n, std::span<const Weight* const> weights,
                 const MoeLayer* next) {
    if (!ctx.on_op) return OpScope(ctx);
    OpCost cost{.name = name, .rows = n, .weights = weights, .next = next};
    int64_t rows = 0;
    for (const Weight* w : weights) {
        add_product(cost, *w, static_cast<double>(n));
        if (w->cols == weights.front()->cols) rows += w->rows;  // of those that read the op's input
    }
    if (!weights.empty()) cost.shape = fmt::format("{} x {}", rows, weights.front()->cols);
    ctx.on_op(cost);
    return OpScope(ctx);
}

OpScope announce_lookup(Context& ctx, std::string_view name, int64_t n, const Weight& table) {
    if (!ctx.on_op) return OpScope(ctx);
    const double row = static_cast<double>(placed_bytes(table)) / static_cast<double>(table.rows);
    ctx.on_op({.name = name, .rows = n, .weight_bytes = static_cast<double>(n) * row});
    return OpScope(ctx);
}

OpScope announce_attention(Context& ctx, std::string_view name, const AttentionInput& in, const KvView& view) {
    if (!ctx.on_op) return OpScope(ctx);
    const int64_t heads = in.q.shape[1];
    ctx.on_op(
        {.name = name,
         .shape = fmt::format("{} heads, {}", heads, view.window > 0 ? fmt::format("window {}", view.window) : "all"),
         .rows = in.q.rows(),
         .flops_per_key = 4 * static_cast<double>(heads * view.head_dim),
         .key_bytes = view.k_slot_bytes + view.v_slot_bytes,
         .window = view.window,
         .attention = &in,
         .kv = &view});
    return OpScope(ctx);
}

OpScope announce_delta(Context& ctx, std::string_view name, const DeltaView& view, const Batch& batch, DeltaMode mode) {
    if (!ctx.on_op) return OpScope(ctx);
    const double state = static_cast<double>(batch.sequences() * view.state_bytes());
    ctx.on_op({.name = name,
               .shape = fmt::format("{} heads, {} x {}", view.value_heads, view.key_dim, view.value_dim),
               .rows = batch.rows(),
               .flops = 8 * static_cast<double>(batch.rows() * view.state_elements()),
               .state_bytes = mode == DeltaMode::update ? 2 * state : state});
    return OpScope(ctx);
}

OpCost experts_cost(std::string_view name, int64_t n, const Router& router, const ExpertWeights& weights,
                    const SharedExpert& shared) {
    const auto rows = static_cast<double>(n), experts = static_cast<double>(weights.gate.size()),
               used = static_cast<double>(router.top_k);
    OpCost cost{.name = name,
                .shape = fmt::format("{} of {} experts, {} x {}", router.top_k, weights.gate.size(),
                                     weights.gate.front().rows, weights.gate.front().cols),
                .rows = n,
                .router = &router,
                .experts = &weights,
                .shared = &shared};
    const double distinct = experts * (1 - std::pow(1 - used / experts, rows));
    if (router.w != nullptr) add_product(cost, *router.w, rows);
    for (const auto* stack : {&weights.gate, &weights.up, &weights.down})
        add_product(cost, stack->front(), rows, distinct, used);
    for (const Weight* w : {shared.gate, shared.up, shared.down, shared.share})
        if (w != nullptr) add_product(cost, *w, rows);
    return cost;
}

OpScope announce_experts(Context& ctx, std::string_view name, int64_t n, const Router& router,
                         const ExpertWeights& weights, const SharedExpert& shared, const Weight* product) {
    if (!ctx.on_op) return OpScope(ctx);
    OpCost cost = experts_cost(name, n, router, weights, shared);
    cost.product = product;
    ctx.on_op(cost);
    return OpScope(ctx);
}

}  // namespace riptide::ops
