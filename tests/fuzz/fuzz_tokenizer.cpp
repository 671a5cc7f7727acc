// tokenizer.json, or the metadata of a GGUF vocabulary as JSON, from any bytes; then encode and decode with what was
// loaded. Input: the JSON text, a NUL byte, the text to encode (without a NUL: the JSON text itself is encoded).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace {

constexpr std::size_t kMaxText = 512;

void use(const riptide::Tokenizer& tokenizer, std::string_view text) {
    for (const bool special : {false, true}) {
        std::vector<int32_t> ids;
        try {
            ids = tokenizer.encode(text, {.add_special = special, .parse_special = special});
        } catch (const riptide::Error&) {
            continue;  // a byte without a token, or a pattern that needs too many steps
        }
        riptide::Detokenizer detokenizer(tokenizer);
        std::string shown;
        for (const int32_t id : ids) shown += detokenizer.push(id);
        shown += detokenizer.finish();
        if (riptide::utf8_valid_prefix(shown) != shown.size()) std::abort();
        (void)tokenizer.decode(ids, special);
    }
    const riptide::TextSpan half{0, static_cast<int64_t>(text.size() / 2)};
    try {
        (void)tokenizer.encode(text, {.trusted = {&half, 1}});
    } catch (const riptide::Error&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t end = std::min(input.find('\0'), input.size());
    const std::string_view text = (end < size ? input.substr(end + 1) : input).substr(0, kMaxText);
    try {
        const auto root = riptide::parse_json(input.substr(0, end), "fuzz.json");
        const bool gguf = root.is_object() && root.get_object().contains("tokenizer.ggml.model");
        use(gguf ? riptide::Tokenizer::from_gguf(root.get_object(), "fuzz.gguf")
                 : riptide::Tokenizer::from_hf(root, &root, "fuzz.json"),
            text);
    } catch (const riptide::Error&) {
    }
    return 0;
}
