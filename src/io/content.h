// What a file that is not what it should be looks like, and names from files made fit for a one-line message.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace riptide {

/// A guess from the first bytes, as the end of a sentence: "it looks like a Git LFS pointer: run git lfs pull".
/// Never empty. Reads at most the first 512 bytes.
std::string describe_content(std::span<const std::byte> bytes);

/// True for zip archives and pickle streams, the containers of .bin, .pt and .pth checkpoints.
bool looks_like_pickle(std::span<const std::byte> bytes);

bool looks_like_gguf(std::span<const std::byte> bytes);

/// A possible safetensors header: a length of at most 100 MB followed by '{'.
bool looks_like_safetensors(std::span<const std::byte> bytes);

/// `name` with everything but printable ASCII as \xNN, cut after 96 characters.
std::string printable(std::string_view name);

}  // namespace riptide
