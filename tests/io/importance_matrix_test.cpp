// Importance matrices: both forms of the file, and what is refused.
#include "io/importance_matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "tests/io/test_files.h"

namespace riptide {

namespace {

using test::expect_error;

ImportanceMatrix small_matrix() {
    ImportanceMatrix matrix;
    matrix.entries["blk.0.attn_q.weight"] = {{4, 0, 2, 10}, {2}};
    matrix.entries["blk.0.ffn_down_exps.weight"] = {{1, 2, 0, 0, 9, 6}, {1, 0, 3}};
    matrix.datasets = {"text.txt"};
    matrix.chunk_count = 3;
    matrix.chunk_size = 512;
    return matrix;
}

/// The older form, from scratch.
struct OldFile {
    test::Bytes bytes;
    OldFile& number(int32_t n) { return add(&n, sizeof n); }
    OldFile& real(float x) { return add(&x, sizeof x); }
    OldFile& text(std::string_view t) { return number(static_cast<int32_t>(t.size())).add(t.data(), t.size()); }
    OldFile& add(const void* from, size_t count) {
        const auto* at = static_cast<const std::byte*>(from);
        bytes.insert(bytes.end(), at, at + count);
        return *this;
    }
};

void write(const ImportanceMatrix& matrix, const std::string& path) {
    GgufWriter writer(path);
    write_importance(matrix, writer);
}

/// One entry of two columns.
OldFile old_file(int32_t calls = 2) {
    OldFile file;
    file.number(1).text("output.weight").number(calls).number(2).real(3).real(8);
    return file;
}

}  // namespace

TEST(ImportanceMatrix, is_read_as_it_was_written) {
    const test::TempFolder folder;
    const std::string path = folder.file("m.gguf");
    write(small_matrix(), path);
    const ImportanceMatrix read = read_importance(path);
    EXPECT_EQ(read.datasets, small_matrix().datasets);
    EXPECT_EQ(read.chunk_count, 3);
    EXPECT_EQ(read.chunk_size, 512);
    ASSERT_EQ(read.entries.size(), 2u);
    for (const auto& [name, entry] : small_matrix().entries) {
        EXPECT_EQ(read.entries.at(name).sums, entry.sums);
        EXPECT_EQ(read.entries.at(name).counts, entry.counts);
    }
}

TEST(ImportanceMatrix, has_the_keys_and_shapes_that_other_programs_expect) {
    const test::TempFolder folder;
    const std::string path = folder.file("m.gguf");
    write(small_matrix(), path);
    const auto file = GgufFile::open(path);
    EXPECT_EQ(file->metadata().at("general.type").as_string(), "imatrix");
    EXPECT_EQ(file->type_of("imatrix.chunk_count"), GgufValueType::scalar(GgufType::u32));
    EXPECT_EQ(file->type_of("imatrix.chunk_size"), GgufValueType::scalar(GgufType::u32));
    EXPECT_EQ(file->type_of("imatrix.datasets"), GgufValueType::array_of(GgufType::string));
    EXPECT_EQ(file->find("blk.0.attn_q.weight.in_sum2")->shape, (std::vector<int64_t>{1, 4}));
    EXPECT_EQ(file->find("blk.0.attn_q.weight.counts")->shape, (std::vector<int64_t>{1, 1}));
    EXPECT_EQ(file->find("blk.0.ffn_down_exps.weight.in_sum2")->shape, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(file->find("blk.0.ffn_down_exps.weight.counts")->shape, (std::vector<int64_t>{3, 1}));
}

TEST(ImportanceMatrix, means_are_by_matrix_and_1_where_no_row_came) {
    int64_t unreached = 0;
    const ImportanceMatrix matrix = small_matrix();
    EXPECT_EQ(mean_squares(matrix, "m", "blk.0.attn_q.weight", 1, 4, unreached), (std::vector<float>{2, 0, 1, 5}));
    EXPECT_EQ(unreached, 0);
    EXPECT_EQ(mean_squares(matrix, "m", "blk.0.ffn_down_exps.weight", 3, 2, unreached),
              (std::vector<float>{1, 2, 1, 1, 3, 2}));
    EXPECT_EQ(unreached, 1);
    expect_error([&] { mean_squares(matrix, "m.gguf", "blk.0.attn_q.weight", 1, 8, unreached); },
                 {"m.gguf", "blk.0.attn_q.weight", "4 sums", "8 columns"});
    expect_error([&] { mean_squares(matrix, "m.gguf", "blk.0.ffn_down_exps.weight", 2, 3, unreached); },
                 {"3 counts", "2 of 3 columns"});
}

TEST(ImportanceMatrix, older_form_is_read_with_and_without_its_end) {
    const test::TempFolder folder;
    OldFile file = old_file();
    ImportanceMatrix matrix = read_importance(folder.put("short.dat", file.bytes));
    int64_t unreached = 0;
    EXPECT_EQ(mean_squares(matrix, "m", "output.weight", 1, 2, unreached), (std::vector<float>{1.5f, 4}));
    EXPECT_EQ(mean_squares(matrix, "m", "output.weight", 2, 1, unreached),
              (std::vector<float>{1.5f, 4}));  // of a stack
    EXPECT_EQ(matrix.chunk_count, 0);
    file.number(7).text("wiki.txt");
    matrix = read_importance(folder.put("long.dat", file.bytes));
    EXPECT_EQ(matrix.chunk_count, 7);
    EXPECT_EQ(matrix.datasets, std::vector<std::string>{"wiki.txt"});
}

TEST(ImportanceMatrix, every_cut_of_either_form_is_an_error) {
    const test::TempFolder folder;
    OldFile old = old_file();
    const size_t entries_end = old.bytes.size();
    old.number(7).text("wiki.txt");
    for (size_t n = 0; n < old.bytes.size(); ++n) {
        if (n == entries_end || n == entries_end + 4) continue;  // the end is optional
        const std::string path =
            folder.put("cut.dat", test::Bytes(old.bytes.begin(), old.bytes.begin() + static_cast<std::ptrdiff_t>(n)));
        EXPECT_THROW(read_importance(path), Error) << n;
    }
    const std::string whole = folder.file("m.gguf");
    write(small_matrix(), whole);
    const std::string bytes = read_file(whole, 1 << 20);
    for (size_t n = 0; n < bytes.size() - 20; n += 7)  // behind three floats 20 bytes of padding end the file
        EXPECT_THROW(read_importance(folder.put("cut.gguf", std::string_view(bytes).substr(0, n))), Error) << n;
}

TEST(ImportanceMatrix, numbers_that_cannot_be_are_named) {
    const test::TempFolder folder;
    const std::string path = folder.file("m.gguf");
    const auto refused = [&](std::vector<float> sums, std::vector<float> counts, std::string_view found) {
        ImportanceMatrix matrix = small_matrix();
        matrix.entries["bad.weight"] = {std::move(sums), std::move(counts)};
        write(matrix, path);
        expect_error([&] { read_importance(path); }, {path, "bad.weight", found});
    };
    refused({1, NAN}, {1}, "nan");
    refused({1, INFINITY}, {1}, "inf");
    refused({1, -2}, {1}, "-2");
    refused({1, 2}, {NAN}, "nan");
    refused({1, 2}, {-1}, "-1");
    refused({1, 2}, {0}, "all 0");
    refused({1, 2}, {0, 0}, "all 0");
    expect_error([&] { read_importance(folder.put("zero.dat", old_file(0).bytes)); }, {"zero.dat", "output.weight"});
    expect_error([&] { read_importance(folder.put("less.dat", old_file(-3).bytes)); }, {"less.dat", "-3"});
}

TEST(ImportanceMatrix, files_of_something_else_are_refused) {
    const test::TempFolder folder;
    const auto write = [&](const char* name, const char* type, const char* tensor, DType dtype) {
        GgufWriter writer(folder.file(name));
        if (type != nullptr) writer.set_string("general.type", type);
        writer.add_tensor(tensor, dtype, std::vector<int64_t>{1, 2});
        writer.write(test::Bytes(static_cast<size_t>(row_bytes(dtype, 2))));
        writer.finish();
        return folder.file(name);
    };
    expect_error([&] { read_importance(write("model.gguf", "model", "a.in_sum2", DType::f32)); },
                 {"model.gguf", "\"model\"", "\"imatrix\""});
    expect_error([&] { read_importance(write("none.gguf", nullptr, "a.in_sum2", DType::f32)); }, {"missing"});
    expect_error([&] { read_importance(write("half.gguf", "imatrix", "a.in_sum2", DType::f32)); }, {"a.counts"});
    expect_error([&] { read_importance(write("other.gguf", "imatrix", "a.counts", DType::f32)); }, {"a.in_sum2"});
    expect_error([&] { read_importance(write("f16.gguf", "imatrix", "a.in_sum2", DType::f16)); }, {"f16", "f32"});
    expect_error([&] { read_importance(write("empty.gguf", "imatrix", "a.in_sum", DType::f32)); }, {"without entries"});
    expect_error([&] { read_importance(folder.put("text.dat", "hello, this is a text")); }, {"text.dat"});
    OldFile huge;
    huge.number(1).text("a").number(1).number(0x7FFFFFFF);
    expect_error([&] { read_importance(folder.put("huge.dat", huge.bytes)); }, {"huge.dat", "cut short"});
    OldFile twice;
    twice.number(2).text("a").number(1).number(1).real(1).text("a").number(1).number(1).real(1);
    expect_error([&] { read_importance(folder.put("twice.dat", twice.bytes)); }, {"two entries", "a"});
}

}  // namespace riptide
