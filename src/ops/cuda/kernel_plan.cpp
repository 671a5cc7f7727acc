#include "ops/cuda/kernel_plan.h"

#include <algorithm>
#include <deque>

#include "ops/cuda/attention/plan.h"
#include "ops/cuda/linear/plan.h"
#include "ops/cuda/moe/plan.h"
#include "ops/gated_attention.h"
#include "ops/kv/kv_view.h"
#include "ops/moe.h"
#include "ops/rope.h"
#include "quant/placement.h"
#include "quant/planes.h"

namespace riptide::ops {

namespace {

using cuda::decode::ActKind;

/// Weights as a GPU would hold them, at addresses where nothing is.
class PlacedWeights {
  public:
    const Weight* one(const Weight& host) { return &placed_.emplace_back(place(host)); }
    std::vector<Weight> experts(const std::vector<Weight>& host) {
        std::vector<Weight> all;
        if (host.empty()) return all;
        const Placement plan = plan_placement(host.front());
        for (size_t e = 0; e < host.size(); ++e) all.push_back(plan.at(take(plan.bytes())));
        return all;
    }

  private:
    Weight place(const Weight& host) {
        const Placement plan = plan_placement(host);
        return plan.at(take(plan.bytes()));
    }
    const std::byte* take(int64_t bytes) {
        const uintptr_t at = next_;
        next_ += static_cast<uintptr_t>((bytes + 255) / 256 * 256);
        return reinterpret_cast<const std::byte*>(at);
    }

    std::deque<Weight> placed_;
    uintptr_t next_ = uintptr_t{1} << 40;
};

Family family_of(const PlannedStep& step) { return step.rows <= 256 ? Family::decode : Family::prefill; }

class Kernels {
  public:
    void add(const std::string& name, const std::string& file) {
        const bool known = std::any_of(all_.begin(), all_.end(), [&](const auto& k) { return k.name == name; });
        if (!known) all_.push_back({name, file});
    }
    void add(const cuda::linear::Choice& choice) {
        for (const cuda::linear::Launch& launch : choice) add(launch.kernel);
    }
    void add(cuda::linear::Kernel kernel) {
        add(cuda::linear::kernel_name(kernel), std::string("linear/") + cuda::linear::kernel_file(kernel));
    }
    std::vector<PlannedKernel> take() { return std::move(all_); }

  private:
    std::vector<PlannedKernel> all_;
};

cuda::linear::Case product_of(const PlannedStep& step, std::span<const Weight* const> weights, ActKind x,
                              bool residual = false) {
    return {.family = family_of(step),
            .rows = step.rows,
            .cols = weights[0]->cols,
            .x = x,
            .residual = residual,
            .weights = weights,
            .chip = step.chip};
}

/// A product that is added to the residual stream, of what the op before leaves it.
cuda::linear::Case added_product(const PlannedStep& step, std::span<const Weight* const> weight) {
    const bool int8 = is_planes(weight[0]->dtype) && !cuda::linear::f16_weight(step.chip, *weight[0]);
    return product_of(step, weight, int8 ? ActKind::int8 : ActKind::plain, true);
}

/// A sparse layer on the GPU.
struct PlacedLayer {
    PlacedWeights memory;
    ExpertWeights experts;
    cuda::moe::Case c;

    PlacedLayer(const Router& router, const ExpertWeights& weights, const SharedExpert& shared, const PlannedStep& step)
        : experts{memory.experts(weights.gate), memory.experts(weights.up), memory.experts(weights.down)} {
        c = {.family = family_of(step),
             .rows = step.rows,
             .normed = router.w != nullptr,
             .router = router.w == nullptr ? nullptr : memory.one(*router.w),
             .top_k = router.top_k,
             .experts = &experts,
             .chip = step.chip};
        if (shared.gate != nullptr)
            c.shared = {memory.one(*shared.gate), memory.one(*shared.up), memory.one(*shared.down),
                        shared.share == nullptr ? nullptr : memory.one(*shared.share)};
    }
    PlacedLayer(const PlacedLayer&) = delete;
    PlacedLayer& operator=(const PlacedLayer&) = delete;
};

/// What a product takes that knows of the sparse layer behind it.
cuda::linear::Choice product_before(const Weight* w, const cuda::moe::Case& next, const PlannedStep& step) {
    cuda::linear::Case c = added_product(step, {&w, 1});
    c.router = takes_words(next);
    return choose(c);
}

void plan_products(const OpCost& op, const PlannedStep& step, Kernels& to) {
    PlacedWeights memory;
    std::vector<const Weight*> placed;
    for (const Weight* w : op.weights) placed.push_back(memory.one(*w));
    if (op.next == nullptr && op.name == "matmul_add") return to.add(choose(added_product(step, placed)));
    if (op.next == nullptr)
        return to.add(choose(product_of(step, placed, op.name == "matmul_group" ? ActKind::plain : ActKind::norm)));
    const PlacedLayer next(op.next->router, *op.next->experts, op.next->shared, step);
    to.add(product_before(placed[0], next.c, step));
}

/// A dense layer. added: to the residual stream.
void add_swiglu(const Weight* gate, const Weight* up_weight, const Weight* down_weight, ActKind x, bool added,
                const PlannedStep& step, Kernels& to) {
    const Weight *const both[] = {gate, up_weight}, *const down[] = {down_weight};
    const cuda::linear::Case up = product_of(step, both, x);
    const cuda::linear::Choice pair = up.family == Family::prefill ? cuda::linear::Choice{} : choose_pair(up, *down[0]);
    if (pair.empty()) {
        to.add(choose(up));
    } else {
        for (const cuda::linear::Launch& launch : pair) {
            if (launch.kernel == cuda::linear::Kernel::any) to.add("experts_any", "moe/experts_any.cuh");
            else if (launch.kernel == cuda::linear::Kernel::float_row1) to.add("experts_float", "moe/experts_float.cu");
            else to.add(launch.kernel);
        }
    }
    cuda::linear::Case last = added_product(step, down);
    last.residual = added;
    if (pair.empty()) last.x = ActKind::plain;
    to.add(choose(last));
}

void plan_swiglu(const OpCost& op, const PlannedStep& step, Kernels& to) {
    PlacedWeights memory;
    const auto weight = [&](size_t i) { return memory.one(*op.weights[i]); };
    const bool added = op.name == "swiglu_ffn_add";
    add_swiglu(weight(0), weight(1), weight(2), added ? ActKind::norm : ActKind::plain, added, step, to);
}

void plan_experts(const OpCost& op, const PlannedStep& step, Kernels& to) {
    PlacedLayer layer(*op.router, *op.experts, *op.shared, step);
    if (op.product != nullptr)
        for (const cuda::linear::Launch& launch : product_before(layer.memory.one(*op.product), layer.c, step))
            if (cuda::linear::leaves_words(launch.kernel)) layer.c.words = true;
    const cuda::moe::Choice choice = choose(layer.c);
    if (choice.router != cuda::moe::Router::words && choice.router != cuda::moe::Router::none)
        to.add(cuda::moe::router_name(choice.router), cuda::moe::router_file(choice.router));
    const SharedExpert& shared = layer.c.shared;
    const bool decode = layer.c.family != Family::prefill;
    const ActKind x = layer.c.normed ? ActKind::norm : ActKind::plain;
    if (decode && shared.share != nullptr && !choice.share) to.add(choose(product_of(step, {&shared.share, 1}, x)));
    if (decode && choice.separate) add_swiglu(shared.gate, shared.up, shared.down, x, false, step, to);
    for (const cuda::moe::Experts which : {choice.up, choice.down})
        to.add(cuda::moe::experts_name(which), cuda::moe::experts_file(which));
}

void plan_attention(const OpCost& op, const PlannedStep& step, Kernels& to) {
    const KvView& view = *op.kv;
    const int64_t heads = op.attention->q.shape[1];
    const cuda::attn::Choice choice =
        choose(cuda::attn::Case{.family = family_of(step),
                                .rows = step.rows,
                                .sequences = step.sequences,
                                .heads = heads,
                                .kv_heads = view.num_kv_heads,
                                .head_dim = view.head_dim,
                                .rotary_dim = op.attention->rope == nullptr ? 0 : op.attention->rope->rotary_dim,
                                .k = step.k,
                                .v = step.v,
                                .window = view.window,
                                .most_keys = view.window > 0 ? view.window : step.keys,
                                .chip = step.chip});
    const auto add = [&](cuda::attn::Kernel kernel) {
        const std::string name = cuda::attn::kernel_name(kernel);
        to.add(name, "attention/" + name + ".cu");
    };
    add(choice.kernel);
    if (choice.apart) add(cuda::attn::Kernel::decode_d128_sm80);
}

}  // namespace

std::vector<PlannedKernel> planned_kernels(const OpCost& op, const PlannedStep& step) {
    Kernels kernels;
    if (op.experts != nullptr) plan_experts(op, step, kernels);
    else if (op.attention != nullptr) plan_attention(op, step, kernels);
    else if (op.name == "swiglu_ffn_add" || op.name == "swiglu_ffn") plan_swiglu(op, step, kernels);
    else if (!op.weights.empty()) plan_products(op, step, kernels);
    else if (op.name == "route_softmax") kernels.add("route", "sampling/topk.cu");
    else if (op.name == "gated_delta") kernels.add("gated_delta", "gated_delta/decode_row.cu");
    return kernels.take();
}

}  // namespace riptide::ops
