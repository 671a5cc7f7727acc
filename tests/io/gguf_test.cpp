#include "io/gguf.h"
#include "tests/source_dir.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/json.h"
#include "io/gguf_writer.h"
#include "tests/io/test_files.h"

namespace riptide {
namespace {

using test::Bytes;
using test::expect_error;
using test::pattern;
using test::TempFolder;

std::vector<std::pair<GgufType, json::array>> samples() {
    using L64 = std::numeric_limits<int64_t>;
    const double third = static_cast<double>(1.0f / 3.0f);
    return {
        {GgufType::u8, {0, 255}},
        {GgufType::i8, {-128, 127}},
        {GgufType::u16, {0, 65535}},
        {GgufType::i16, {-32768, 32767}},
        {GgufType::u32, {0, 4294967295}},
        {GgufType::i32, {-2147483648LL, 2147483647}},
        {GgufType::u64, {0, L64::max(), std::numeric_limits<uint64_t>::max()}},
        {GgufType::i64, {L64::min(), L64::max()}},
        {GgufType::f32,
         {0.0, third, static_cast<double>(-1e-6f), static_cast<double>(3e38f),
          std::numeric_limits<double>::infinity()}},
        {GgufType::f64, {0.0, 1.0 / 3.0, 1e300, -1e-300}},
        {GgufType::boolean, {true, false}},
        {GgufType::string, {"", "laguna", std::string_view("\0\xff\n\xc3\xa9", 5)}},
    };
}

TEST(Gguf, every_value_type_survives_writing_and_reading) {
    Bytes image;
    GgufWriter writer(image);
    for (const auto& [type, values] : samples()) {
        for (size_t i = 0; i < values.size(); ++i)
            writer.set(fmt::format("{}.{}", gguf_type_name(type), i), GgufValueType::scalar(type), values[i]);
        writer.set_array(fmt::format("{}.all", gguf_type_name(type)), type, values);
        writer.set_array(fmt::format("{}.none", gguf_type_name(type)), type, {});
    }
    writer.finish();
    const auto file = GgufFile::from_memory(image, "memory");
    size_t keys = 0;
    for (const auto& [type, values] : samples()) {
        for (size_t i = 0; i < values.size(); ++i, ++keys) {
            const std::string key = fmt::format("{}.{}", gguf_type_name(type), i);
            EXPECT_EQ(file->metadata().at(key), values[i]) << key;
            EXPECT_EQ(file->type_of(key), GgufValueType::scalar(type)) << key;
        }
        const std::string all = fmt::format("{}.all", gguf_type_name(type)),
                          none = fmt::format("{}.none", gguf_type_name(type));
        EXPECT_EQ(file->metadata().at(all), json::value(values)) << all;
        EXPECT_EQ(file->metadata().at(none), json::value(json::array())) << none;
        EXPECT_EQ(file->type_of(all), GgufValueType::array_of(type));
        EXPECT_EQ(file->type_of(none), GgufValueType::array_of(type));
        keys += 2;
    }
    EXPECT_EQ(file->metadata().size(), keys);
    EXPECT_TRUE(file->metadata().at("u32.1").is_int64()) << "whole numbers have one kind wherever it holds them";
    EXPECT_TRUE(file->metadata().at("u64.2").is_uint64());

    Bytes copy;
    GgufWriter again(copy);
    again.copy_metadata(*file);
    again.finish();
    EXPECT_EQ(copy, image);
    EXPECT_EQ(expect_error([&] { (void)file->type_of("nothing"); }, {"memory", "nothing"}), ErrorKind::data);
}

TEST(Gguf, every_tensor_type_survives_writing_and_reading) {
    TempFolder folder;
    const std::string path = folder.file("all.gguf");
    std::vector<std::pair<std::string, DType>> tensors;
    for (int i = 0; i < static_cast<int>(DType::count); ++i)
        if (const auto type = static_cast<DType>(i); dtype_info(type).gguf_type >= 0)
            tensors.emplace_back(fmt::format("t.{}", dtype_name(type)), type);
    const auto shape = [](DType type) { return std::vector<int64_t>{3, 2, dtype_info(type).block_elements * 2}; };
    const auto bytes = [](DType type) { return 12 * dtype_info(type).block_bytes; };

    GgufWriter writer(path);
    writer.set_string("general.architecture", "test");
    for (const auto& [name, type] : tensors) writer.add_tensor(name, type, shape(type));
    int seed = 0;
    for (const auto& [name, type] : tensors) writer.write_tensor(name, pattern(bytes(type), ++seed));
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.finish();

    const auto file = open_checkpoint(path);
    EXPECT_EQ(file->format(), Checkpoint::Format::gguf);
    EXPECT_EQ(file->path(), path);
    ASSERT_EQ(file->tensors().size(), tensors.size());
    EXPECT_EQ(file->tensor_bytes(), writer.tensor_bytes());
    seed = 0;
    for (const auto& [name, type] : tensors) {
        const TensorInfo* tensor = file->find(name);
        ASSERT_NE(tensor, nullptr) << name;
        EXPECT_EQ(tensor, &file->tensors()[static_cast<size_t>(seed)]);
        EXPECT_EQ(tensor->dtype, type);
        EXPECT_EQ(tensor->shape, shape(type)) << "row-major, as declared";
        EXPECT_EQ(tensor->file, path);
        const Bytes expected = pattern(bytes(type), ++seed);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor->bytes.begin(), tensor->bytes.end())) << name;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->bytes.data()) % 32, 0u);
    }
    EXPECT_EQ(file->find("t.none"), nullptr);
    file->check_intact();
}

TEST(Gguf, reads_an_image_made_by_hand) {
    const auto raw = test::small_gguf();
    const auto file = open_gguf_memory(raw.bytes, "small.gguf");
    EXPECT_EQ(file->metadata().at("general.architecture"), "laguna");
    EXPECT_EQ(file->metadata().at("words"), (json::array{"one", ""}));
    EXPECT_EQ(file->metadata().at("numbers"), (json::array{48, -1, 64}));
    EXPECT_EQ(file->metadata().at("flag"), true);
    EXPECT_EQ(file->metadata().begin()->key(), "general.architecture");
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->tensors()[0].shape, (std::vector<int64_t>{2, 5})) << "dimensions are stored fastest first";
    EXPECT_EQ(file->tensors()[1].shape, (std::vector<int64_t>{2, 1, 32}));
    EXPECT_EQ(file->tensors()[1].dtype, DType::q4_0);
    EXPECT_EQ(file->tensors()[2].dtype, DType::f16);
    EXPECT_EQ(file->tensor_bytes(), 40 + 36 + 32);
    EXPECT_EQ(file->tensors()[2].bytes.back(), std::byte{32});
    EXPECT_EQ(file->tensors()[2].bytes.data() + 32, raw.bytes.data() + raw.bytes.size());
}

TEST(Gguf, version_2_reads_like_version_3) {
    auto raw = test::small_gguf();
    raw.bytes[4] = std::byte{2};
    const auto file = GgufFile::from_memory(raw.bytes, "small.gguf");
    EXPECT_EQ(file->version(), 2u);
    EXPECT_EQ(file->tensors().size(), 3u);
}

TEST(Gguf, alignment_is_kept_through_a_copy) {
    Bytes image, copy;
    GgufWriter writer(image);
    writer.set_u32("general.alignment", 256);
    const int64_t shape[] = {3};
    for (const char* name : {"a", "b"}) writer.add_tensor(name, DType::f32, shape);
    for (const char* name : {"a", "b"}) writer.write_tensor(name, pattern(12, name[0]));
    writer.finish();
    const auto file = GgufFile::from_memory(image, "memory");
    EXPECT_EQ(file->alignment(), 256);
    EXPECT_EQ(file->find("b")->bytes.data() - file->find("a")->bytes.data(), 256);
    GgufWriter again(copy);
    again.copy_metadata(*file);
    for (const TensorInfo& tensor : file->tensors()) again.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    for (const TensorInfo& tensor : file->tensors()) {  // in pieces
        again.write(tensor.bytes.first(5));
        again.write(tensor.bytes.subspan(5));
    }
    again.finish();
    EXPECT_EQ(copy, image);
}

TEST(Gguf, the_last_tensor_needs_no_padding) {
    Bytes image;
    GgufWriter writer(image);
    const int64_t shape[] = {3};
    writer.add_tensor("a", DType::f32, shape);
    writer.write(pattern(12, 1));
    writer.finish();
    EXPECT_EQ(image.size() % 32, 0u);
    image.resize(image.size() - 20);
    EXPECT_EQ(open_gguf_memory(image, "memory")->tensor_bytes(), 12);
    image.resize(image.size() - 1);
    expect_error([&] { (void)open_gguf_memory(image, "memory"); }, {"memory", "truncated: tensor a needs bytes"});
}

TEST(Gguf, opens_all_parts_of_a_split_model) {
    TempFolder folder;
    const auto part = [&](int number, const char* tensor, int64_t total) {
        const std::string path = folder.file(fmt::format("m-{:05}-of-00003.gguf", number + 1));
        GgufWriter writer(path);
        if (number == 0) writer.set_string("general.architecture", "laguna");
        writer.set("split.no", GgufValueType::scalar(GgufType::u16), number);
        writer.set("split.count", GgufValueType::scalar(GgufType::u16), 3);
        writer.set_i32("split.tensors.count", static_cast<int32_t>(total));
        const int64_t shape[] = {4};
        writer.add_tensor(tensor, DType::f32, shape);
        writer.write(pattern(16, number));
        writer.finish();
        return path;
    };
    const std::string first = part(0, "a", 3), second = part(1, "b", 3), third = part(2, "c", 3);
    const auto file = GgufFile::open(first);
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->find("c")->bytes[1], std::byte{9});
    EXPECT_EQ(file->find("c")->file, third);
    file->check_intact();
    Bytes whole;
    GgufWriter writer(whole);
    writer.copy_metadata(*file);
    writer.finish();
    EXPECT_EQ(open_gguf_memory(whole, "whole")->metadata().size(), 1u) << "no split.* keys";

    const auto model = GgufFile::open(second);
    EXPECT_EQ(model->path(), first) << "a part that is not the first";
    EXPECT_EQ(model->tensors().size(), 3u);
    part(2, "a", 3);
    expect_error([&] { (void)open_checkpoint(first); }, {"tensor a", first, third});
    part(2, "c", 4);
    part(0, "a", 4);
    expect_error([&] { (void)open_checkpoint(first); }, {"3 tensors, expected 4"});
    std::filesystem::remove(second);
    EXPECT_EQ(expect_error([&] { (void)open_checkpoint(first); }, {second, "missing"}), ErrorKind::no_input);
    std::filesystem::copy_file(third, second);
    expect_error([&] { (void)open_checkpoint(first); }, {second, "not part 2 of 3"});
    std::filesystem::rename(first, folder.file("renamed.gguf"));
    expect_error([&] { (void)open_checkpoint(folder.file("renamed.gguf")); }, {"-00001-of-00003.gguf"});
    EXPECT_EQ(expect_error([&] { (void)open_checkpoint(third); }, {third, "first part", first}), ErrorKind::no_input);
}

TEST(Gguf, a_hundred_thousand_strings_open_quickly) {
    std::vector<std::string> words(200000);
    for (size_t i = 0; i < words.size(); ++i) words[i] = fmt::format("word number {}", i);
    Bytes image;
    GgufWriter writer(image);
    writer.set_strings("tokens", words);
    writer.finish();
    const auto start = std::chrono::steady_clock::now();
    const auto file = open_gguf_memory(image, "memory");
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(file->metadata().at("tokens").as_array().size(), words.size());
    EXPECT_EQ(file->metadata().at("tokens").as_array().back(), json::value(words.back()));
    RecordProperty("milliseconds", static_cast<int>(taken.count() * 1000));
    EXPECT_LT(taken.count(), 5.0) << "a quadratic reader would take minutes";
}

TEST(Gguf, vocabulary_only_files_of_others_open) {
    const std::filesystem::path folder = std::filesystem::path(conformance_dir()) / "tokenizers";
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no conformance data beside the repository";
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".gguf") continue;
        ++files;
        const auto file = GgufFile::open(entry.path().string());
        EXPECT_TRUE(file->tensors().empty());
        EXPECT_GT(file->metadata().at("tokenizer.ggml.tokens").as_array().size(), 40000u) << entry.path();
        EXPECT_EQ(file->type_of("tokenizer.ggml.tokens"), GgufValueType::array_of(GgufType::string));
        EXPECT_EQ(file->type_of("tokenizer.ggml.token_type"), GgufValueType::array_of(GgufType::i32));
        Bytes copy;
        GgufWriter writer(copy);
        writer.copy_metadata(*file);
        writer.finish();
        const std::string original = read_file(entry.path().string(), 1 << 30);
        const size_t header = std::min(copy.size(), original.size());
        EXPECT_EQ(std::memcmp(copy.data() + 8, original.data() + 8, header - 8), 0) << entry.path() << ": not lossless";
    }
    EXPECT_GT(files, 0);
}

TEST(Gguf, a_sparse_twenty_gigabyte_file_opens_by_its_header_alone) {
    TempFolder folder;
    const std::string path = folder.file("sparse.gguf");
    Bytes header;
    {
        test::RawGguf raw;
        raw.header(1, 0);
        raw.tensor("w", {uint64_t{1} << 16, 80000}, 0, 0);
        raw.pad(32);
        header = raw.bytes;
    }
    folder.put("sparse.gguf", header);
    const int64_t bytes = (int64_t{1} << 18) * 80000;
    std::error_code error;
    std::filesystem::resize_file(path, static_cast<uintmax_t>(std::ssize(header) + bytes), error);
    if (error) GTEST_SKIP() << "this file system has no sparse files of 20 GB";
    const auto file = open_checkpoint(path);
    EXPECT_EQ(file->tensor_bytes(), bytes);
    EXPECT_EQ(file->find("w")->bytes.back(), std::byte{0});
}

TEST(GgufWriter, refuses_what_the_file_could_not_hold) {
    Bytes image;
    GgufWriter writer(image);
    const int64_t shape[] = {2, 32};
    const auto u8 = GgufValueType::scalar(GgufType::u8);
    expect_error([&] { writer.set("k", u8, 256); }, {"key k", "u8"});
    expect_error([&] { writer.set("k", u8, -1); }, {"key k"});
    expect_error([&] { writer.set("k", u8, 1.0); }, {"key k"});
    expect_error([&] { writer.set("k", u8, "1"); }, {"key k"});
    expect_error([&] { writer.set("k", GgufValueType::scalar(GgufType::f32), 1e39); }, {"key k", "f32"});
    expect_error([&] { writer.set_array("k", GgufType::i32, {1, "a"}); }, {"element 1", "i32"});
    expect_error([&] { writer.set_array("k", GgufType::array, {json::array{1}}); }, {"element 0"});
    expect_error([&] { writer.set("", u8, 1); }, {"key of 0 bytes"});
    expect_error([&] { writer.set_u32("general.alignment", 48); }, {"general.alignment"});
    writer.add_tensor("a", DType::q8_0, shape);
    expect_error([&] { writer.add_tensor("a", DType::f32, shape); }, {"twice"});
    expect_error([&] { writer.add_tensor("b", DType::i4_pack, shape); }, {"i4_pack"});
    expect_error([&] { writer.add_tensor("b", DType::q4_k, shape); }, {"256"});
    expect_error([&] { writer.add_tensor("b", DType::f32, std::vector<int64_t>{1, 0}); }, {"[1, 0]"});
    expect_error([&] { writer.add_tensor("b", DType::f32, std::vector<int64_t>{}); }, {"0 dimensions"});
    expect_error([&] { writer.write(pattern(69, 0)); }, {"tensor a has 68 bytes"});
    expect_error([&] { writer.write_tensor("b", pattern(68, 0)); }, {"not the next"});
    writer.write(pattern(60, 0));
    expect_error([&] { writer.finish(); }, {"tensor a is not complete"});
    expect_error([&] { writer.set_u32("late", 1); }, {"header is written"});
    writer.write(pattern(8, 0));
    expect_error([&] { writer.write(pattern(1, 0)); }, {"after the last tensor"});
    writer.finish();
    EXPECT_EQ(open_gguf_memory(image, "memory")->tensor_bytes(), 68);
}

TEST(GgufWriter, an_abandoned_file_leaves_nothing) {
    TempFolder folder;
    {
        GgufWriter writer(folder.file("m.gguf"));
        const int64_t shape[] = {4};
        writer.add_tensor("a", DType::f32, shape);
        writer.write(pattern(8, 0));
    }
    EXPECT_TRUE(folder.list().empty());
}

}  // namespace
}  // namespace riptide
