// Importance matrices: how large the inputs of a model's matrices are, column by column, over a text.
//
// The files are llama.cpp's. GGUF: the keys general.type "imatrix", imatrix.datasets (strings), imatrix.chunk_count and
// imatrix.chunk_size (u32), and for each matrix or stack of experts f32 tensors NAME.in_sum2 [matrices, cols] and
// NAME.counts [matrices, 1]; others (NAME.in_sum) are passed over. The older form, read only, little-endian:
//   i32 entries | per entry: i32 length, name | i32 calls | i32 n | f32 values[n] | after all: i32 chunks | i32 length,
//   dataset   (values are mean squares times calls, all matrices of a stack one after the other; the end may be
//   missing)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/gguf_writer.h"

namespace riptide {

/// By name of the GGUF tensor that the columns belong to.
struct ImportanceMatrix {
    struct Entry {
        std::vector<float> sums;    // of squares, [matrices, cols]
        std::vector<float> counts;  // rows that were added up for each matrix, or one number for all
    };
    std::map<std::string, Entry, std::less<>> entries;
    std::vector<std::string> datasets;
    int64_t chunk_count = 0, chunk_size = 0;  // in tokens; 0: the file does not say
};

/// Reads either form. Throws Error naming the file and the entry: cut short, no importance matrix, sums without counts
/// or the other way round, numbers below zero or not finite, counts that are zero throughout or do not divide the sums.
ImportanceMatrix read_importance(const std::string& path);

/// Writes the GGUF form, and finishes the writer, which is new. Throws Error (io).
void write_importance(const ImportanceMatrix& matrix, GgufWriter& writer);

/// The mean square of each column's input, [matrices, cols], for the tensor `name` with that many matrices and columns.
/// A matrix that no row reached gets 1 throughout; their number is added to `unreached`. `path` is for messages.
/// REQUIRES an entry of that name. Throws Error if it is of another shape.
std::vector<float> mean_squares(const ImportanceMatrix& matrix, const std::string& path, const std::string& name,
                                int64_t matrices, int64_t cols, int64_t& unreached);

}  // namespace riptide
