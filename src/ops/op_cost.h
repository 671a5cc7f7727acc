// What the ops tell Context::on_op.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "ops/gated_attention.h"
#include "ops/gated_delta.h"
#include "ops/kv/kv_view.h"
#include "ops/moe.h"

namespace riptide::ops {

/// While it lives an op runs: those inside it tell nothing.
class OpScope {
  public:
    explicit OpScope(Context& ctx) : ctx_(ctx), on_op_(std::exchange(ctx.on_op, nullptr)) {}
    ~OpScope() { ctx_.on_op = std::move(on_op_); }
    OpScope(const OpScope&) = delete;
    OpScope& operator=(const OpScope&) = delete;

  private:
    Context& ctx_;
    std::function<void(const OpCost&)> on_op_;
};

/// Each does nothing unless ctx.on_op is set. Called first thing by every op that a model calls, which keeps the scope
/// until it returns.

/// n rows through each of some matrices; none: an op without weights. next: see matmul_add.
[[nodiscard]] OpScope announce(Context& ctx, std::string_view name, int64_t n,
                               std::span<const Weight* const> weights = {}, const MoeLayer* next = nullptr);
/// n rows of a table.
[[nodiscard]] OpScope announce_lookup(Context& ctx, std::string_view name, int64_t n, const Weight& table);
[[nodiscard]] OpScope announce_attention(Context& ctx, std::string_view name, const AttentionInput& in,
                                         const KvView& view);
[[nodiscard]] OpScope announce_delta(Context& ctx, std::string_view name, const DeltaView& view, const Batch& batch,
                                     DeltaMode mode);
/// router.w: null where the experts are chosen already. product: that made the rows and knew of this layer, or null.
[[nodiscard]] OpScope announce_experts(Context& ctx, std::string_view name, int64_t n, const Router& router,
                                       const ExpertWeights& weights, const SharedExpert& shared,
                                       const Weight* product = nullptr);
/// What announce_experts tells.
OpCost experts_cost(std::string_view name, int64_t n, const Router& router, const ExpertWeights& weights,
                    const SharedExpert& shared);

}  // namespace riptide::ops
