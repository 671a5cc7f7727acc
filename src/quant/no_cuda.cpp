// What quant/weight_upload.h means in a build without CUDA: nothing can open the Gpu that it needs.
#include "base/error.h"
#include "quant/fp8_copy.h"
#include "quant/weight_upload.h"

namespace riptide {

namespace {
[[noreturn]] void no_cuda() { fail(ErrorKind::unavailable, "this riptide was built without CUDA"); }
}  // namespace

struct WeightUpload::Impl {};

WeightUpload::WeightUpload(Gpu&, std::function<void(int64_t)>) { no_cuda(); }
WeightUpload::~WeightUpload() = default;
void WeightUpload::matrix(const Weight&, const Placement&, const Weight&) { no_cuda(); }
void WeightUpload::bytes(const void*, int64_t, void*) { no_cuda(); }
void WeightUpload::finish() { no_cuda(); }

void write_fp8(Gpu&, const Weight&, int64_t, int64_t, void*, float*) { no_cuda(); }

}  // namespace riptide
