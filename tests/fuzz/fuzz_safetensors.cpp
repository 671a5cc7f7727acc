// Laws: any bytes open or throw Error; what opens covers the data exactly.
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "io/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

namespace {}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace riptide;
    using fuzz::require;
    const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(data), size);
    std::unique_ptr<SafetensorsModel> model;
    try {
        model = SafetensorsModel::from_memory(image, "fuzz.safetensors");
    } catch (const Error&) {
        return 0;
    }
    uint64_t header = 0;
    std::memcpy(&header, data, sizeof header);
    const std::less_equal<const std::byte*> before;
    for (const TensorInfo& tensor : model->tensors()) {
        require(!tensor.bytes.empty() && before(image.data() + 8 + header, tensor.bytes.data()));
        require(before(tensor.bytes.data() + tensor.bytes.size(), image.data() + image.size()));
        require(model->find(tensor.name) == &tensor);
    }
    require(model->tensor_bytes() == static_cast<int64_t>(size - 8 - header));
    return 0;
}
