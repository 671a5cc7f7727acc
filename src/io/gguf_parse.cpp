// The GGUF header, from bytes that may be anything.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"
#include "io/gguf.h"

namespace riptide {

static_assert(std::endian::native == std::endian::little, "GGUF is read and written as the machine's own byte order");

namespace {

constexpr int64_t kMaxName = 65535;               // the specification's limit for keys
constexpr int64_t kMaxString = int64_t{1} << 30;  // json::string holds just under 2 GiB
// Of all arrays together: an element costs 24 bytes in memory, and the largest vocabularies have 2^18.
constexpr int64_t kMaxElements = int64_t{1} << 24;
constexpr int64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;  // key length, key, type, value
constexpr int64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr int64_t kTrustedCount = 65536;  // claimed counts above it get memory only as their contents turn up
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

// A read position in the header. Every step is checked against the real size.
class Cursor {
  public:
    Cursor(std::span<const std::byte> image, const std::string& file) : image_(image), file_(file) {}

    int64_t at() const { return at_; }
    int64_t size() const { return std::ssize(image_); }
    int64_t left() const { return size() - at_; }
    const std::string& file() const { return file_; }

    template <class T>
    T number(std::string_view what) {
        T value;
        std::memcpy(&value, take(sizeof(T), what), sizeof(T));
        return value;
    }

    std::string_view string(std::string_view what, int64_t limit) {
        const auto length = number<uint64_t>(what);
        RT_CHECK(length <= static_cast<uint64_t>(left()), "{}: truncated: {} claims {} bytes, {} follow", file_,
                 printable(what), length, left());
        RT_CHECK(length <= static_cast<uint64_t>(limit), "{}: {} has {} bytes, at most {} are allowed", file_,
                 printable(what), length, limit);
        return {take(static_cast<int64_t>(length), what), static_cast<size_t>(length)};
    }

    /// A count of things of at least `each` bytes.
    int64_t count(std::string_view what, int64_t each) {
        const auto n = number<uint64_t>(what);
        RT_CHECK(n <= static_cast<uint64_t>(left() / each), "{}: truncated: claims {} {}, and {} bytes follow", file_,
                 n, printable(what), left());
        return static_cast<int64_t>(n);
    }

  private:
    const char* take(int64_t bytes, std::string_view what) {
        RT_CHECK(bytes <= left(), "{}: truncated: {} needs bytes {}-{}, file has {}", file_, printable(what), at_,
                 at_ + bytes, size());
        const auto* p = reinterpret_cast<const char*>(image_.data()) + at_;
        at_ += bytes;
        return p;
    }

    std::span<const std::byte> image_;
    const std::string& file_;
    int64_t at_ = 0;
};

template <class T>
json::value json_number(T number) {
    if constexpr (std::is_floating_point_v<T>) {
        return static_cast<double>(number);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
        if (number > static_cast<uint64_t>(INT64_MAX)) return number;
        return static_cast<int64_t>(number);
    } else {
        return static_cast<int64_t>(number);
    }
}

int64_t smallest_value(GgufType type) {
    switch (type) {
        case GgufType::u8:
        case GgufType::i8:
        case GgufType::boolean:
            return 1;
        case GgufType::u16:
        case GgufType::i16:
            return 2;
        case GgufType::u32:
        case GgufType::i32:
        case GgufType::f32:
            return 4;
        default:
            return 8;
    }
}

GgufType read_type(Cursor& in, std::string_view key) {
    const auto id = in.number<uint32_t>(key);
    RT_CHECK(id <= static_cast<uint32_t>(GgufType::f64), "{}: key {} has value type {}, known are 0 to 12", in.file(),
             printable(key), id);
    return static_cast<GgufType>(id);
}

json::value read_scalar(Cursor& in, GgufType type, std::string_view key) {
    switch (type) {
        case GgufType::u8:
            return json_number(in.number<uint8_t>(key));
        case GgufType::i8:
            return json_number(in.number<int8_t>(key));
        case GgufType::u16:
            return json_number(in.number<uint16_t>(key));
        case GgufType::i16:
            return json_number(in.number<int16_t>(key));
        case GgufType::u32:
            return json_number(in.number<uint32_t>(key));
        case GgufType::i32:
            return json_number(in.number<int32_t>(key));
        case GgufType::u64:
            return json_number(in.number<uint64_t>(key));
        case GgufType::i64:
            return json_number(in.number<int64_t>(key));
        case GgufType::f32:
            return json_number(in.number<float>(key));
        case GgufType::f64:
            return json_number(in.number<double>(key));
        case GgufType::string:
            return json::value(json::string(in.string(key, kMaxString)));
        case GgufType::boolean: {
            const auto byte = in.number<uint8_t>(key);
            RT_CHECK(byte <= 1, "{}: key {} is a bool with the value {}", in.file(), printable(key), byte);
            return byte == 1;
        }
        case GgufType::array:
            break;
    }
    fail("{}: key {} is an array of arrays, which is not supported", in.file(), printable(key));
}

json::array read_array(Cursor& in, GgufType element, std::string_view key, int64_t& budget) {
    RT_CHECK(element != GgufType::array, "{}: key {} is an array of arrays, which is not supported", in.file(),
             printable(key));
    const int64_t n = in.count(fmt::format("elements of key {}", key), smallest_value(element));
    RT_CHECK(n <= budget, "{}: the arrays up to key {} have more than {} elements in all", in.file(), printable(key),
             kMaxElements);
    budget -= n;
    json::array values;
    values.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values.push_back(read_scalar(in, element, key));
    return values;
}

void read_key_values(Cursor& in, int64_t count, GgufImage& image) {
    image.metadata.reserve(static_cast<size_t>(std::min(count, kTrustedCount)));
    int64_t budget = kMaxElements;
    for (int64_t i = 0; i < count; ++i) {
        const std::string_view key = in.string("a key", kMaxName);
        RT_CHECK(!key.empty(), "{}: key {} of {} is empty", in.file(), i, count);
        RT_CHECK(!image.metadata.contains(key), "{}: key {} is there twice", in.file(), printable(key));
        GgufValueType type = GgufValueType::scalar(read_type(in, key));
        json::value value;
        if (type.type == GgufType::array) {
            type.element = read_type(in, key);
            value = read_array(in, type.element, key, budget);
        } else {
            value = read_scalar(in, type.type, key);
        }
        image.metadata.emplace(key, std::move(value));
        image.types.push_back(type);
    }
}

int64_t read_alignment(const Cursor& in, const GgufImage& image) {
    const auto entry = image.metadata.find("general.alignment");
    if (entry == image.metadata.end()) return 32;
    const GgufValueType type = image.types[static_cast<size_t>(entry - image.metadata.begin())];
    RT_CHECK(type == GgufValueType::scalar(GgufType::u32), "{}: general.alignment is {}, expected a u32", in.file(),
             gguf_type_name(type.type));
    const auto alignment = static_cast<uint64_t>(entry->value().as_int64());
    RT_CHECK(std::has_single_bit(alignment) && alignment >= 8 && alignment <= kMaxAlignment,
             "{}: general.alignment is {}, expected a power of two from 8 to {}", in.file(), alignment, kMaxAlignment);
    return static_cast<int64_t>(alignment);
}

struct KnownType {
    uint32_t id;
    const char* name;
    bool removed;
};
constexpr KnownType kUnsupported[] = {
    {4, "q4_2", true},        {5, "q4_3", true},        {9, "q8_1", false},     {15, "q8_k", false},
    {31, "q4_0_4_4", true},   {32, "q4_0_4_8", true},   {33, "q4_0_8_8", true}, {36, "iq4_nl_4_4", true},
    {37, "iq4_nl_4_8", true}, {38, "iq4_nl_8_8", true},
};

DType tensor_dtype(const Cursor& in, uint32_t id, std::string_view name) {
    if (const auto dtype = dtype_from_gguf(id)) return *dtype;
    for (const KnownType& known : kUnsupported)
        if (known.id == id)
            fail("{}: tensor {} has type {} ({}), which {}", in.file(), printable(name), known.name, id,
                 known.removed ? "GGUF has removed: convert the model again" : "is not supported");
    fail("{}: tensor {} has the unknown type {}", in.file(), printable(name), id);
}

// A tensor as its header entry has it; its offset is kept until the start of the data is known.
struct GgufEntry {
    int64_t index = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
};

GgufEntry read_tensor(Cursor& in, int64_t alignment, TensorInfo& tensor) {
    tensor.name = in.string("a tensor name", kMaxName);
    tensor.file = in.file();
    const std::string shown = printable(tensor.name);
    RT_CHECK(!tensor.name.empty(), "{}: a tensor without a name", in.file());
    const auto dims = in.number<uint32_t>(tensor.name);
    RT_CHECK(dims >= 1 && dims <= 4, "{}: tensor {} has {} dimensions, expected 1 to 4", in.file(), shown, dims);
    tensor.shape.resize(dims);
    for (uint32_t i = 0; i < dims; ++i) {
        const auto dim = in.number<uint64_t>(tensor.name);
        RT_CHECK(dim >= 1 && dim <= static_cast<uint64_t>(INT64_MAX), "{}: tensor {} has dimension {} = {}", in.file(),
                 shown, i, static_cast<int64_t>(dim));
        tensor.shape[dims - 1 - i] = static_cast<int64_t>(dim);
    }
    tensor.dtype = tensor_dtype(in, in.number<uint32_t>(tensor.name), tensor.name);
    const auto offset = in.number<uint64_t>(tensor.name);
    RT_CHECK(offset <= static_cast<uint64_t>(INT64_MAX) && offset % static_cast<uint64_t>(alignment) == 0,
             "{}: tensor {} has offset {}, expected a multiple of {}", in.file(), shown, offset, alignment);
    return {0, static_cast<int64_t>(offset),
            stored_bytes(fmt::format("{}: tensor {}", in.file(), shown), tensor.dtype, tensor.shape)};
}

// `at` is at most the size of a file in memory, so this cannot overflow.
int64_t align_up(int64_t at, int64_t alignment) { return (at + alignment - 1) / alignment * alignment; }

// For messages about numbers that may be absurd.
uint64_t saturating_sum(int64_t a, int64_t b, int64_t c) {
    uint64_t sum = static_cast<uint64_t>(a) + static_cast<uint64_t>(b);
    return __builtin_add_overflow(sum, static_cast<uint64_t>(c), &sum) ? UINT64_MAX : sum;
}

// Gives each tensor its bytes, after checking that together they fill the rest of the file.
void place_gguf_tensors(std::span<const std::byte> image, int64_t data, std::vector<GgufEntry> entries,
                        GgufImage& parsed, const std::string& file) {
    std::sort(entries.begin(), entries.end(), [](const GgufEntry& a, const GgufEntry& b) { return a.begin < b.begin; });
    const int64_t room = std::ssize(image) - data;
    int64_t end = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
        const GgufEntry& entry = entries[i];
        TensorInfo& tensor = parsed.tensors[static_cast<size_t>(entry.index)];
        const std::string name = printable(tensor.name);
        const auto previous = [&] {
            if (i == 0) return std::string("the header");
            return "tensor " + printable(parsed.tensors[static_cast<size_t>(entries[i - 1].index)].name);
        };
        RT_CHECK(entry.begin >= end, "{}: tensor {} overlaps {}", file, name, previous());
        RT_CHECK(entry.begin == align_up(end, parsed.alignment), "{}: {} unused bytes between {} and tensor {}", file,
                 entry.begin - end, previous(), name);
        RT_CHECK(entry.begin <= room && entry.bytes <= room - entry.begin,
                 "{}: truncated: tensor {} needs bytes {}-{}, file has {}", file, name, data + entry.begin,
                 saturating_sum(data, entry.begin, entry.bytes), image.size());
        end = entry.begin + entry.bytes;
        tensor.bytes = image.subspan(static_cast<size_t>(data + entry.begin), static_cast<size_t>(entry.bytes));
    }
    const int64_t extra = std::ssize(image) - align_up(data + end, parsed.alignment);
    RT_CHECK(extra <= 0, "{}: {} bytes too many: the last tensor ends at byte {}, file has {}", file, extra, data + end,
             image.size());
}

void check_magic(Cursor& in, std::span<const std::byte> image) {
    RT_CHECK(looks_like_gguf(image), "{}: not a GGUF file: {}", in.file(), describe_content(image));
    (void)in.number<uint32_t>("the magic");
    const auto version = in.number<uint32_t>("the version");
    RT_CHECK((version & 0xffff) != 0 || version == 0, "{}: a big-endian GGUF file, which is not supported", in.file());
    RT_CHECK(version == 2 || version == 3, "{}: GGUF version {}, supported are 2 and 3", in.file(), version);
}

}  // namespace

const char* gguf_type_name(GgufType type) {
    static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                             "bool", "string", "array", "u64", "i64", "f64"};
    RT_ASSERT(type <= GgufType::f64);
    return kNames[static_cast<size_t>(type)];
}

GgufImage parse_gguf(std::span<const std::byte> image, const std::string& file) {
    Cursor in(image, file);
    check_magic(in, image);
    GgufImage parsed;
    std::memcpy(&parsed.version, image.data() + 4, sizeof parsed.version);
    const int64_t tensors = in.count("tensors", kMinTensorBytes);
    const int64_t key_values = in.count("key-values", kMinKeyValueBytes);
    read_key_values(in, key_values, parsed);
    parsed.alignment = read_alignment(in, parsed);
    RT_CHECK(tensors <= in.left() / kMinTensorBytes, "{}: truncated: claims {} tensors, and {} bytes follow", file,
             tensors, in.left());
    parsed.tensors.reserve(static_cast<size_t>(std::min(tensors, kTrustedCount)));
    std::vector<GgufEntry> entries;
    for (int64_t i = 0; i < tensors; ++i) {
        entries.push_back(read_tensor(in, parsed.alignment, parsed.tensors.emplace_back()));
        entries.back().index = i;
    }
    place_gguf_tensors(image, align_up(in.at(), parsed.alignment), std::move(entries), parsed, file);
    return parsed;
}

}  // namespace riptide
