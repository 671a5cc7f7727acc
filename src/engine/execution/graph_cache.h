// A step that becomes a CUDA graph.
#pragma once

#include <functional>

#include "tensor/context.h"

namespace riptide {

/// A series of ops on tensors of fixed sizes that is run again and again. The first run goes kernel by kernel and warms
/// the arena up, the second is recorded as a graph, all later ones launch that graph. While the context has a tap
/// or on_op, every run goes kernel by kernel. Both ways give the same bits. On the CPU it only calls its body.
class RecordedStep {
  public:
    /// Resets the arena, runs `body`, and returns what it returns, valid until the arena is reset. The body must depend
    /// on nothing but device memory at fixed addresses and facts that never change; it must not wait for the device.
    Tensor run(Context& ctx, const std::function<Tensor()>& body) {
        ctx.arena->reset();
        if (ctx.gpu == nullptr || !warm_ || ctx.tap || ctx.on_op) {
            const Tensor result = body();
            if (ctx.on_op) ctx.on_op({});
            warm_ = true;
            return result;
        }
        if (ctx.gpu->sums_open) {  // a step failed: what it added is not for this one
            ctx.gpu->fill(ctx.gpu->sums(), 0, Gpu::kSums * int64_t{sizeof(uint64_t)});
            ctx.gpu->sums_open = false;
        }
        if (!graph_) {
            graph_ = GpuGraph(*ctx.gpu, [&] { result_ = body(); });
            end_ = ctx.arena->mark();
        }
        graph_.launch();
        ctx.arena->restore(end_);  // what the graph writes counts as allocated
        return result_;
    }
    /// Whether runs launch a graph by now.
    bool recorded() const { return static_cast<bool>(graph_); }

  private:
    bool warm_ = false;
    GpuGraph graph_;
    Tensor result_;
    Arena::Mark end_ = {0, 0};
};

}  // namespace riptide
