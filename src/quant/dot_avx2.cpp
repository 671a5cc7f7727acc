#include "quant/dot_span.h"
#if defined(__x86_64__)
namespace riptide {
void quantize_avx2(const float* x, int64_t begin, int64_t end, int64_t cols, void* out) { quantize_baseline(x, begin, end, cols, out); }
void dot_avx2(const DotTask& task) { dot_baseline(task); }
}  // namespace riptide
#endif
