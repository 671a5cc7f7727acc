// Qwen's stream parser; see stream_laws.h.
#include "tests/fuzz/stream_laws.h"
#include "text/dialects/qwen.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    return riptide::fuzz::check_stream(data, size, riptide::make_qwen_parser, "<|im_end|>");
}
