// Where an op runs.
#pragma once

#include <functional>
#include <string_view>

#include "base/thread_pool.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace riptide {

enum class Device { cpu, cuda };

/// Sees intermediate results by name: tap(name, layer, value). Called on the thread that runs forward.
using Tap = std::function<void(std::string_view name, int layer, const Tensor& value)>;

/// The device, its threads, the arena for temporaries, and an optional tap. Passed to every op; there are no globals.
struct Context {
    Device device = Device::cpu;
    ThreadPool* threads = nullptr;
    Arena* arena = nullptr;
    Tap tap;

    /// A fresh, uninitialised arena tensor.
    Tensor alloc(DType dtype, std::initializer_list<int64_t> shape) {
        Tensor t(nullptr, dtype, shape);
        t.data = arena->allocate(shape.size() == 0 ? 0 : t.shape[0] * row_bytes(dtype, t.row_elements()));
        return t;
    }
    void observe(std::string_view name, int layer, const Tensor& value) const {
        if (tap) tap(name, layer, value);
    }
};

}  // namespace riptide
