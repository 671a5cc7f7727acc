#include "io/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include "io/safetensors_writer.h"
#include "tests/io/test_files.h"

namespace riptide {
namespace {

using test::Bytes;
using test::expect_error;
using test::kSmallHeader;
using test::pattern;
using test::safetensors_image;
using test::TempFolder;

void open_exact_safetensors(std::span<const std::byte> image) {
    const auto exact = std::make_unique<std::byte[]>(std::max<size_t>(image.size(), 1));
    std::copy(image.begin(), image.end(), exact.get());
    (void)SafetensorsModel::from_memory({exact.get(), image.size()}, "bad.safetensors");
}

void expect_safetensors_refused(const Bytes& image, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(expect_error([&] { open_exact_safetensors(image); }, parts), ErrorKind::data);
}

void expect_safetensors_refused(std::string_view header, size_t data, std::initializer_list<std::string_view> parts) {
    expect_safetensors_refused(safetensors_image(header, data), parts);
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

std::string put_shard(const TempFolder& folder, std::string_view name, std::vector<std::string> tensors) {
    std::vector<NamedTensor> list;
    const Bytes data = pattern(16, static_cast<int>(name.size()));
    for (std::string& tensor : tensors) list.push_back({std::move(tensor), DType::f32, {4}, data});
    write_safetensors(folder.file(name), list, {{"format", "pt"}});
    return folder.file(name);
}

TEST(Safetensors, every_tensor_type_survives_writing_and_reading) {
    TempFolder folder;
    std::vector<NamedTensor> tensors;
    std::vector<Bytes> data;
    data.reserve(64);
    for (int i = 0; i < static_cast<int>(DType::count); ++i) {
        const auto type = static_cast<DType>(i);
        if (std::string_view(dtype_info(type).safetensors).empty()) continue;
        data.push_back(pattern(6 * dtype_info(type).block_bytes, i));
        tensors.push_back({fmt::format("t.{} \"\\\n\xc3\xa9", dtype_name(type)), type, {3, 1, 2}, data.back()});
    }
    data.push_back(pattern(4, 99));
    tensors.push_back({"scalar", DType::f32, {}, data.back()});
    const std::string path = folder.file("all.safetensors");
    write_safetensors(path, tensors, {{"source", "a \"test\""}});
    const auto model = open_checkpoint(path);
    EXPECT_EQ(model->format(), Checkpoint::Format::safetensors);
    ASSERT_EQ(model->tensors().size(), tensors.size());
    for (const NamedTensor& tensor : tensors) {
        const TensorInfo* found = model->find(tensor.name);
        ASSERT_NE(found, nullptr) << tensor.name;
        EXPECT_EQ(found->dtype, tensor.dtype);
        EXPECT_EQ(found->shape, tensor.shape);
        EXPECT_TRUE(std::ranges::equal(found->bytes, tensor.bytes)) << tensor.name;
    }
    EXPECT_EQ(model->metadata().at("__metadata__").at("source"), "a \"test\"");
    EXPECT_EQ(read_file(path, 1 << 20).find('{'), 8u);
    model->check_intact();
}

TEST(Safetensors, an_empty_file_of_tensors_and_spaces_are_valid) {
    open_exact_safetensors(safetensors_image("{}", 0));
    open_exact_safetensors(safetensors_image("{}      ", 0));
    open_exact_safetensors(
        safetensors_image("{ \"w\" :\n{\"shape\": [ 2 ] , \"dtype\" : \"F32\", \"data_offsets\" : [0 , 8]}\t}   ", 8));
    open_exact_safetensors(safetensors_image(
        R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
        8));
    open_exact_safetensors(safetensors_image(
        R"({"__metadata__":{"dtype":"a","w":"\"{:["},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
}

TEST(Safetensors, a_cut_at_any_byte_is_an_error) {
    const Bytes image = safetensors_image(kSmallHeader, 22);
    open_exact_safetensors(image);
    for (size_t length = 0; length < image.size(); ++length) {
        SCOPED_TRACE(length);
        const Bytes cut(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(length));
        expect_safetensors_refused(cut, {"bad.safetensors: "});
        if (length > 10) expect_safetensors_refused(cut, {"truncated"});
    }
    const size_t data = image.size() - 22;
    const Bytes cut(image.begin(), image.end() - 1);
    expect_safetensors_refused(
        cut, {fmt::format("truncated: tensor b needs bytes {}-{}, file has {}", data + 16, data + 22, data + 21)});
    Bytes longer = image;
    longer.resize(image.size() + 7);
    expect_safetensors_refused(longer, {"7 bytes too many"});
}

TEST(Safetensors, offsets_and_shapes_must_agree) {
    expect_safetensors_refused(one("\"F32\"", "[2,2]", "[0,12]"), 12,
                               {"tensor w f32 [2, 2] has 12 bytes, expected 16"});
    expect_safetensors_refused(one("\"F32\"", "[2]", "[4,12]"), 12, {"4 unused bytes between the header and tensor w"});
    expect_safetensors_refused(one("\"F32\"", "[2]", "[8,0]"), 8, {"[begin, end]"});
    expect_safetensors_refused(one("\"F32\"", "[2]", "[0]"), 8, {"[begin, end]"});
    expect_safetensors_refused(one("\"F32\"", "[2]", "[0,8,8]"), 8, {"[begin, end]"});
    expect_safetensors_refused(one("\"F32\"", "[0]", "[0,0]"), 0, {"no dimension of 0"});
    expect_safetensors_refused(one("\"F32\"", "[-2]", "[0,8]"), 8, {"-2", "whole numbers"});
    expect_safetensors_refused(one("\"F32\"", "[2.0]", "[0,8]"), 8, {"whole numbers"});
    expect_safetensors_refused(one("\"F32\"", "[18446744073709551615]", "[0,8]"), 8, {"whole numbers"});
    expect_safetensors_refused(one("\"F32\"", "[4611686018427387904,4]", "[0,8]"), 8, {"overflows"});
    expect_safetensors_refused(one("\"F32\"", "[9223372036854775807]", "[0,8]"), 8, {"overflows"});
    expect_safetensors_refused(one("\"F32\"", "[2]", "[9223372036854775799,9223372036854775807]"), 8, {"unused bytes"});
    expect_safetensors_refused(one("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, {"9 dimensions"});
    expect_safetensors_refused(one("\"F33\"", "[2]", "[0,8]"), 8, {"dtype F33"});
    expect_safetensors_refused(one("\"U32\"", "[2]", "[0,8]"), 8, {"dtype U32", "MLX", "take a GGUF file"});
    expect_safetensors_refused(one("\"\"", "[2]", "[0,8]"), 8, {"dtype"});
    expect_safetensors_refused(one("7", "[2]", "[0,8]"), 8, {"dtype is not a string"});
    expect_safetensors_refused(one("\"F32\"", "2", "[0,8]"), 8, {"shape is not an array"});
    expect_safetensors_refused(R"({"w":{"dtype":"F32","shape":[2]}})", 8, {"has no data_offsets"});
    expect_safetensors_refused(R"({"w":[]})", 8, {"not described by an object"});
    expect_safetensors_refused(
        R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
        12, {"tensor w overlaps tensor v"});
}

TEST(Safetensors, names_that_are_there_twice) {
    const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    expect_safetensors_refused(fmt::format(R"({{"w":{0},"w":{0}}})", entry), 4, {"tensor w is there twice"});
    expect_safetensors_refused(fmt::format(R"({{"w":{0},"\u0077":{0}}})", entry), 4, {"two tensors have one name"});
    expect_safetensors_refused(fmt::format(R"({{"\"w\\":{0},"\"w\\" :{0}}})", entry), 4, {"there twice"});
}

TEST(Safetensors, headers_that_are_not_one) {
    expect_safetensors_refused(test::to_bytes("{}"), {"not a safetensors file"});
    expect_safetensors_refused("[1]", 0, {"not a safetensors file"});
    expect_safetensors_refused("{\"w\":", 0, {"not valid JSON"});
    expect_safetensors_refused("{} x", 0, {"extra bytes"});
    expect_safetensors_refused("{\"\xff\":1}", 0, {"not valid JSON"});
    expect_safetensors_refused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__ a is not a string"});
    expect_safetensors_refused(R"({"__metadata__":[]})", 0, {"__metadata__ is not an object"});
    std::string deep = "{\"w\":";
    deep.append(200000, '[');
    expect_safetensors_refused(deep, 0, {"not valid JSON"});
    Bytes image = safetensors_image(kSmallHeader, 22);
    for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{100'000'001}}) {
        std::memcpy(image.data(), &length, 8);
        expect_safetensors_refused(image, {"its header claims", "at most 100000000"});
    }
    const uint64_t longer = image.size();
    std::memcpy(image.data(), &longer, 8);
    expect_safetensors_refused(image, {"truncated: the header needs bytes 8-"});
}

TEST(SafetensorsFolder, reads_shards_by_their_index_and_the_files_beside_them) {
    TempFolder folder;
    put_shard(folder, "model-00001-of-00002.safetensors", {"a", "b"});
    put_shard(folder, "model-00002-of-00002.safetensors", {"c"});
    folder.put("model.safetensors.index.json",
               R"({"metadata":{"total_size":48},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
               R"("b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
    folder.put("config.json", R"({"model_type":"laguna"})");
    folder.put("generation_config.json", R"({"temperature":0.7})");
    folder.put("tokenizer.json", R"({"model":{"type":"BPE"}})");
    folder.put("tokenizer_config.json",
               R"({"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})");
    const auto model = open_checkpoint(folder.path());
    EXPECT_EQ(model->tensors().size(), 3u);
    EXPECT_EQ(model->find("c")->file, folder.file("model-00002-of-00002.safetensors"));
    EXPECT_EQ(model->metadata().at("config").at("model_type"), "laguna");
    EXPECT_EQ(model->metadata().at("generation_config").at("temperature"), 0.7);
    EXPECT_EQ(model->metadata().at("tokenizer").at("model").at("type"), "BPE");
    EXPECT_EQ(model->metadata().at("chat_template"), "D");
    EXPECT_EQ(model->tensor_bytes(), 48);
    folder.put("chat_template.json", R"({"chat_template":"J"})");
    EXPECT_EQ(open_checkpoint(folder.path())->metadata().at("chat_template"), "J");
    folder.put("chat_template.jinja", "{{ x }}\n");
    EXPECT_EQ(open_checkpoint(folder.path())->metadata().at("chat_template"), "{{ x }}\n");
    ASSERT_EQ(::truncate(folder.file("model-00002-of-00002.safetensors").c_str(), 20), 0);
    EXPECT_EQ(expect_error([&] { model->check_intact(); }, {"model-00002-of-00002.safetensors", "shorter"}),
              ErrorKind::io);
}

TEST(SafetensorsFolder, wrong_shards_are_named) {
    TempFolder folder;
    const char *first = "model-00001-of-00002.safetensors", *second = "model-00002-of-00002.safetensors";
    put_shard(folder, first, {"a"});
    expect_error([&] { (void)open_checkpoint(folder.path()); }, {second, "missing"});
    put_shard(folder, second, {"a"});
    expect_error([&] { (void)open_checkpoint(folder.path()); }, {"tensor a", first, second});
    put_shard(folder, second, {"b"});
    EXPECT_EQ(open_checkpoint(folder.path())->tensors().size(), 2u) << "no index is needed";
    const auto index = [&](std::string_view map) {
        folder.put("model.safetensors.index.json", fmt::format(R"({{"weight_map":{}}})", map));
    };
    const auto opening = [&] { (void)open_checkpoint(folder.path()); };
    index(fmt::format(R"({{"a":"{}","b":"{}"}})", first, second));
    opening();
    index(fmt::format(R"({{"a":"{}"}})", first));
    expect_error(opening, {second, "not named by model.safetensors.index.json"});
    index(fmt::format(R"({{"a":"{}","b":"{}","c":"{}"}})", first, second, second));
    expect_error(opening, {"tensor c is missing", second});
    index(fmt::format(R"({{"a":"{}","b":"{}"}})", second, first));
    expect_error(opening, {"tensor a should be in", second});
    index(fmt::format(R"({{"a":"{}","x":"{}"}})", first, second));
    expect_error(opening, {"tensor b should be in no file"});
    index(fmt::format(R"({{"a":"{}","b":"model-00003-of-00003.safetensors"}})", first));
    EXPECT_EQ(expect_error(opening, {"model-00003-of-00003.safetensors", "missing"}), ErrorKind::no_input);
    for (const char* outside : {"../x.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors"}) {
        index(fmt::format(R"({{"a":"{}"}})", outside));
        expect_error(opening, {"outside", outside});
    }
    index(R"({"a":"pytorch_model.bin"})");
    expect_error(opening, {"pickle"});
    index(R"({"a":1})");
    expect_error(opening, {"not a string"});
    index("[]");
    expect_error(opening, {"no weight_map"});
}

TEST(SafetensorsFolder, folders_without_safetensors_say_what_they_have) {
    TempFolder folder;
    const auto opening = [&] { (void)open_checkpoint(folder.path()); };
    expect_error(opening, {folder.path(), "no .safetensors files"});
    folder.put("m.gguf", "GGUF");
    expect_error(opening, {"name one of them", "m.gguf"});
    folder.put("pytorch_model.bin", "x");
    expect_error(opening, {"pytorch_model.bin", "pickle checkpoints are never loaded"});
    put_shard(folder, "model.safetensors", {"a"});
    EXPECT_EQ(open_checkpoint(folder.path())->tensors().size(), 1u);
    folder.put("config.json", "{\"a\":}");
    expect_error(opening, {folder.file("config.json"), "not valid JSON"});
    folder.put("config.json", "[]");
    expect_error(opening, {folder.file("config.json"), "not a JSON object"});
    std::filesystem::remove(folder.file("config.json"));
    ASSERT_EQ(::mkfifo(folder.file("config.json").c_str(), 0600), 0);
    expect_error(opening, {folder.file("config.json"), "not a regular file"});
}

TEST(OpenCheckpoint, goes_by_content_and_then_by_name) {
    TempFolder folder;
    const std::string right = put_shard(folder, "m.safetensors", {"a"});
    std::filesystem::copy_file(right, folder.file("m.gguf"));
    EXPECT_EQ(open_checkpoint(folder.file("m.gguf"))->format(), Checkpoint::Format::safetensors);
    folder.put("config.json", R"({"x":1})");
    EXPECT_EQ(open_checkpoint(right)->metadata().at("config").at("x"), 1) << "a lone file sees its neighbours";
    const auto expect = [&](std::string_view name, std::string_view content,
                            std::initializer_list<std::string_view> parts) {
        const std::string path = folder.put(name, content);
        EXPECT_EQ(expect_error([&] { (void)open_checkpoint(path); }, parts), ErrorKind::data) << path;
    };
    expect("x.safetensors", "<html>", {"not a safetensors file", "HTML"});
    expect("x.gguf", "<html>", {"not a GGUF file", "HTML"});
    expect("x.pt", "PK\x03\x04", {"pickle checkpoints are never loaded"});
    expect("x.bin", std::string_view("\x80\x04}", 3), {"pickle checkpoints are never loaded"});
    expect("x", "hello", {"neither a GGUF nor a safetensors file", "hello"});
    expect("model.safetensors.index.json", "{}", {"open the folder instead"});
    EXPECT_EQ(expect_error([&] { (void)open_checkpoint(folder.file("none")); }, {folder.file("none")}),
              ErrorKind::no_input);
    EXPECT_EQ(expect_error([&] { (void)open_checkpoint(""); }, {"no such file"}), ErrorKind::no_input);
}

TEST(SafetensorsWriter, refuses_what_the_file_could_not_hold) {
    Bytes image;
    SafetensorsWriter writer(image);
    const int64_t shape[] = {2};
    writer.add_tensor("a", DType::f32, shape);
    expect_error([&] { writer.add_tensor("a", DType::f32, shape); }, {"twice"});
    expect_error([&] { writer.add_tensor("b", DType::q4_0, shape); }, {"q4_0"});
    expect_error([&] { writer.add_tensor("__metadata__", DType::f32, shape); }, {"__metadata__"});
    expect_error([&] { writer.add_tensor("b", DType::f32, std::vector<int64_t>{0}); }, {"[0]"});
    expect_error([&] { writer.write(pattern(9, 0)); }, {"8 bytes of data were declared, 9"});
    writer.write(pattern(5, 0));
    expect_error([&] { writer.finish(); }, {"only 5"});
    writer.write(pattern(3, 0));
    expect_error([&] { writer.add_tensor("late", DType::f32, shape); }, {"header is written"});
    writer.finish();
    open_exact_safetensors(image);
    TempFolder folder;
    const Bytes seven = pattern(7, 0);
    const NamedTensor wrong{"a", DType::f32, {2}, seven};
    expect_error([&] { write_safetensors(folder.file("x"), std::span(&wrong, 1)); },
                 {"tensor a [2] has 7 bytes, expected 8"});
    EXPECT_TRUE(folder.list().empty());
}

}  // namespace
}  // namespace riptide
