// Laws: any bytes open or throw Error; what opens lies inside the image; and written out again it reads back the same.
#include <cstdint>
#include <functional>

#include "base/error.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace riptide;
using fuzz::require;

std::vector<std::byte> rewrite(const GgufFile& file) {
    std::vector<std::byte> out;
    GgufWriter writer(out);
    writer.copy_metadata(file);
    for (const TensorInfo& tensor : file.tensors()) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    for (const TensorInfo& tensor : file.tensors()) writer.write_tensor(tensor.name, tensor.bytes);
    writer.finish();
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(data), size);
    std::unique_ptr<GgufFile> file;
    try {
        file = GgufFile::from_memory(image, "fuzz.gguf");
    } catch (const Error&) {
        return 0;
    }
    const std::less_equal<const std::byte*> before;
    for (const TensorInfo& tensor : file->tensors()) {
        require(!tensor.bytes.empty() && before(image.data(), tensor.bytes.data()));
        require(before(tensor.bytes.data() + tensor.bytes.size(), image.data() + image.size()));
        require(file->find(tensor.name) == &tensor);
    }
    const std::vector<std::byte> copy = rewrite(*file);
    const auto again = GgufFile::from_memory(copy, "copy.gguf");
    require(again->tensors().size() == file->tensors().size() && again->tensor_bytes() == file->tensor_bytes());
    for (const auto& entry : again->metadata()) require(again->type_of(entry.key()) == file->type_of(entry.key()));
    require(rewrite(*again) == copy);
    return 0;
}
