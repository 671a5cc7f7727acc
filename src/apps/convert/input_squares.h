// Collects an importance matrix while a model runs.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/importance_matrix.h"
#include "tensor/context.h"

namespace riptide::apps {

/// Adds up squares of the inputs of every matrix that lies in a GGUF checkpoint's tensors, by column, from when it is
/// made until it is destroyed: it is the context's on_input. A matrix is known by where its bytes lie; of a stack each
/// expert has sums of its own. Sums are double. Matrices that lie elsewhere (copies in f32, such as routers) are passed
/// over. Throws Error from forward if an input is not finite, naming the tensor.
class InputSquares {
  public:
    /// Both must outlive it.
    InputSquares(const Checkpoint& checkpoint, Context& context);
    ~InputSquares();
    InputSquares(const InputSquares&) = delete;
    InputSquares& operator=(const InputSquares&) = delete;

    /// What was seen so far; chunk_count, chunk_size and datasets are the caller's.
    ImportanceMatrix result() const;

  private:
    struct Sums {
        const TensorInfo* tensor = nullptr;
        std::vector<double> squares;  // [matrices, cols]; empty: not seen
        std::vector<int64_t> rows;    // [matrices]
    };
    void see(const Weight& w, const Tensor& rows);

    Context& context_;
    std::map<const std::byte*, Sums> by_end_;  // of a tensor's bytes
};

}  // namespace riptide::apps
