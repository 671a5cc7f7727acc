// What the ops tell Context::on_op.
#pragma once

#include <span>
#include <string_view>

#include "ops/gated_attention.h"
#include "ops/gated_delta.h"
#include "ops/kv/kv_view.h"
#include "ops/moe.h"

namespace riptide::ops {

/// Each does nothing unless ctx.on_op is set. Called first thing by the ops that models call, and by no op inside them.

/// n rows through each of some matrices; none: an op without weights. next: see matmul_add.
void announce(Context& ctx, std::string_view name, int64_t n, std::span<const Weight* const> weights = {},
              const MoeLayer* next = nullptr);
/// n rows of a table.
void announce_lookup(Context& ctx, std::string_view name, int64_t n, const Weight& table);
void announce_attention(Context& ctx, std::string_view name, const AttentionInput& in, const KvView& view);
void announce_delta(Context& ctx, std::string_view name, const DeltaView& view, const Batch& batch, DeltaMode mode);
/// product: that made the rows and knew of this layer, or null.
void announce_experts(Context& ctx, std::string_view name, int64_t n, const Router& router,
                      const ExpertWeights& weights, const SharedExpert& shared, const Weight* product);
/// What announce_experts tells.
OpCost experts_cost(std::string_view name, int64_t n, const Router& router, const ExpertWeights& weights,
                    const SharedExpert& shared);

}  // namespace riptide::ops
