#include "quant/weight_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "quant/fp8_copy.h"
#include "quant/placement.h"
#include "quant/weight_upload.h"
#include "tensor/host_memory.h"

namespace riptide {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kFirstSlab = int64_t{2} << 20;  // tests load models of kilobytes
constexpr int64_t kSlab = int64_t{64} << 20;
constexpr int64_t kOwnSlab = int64_t{16} << 20;  // from here on an allocation of its own, so that slabs end nearly full

struct Slab {
    std::byte* memory;
    int64_t bytes;
};

}  // namespace

struct WeightStore::Impl {
    Gpu* gpu = nullptr;
    std::function<void(int64_t)> on_progress;
    std::deque<std::vector<float>> floats;  // on a GPU only until finish()
    std::deque<HostMemory> halved;          // on the CPU
    std::unique_ptr<WeightUpload> upload;   // only until finish()
    std::vector<Slab> slabs;
    std::byte* free = nullptr;
    int64_t free_bytes = 0;
    int64_t device_bytes = 0;
    std::map<std::tuple<const void*, DType, int64_t, int64_t>, Weight> placed;
    std::map<std::pair<DType, std::string>, int64_t> converted;

    ~Impl() {
        upload.reset();
        for (const Slab& slab : slabs) gpu->free(slab.memory, slab.bytes);
    }

    WeightUpload& uploading() {
        if (upload == nullptr) upload = std::make_unique<WeightUpload>(*gpu, on_progress);
        return *upload;
    }

    std::byte* new_slab(int64_t bytes) {
        auto* memory = static_cast<std::byte*>(gpu->allocate(bytes, "weights"));
        slabs.push_back({memory, bytes});
        device_bytes += bytes;
        return memory;
    }

    std::byte* allocate(int64_t bytes) {
        bytes = checked_add(bytes, kAlignment - 1, "weights") / kAlignment * kAlignment;
        if (bytes >= kOwnSlab) return new_slab(bytes);
        if (bytes > free_bytes) {
            const int64_t wanted = std::max(bytes, std::clamp(device_bytes, kFirstSlab, kSlab));
            const int64_t slab = gpu->available() < wanted ? bytes : wanted;
            free = new_slab(slab);
            free_bytes = slab;
        }
        std::byte* memory = free;
        free += bytes;
        free_bytes -= bytes;
        return memory;
    }

    void place(const Weight& host, const Placement& plan, const Weight& to) {
        if (!plan.converted.empty()) ++converted[{host.dtype, plan.converted}];
        uploading().matrix(host, plan, to);
    }
};

WeightStore::WeightStore(Gpu* gpu, std::function<void(int64_t)> on_progress) : impl_(std::make_unique<Impl>()) {
    impl_->gpu = gpu;
    impl_->on_progress = std::move(on_progress);
}

WeightStore::~WeightStore() = default;

Weight WeightStore::matrix(const Weight& host) {
    if (impl_->gpu == nullptr) return host;
    RT_ASSERT(host.rows > 0 && host.cols > 0);
    const auto [at, fresh] = impl_->placed.try_emplace({host.data, host.dtype, host.rows, host.cols});
    if (fresh) {
        const Placement plan = plan_placement(host);
        at->second = plan.at(impl_->allocate(plan.bytes()));
        impl_->place(host, plan, at->second);
    }
    return at->second;
}

namespace {

std::vector<Placement> plan_all(const std::vector<Weight>& host, const PlacementRules& rules) {
    std::vector<Placement> plans;
    for (const Weight& w : host) plans.push_back(plan_placement(w, rules));
    return plans;
}

bool one_layout(const std::vector<Placement>& plans) {
    return std::all_of(plans.begin(), plans.end(), [&](const Placement& p) { return same_layout(p, plans[0]); });
}

bool one_scale(const std::vector<Placement>& plans) {
    return std::all_of(plans.begin(), plans.end(), [&](const Placement& p) { return p.w.scale == plans[0].w.scale; });
}

/// One layout and one scale for all, exact if there is one.
std::vector<Placement> plan_stack(const std::vector<Weight>& host) {
    PlacementRules rules;
    std::vector<Placement> plans = plan_all(host, rules);
    if (!one_layout(plans)) {  // bf16 holds some, not all
        rules.bf16 = false;
        plans = plan_all(host, rules);
    }
    if (one_layout(plans) && !one_scale(plans)) {
        rules.fold_scale = true;
        plans = plan_all(host, rules);
    }
    if (!one_layout(plans) || !one_scale(plans)) {
        rules.f16 = true;
        rules.fold_scale = false;
        plans = plan_all(host, rules);
    }
    RT_ASSERT(one_layout(plans) && one_scale(plans));  // one shape
    return plans;
}

}  // namespace

std::vector<Weight> WeightStore::experts(const std::vector<Weight>& host) {
    if (impl_->gpu == nullptr || host.empty()) return host;
    const std::vector<Placement> plans = plan_stack(host);
    const int64_t stride = plans[0].bytes();
    const std::byte* base =
        impl_->allocate(checked_mul(stride, static_cast<int64_t>(host.size()), "a stack of experts"));
    std::vector<Weight> weights;
    for (size_t e = 0; e < host.size(); ++e) {
        weights.push_back(plans[e].at(base + static_cast<int64_t>(e) * stride));
        impl_->place(host[e], plans[e], weights.back());
    }
    return weights;
}

Weight WeightStore::halved(const Weight& host) {
    if (impl_->gpu != nullptr || host.dtype != DType::f32) return matrix(host);
    const Placement plan = plan_placement(host);
    if (plan.w.dtype != DType::bf16) return host;
    return place_on_host(host, plan, impl_->halved.emplace_back(plan.bytes(), "weights").data());
}

std::span<const float> WeightStore::floats(std::vector<float> values) {
    const std::vector<float>& kept = impl_->floats.emplace_back(std::move(values));
    if (impl_->gpu == nullptr || kept.empty()) return kept;
    const auto bytes = static_cast<int64_t>(kept.size() * sizeof(float));
    std::byte* memory = impl_->allocate(bytes);
    impl_->uploading().bytes(kept.data(), bytes, memory);
    return {reinterpret_cast<const float*>(memory), kept.size()};
}

void WeightStore::finish() {
    if (impl_->upload == nullptr) return;
    impl_->upload->finish();
    impl_->upload.reset();
    impl_->floats.clear();
}

void WeightStore::add_fp8(std::span<Weight* const> weights) {
    for (Weight* w : weights) {
        if (!*w) continue;
        std::vector<Weight> one{*w};
        add_fp8(one);
        *w = one[0];
    }
}

void WeightStore::add_fp8(std::vector<Weight>& experts) {
    RT_ASSERT(impl_->gpu != nullptr && impl_->upload == nullptr);
    if (experts.empty() || !has_fp8_form(experts[0])) return;
    const Weight& first = experts[0];
    const auto count = static_cast<int64_t>(experts.size());
    const int64_t stride =
        count < 2 ? 0 : static_cast<const char*>(experts[1].data) - static_cast<const char*>(first.data);
    const int64_t values = fp8_rows(first.rows) * first.cols, scales = fp8_scales(first.rows, first.cols);
    std::byte* const memory = impl_->allocate(count * values);
    auto* const scale = reinterpret_cast<float*>(impl_->allocate(count * scales * 4));
    write_fp8(*impl_->gpu, first, count, stride, memory, scale);
    for (int64_t e = 0; e < count; ++e) {
        experts[static_cast<size_t>(e)].fp8 = memory + e * values;
        experts[static_cast<size_t>(e)].fp8_scales = scale + e * scales;
    }
}

int64_t WeightStore::device_bytes() const { return impl_->device_bytes; }

std::vector<std::string> WeightStore::conversions() const {
    std::vector<std::string> notes;
    for (const auto& [what, count] : impl_->converted)
        notes.push_back(fmt::format("{}: {} {} stored as f16 ({})", dtype_name(what.first), count,
                                    count == 1 ? "matrix" : "matrices", what.second));
    return notes;
}

}  // namespace riptide
