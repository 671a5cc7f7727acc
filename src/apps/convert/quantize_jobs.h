// A model as GGUF in another type, tensor by tensor: for `riptide quantize`, which writes it, and for --weights, which
// keeps it in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/convert/gguf_layout.h"
#include "base/thread_pool.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "tensor/tensor.h"

namespace riptide::apps {

/// Keys that say which importance matrix a file was made with: not true of what is made of it.
inline constexpr std::string_view kImportanceKeys = "quantize.imatrix.";

/// One tensor to make: where its rows come from, and in what type they go out.
struct QuantizeJob {
    LayoutTensor tensor;
    DType asked = DType::f32;  // by the mix; dtype is another where rows do not fit, or precision counts
    DType dtype = DType::f32;
    std::vector<Weight> parts;      // experts in order, or one matrix; views of the checkpoint
    std::vector<float> vector;      // instead of parts
    std::vector<std::byte> bytes;   // instead of both: as they are
    bool fixed = false;             // dtype is the source's, whatever is asked for
    std::vector<int64_t> columns;   // of parts: the column that each comes from; empty: as they are
    std::vector<float> importance;  // of the columns as they go out, [matrices, cols]; empty: all alike

    /// Of the tensor that is made.
    int64_t made_bytes() const;
    /// Of row r of all parts; null: none.
    const float* importance_of(int64_t r) const;
};

/// The tensors of `checkpoint` (safetensors or GGUF, a model or a DFlash drafter) as a GGUF of `mix` has them, in its
/// order. Views of the checkpoint, which must outlive them. Reads vectors alone. Throws Error for a model that GGUF
/// cannot hold, and as quant_mix_type does.
std::vector<QuantizeJob> quantize_jobs(const Checkpoint& checkpoint, const std::string& mix);

/// The keys of that GGUF. `name`: general.name of what was a folder; "": the folder's name. REQUIRES of a GGUF that it
/// is a GgufFile.
void write_quantized_metadata(const Checkpoint& checkpoint, const std::string& mix, const std::string& name,
                              GgufWriter& writer);

/// Sums over the weights w of a tensor and what w' was made of them.
struct QuantizeLoss {
    double lost = 0;  // of (w - w')^2
    double all = 0;   // of w^2
};

/// Makes the job's tensor piece by piece, each at most 32 MiB or a row: `take` gets them in order, on the caller's
/// thread, and they are valid until it returns. What has been read of the checkpoint's files leaves this process's
/// memory (MappedFile::let_go). `loss`: is added to, for parts whose values may change; null: not wanted (it costs a
/// decoding of what was made). Throws Error for values that the type cannot hold, and when interrupted().
void run_quantize_job(const QuantizeJob& job, const Checkpoint& checkpoint, ThreadPool& threads,
                      const std::function<void(std::span<const std::byte>)>& take, QuantizeLoss* loss = nullptr);

}  // namespace riptide::apps
