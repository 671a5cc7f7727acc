#include "apps/convert/input_squares.h"

#include <cmath>

#include "base/error.h"

namespace riptide::apps {

InputSquares::InputSquares(const Checkpoint& checkpoint, Context& context) : context_(context) {
    RT_CHECK(checkpoint.format() == Checkpoint::Format::gguf,
             "{}: an importance matrix goes by the names of a GGUF file; make one with riptide quantize --type bf16",
             checkpoint.path());
    for (const TensorInfo& tensor : checkpoint.tensors())
        if (tensor.shape.size() >= 2) by_end_[tensor.bytes.data() + tensor.bytes.size()].tensor = &tensor;
    context_.on_input = [this](const Weight& w, const Tensor& rows) { see(w, rows); };
}
InputSquares::~InputSquares() { context_.on_input = nullptr; }

void InputSquares::see(const Weight& w, const Tensor& rows) {
    const auto* data = static_cast<const std::byte*>(w.data);
    const auto found = by_end_.upper_bound(data);
    if (found == by_end_.end() || data < found->second.tensor->bytes.data()) return;
    Sums& sums = found->second;
    const TensorInfo& tensor = *sums.tensor;
    RT_ASSERT(w.cols == tensor.shape.back() && rows.shape[1] == w.cols);
    const size_t matrices = tensor.shape.size() == 3 ? static_cast<size_t>(tensor.shape[0]) : 1;
    const auto cols = static_cast<size_t>(w.cols);
    if (sums.squares.empty()) {
        sums.squares.resize(matrices * cols);
        sums.rows.resize(matrices);
    }
    const size_t matrix = static_cast<size_t>(data - tensor.bytes.data()) / (tensor.bytes.size() / matrices);
    double* squares = sums.squares.data() + matrix * cols;
    for (int64_t r = 0; r < rows.rows(); ++r) {
        const float* x = rows.row(r);
        for (size_t c = 0; c < cols; ++c) squares[c] += double{x[c]} * x[c];
    }
    sums.rows[matrix] += rows.rows();
    for (size_t c = 0; c < cols; ++c)
        RT_CHECK(std::isfinite(static_cast<float>(squares[c])),
                 "{}: the inputs of column {} of {} add up to {}, expected finite values", tensor.file, c, tensor.name,
                 squares[c]);
}

ImportanceMatrix InputSquares::result() const {
    ImportanceMatrix matrix;
    for (const auto& [end, sums] : by_end_) {
        if (sums.squares.empty()) continue;
        ImportanceMatrix::Entry& entry = matrix.entries[sums.tensor->name];
        entry.sums.assign(sums.squares.begin(), sums.squares.end());
        entry.counts.assign(sums.rows.begin(), sums.rows.end());
    }
    return matrix;
}

}  // namespace riptide::apps
