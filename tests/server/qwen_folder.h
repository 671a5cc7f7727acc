// The small Qwen3 fixture as a model that chats: a folder with a vocabulary of bytes, Qwen's markup and a template.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/file.h"
#include "base/json.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "tensor/half.h"
#include "tests/source_dir.h"
#include "tests/text/small_vocabulary.h"

namespace riptide::testing {

inline void write_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline SmallVocabulary qwen_vocabulary() {
    SmallVocabulary v;
    v.specials = {{"<|endoftext|>"},       {"<|im_start|>"},   {"<|im_end|>"},     {"<tool_call>", false},
                  {"</tool_call>", false}, {"<think>", false}, {"</think>", false}};
    // No merges: what the model says under a mask then has one spelling in tokens.
    return v;
}

/// The fixture's layers, and its embedding with random rows behind for the longer vocabulary.
inline void write_weights(const std::filesystem::path& folder, int64_t vocab) {
    const auto fixture = open_checkpoint(source_dir() + "/tests/fixtures/qwen3_tied");
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 0.08F);
    SafetensorsWriter writer((folder / "model.safetensors").string());
    std::vector<std::vector<std::byte>> bytes;
    for (const TensorInfo& tensor : fixture->tensors()) {
        std::vector<int64_t> shape = tensor.shape;
        std::vector<std::byte>& data = bytes.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
        if (tensor.name.find("embed_tokens") != std::string::npos) {
            ASSERT_EQ(tensor.dtype, DType::bf16);
            shape[0] = vocab;
            const auto old = static_cast<std::ptrdiff_t>(data.size() / 2);
            data.resize(static_cast<size_t>(vocab * shape[1]) * 2);
            for (std::ptrdiff_t i = old; i < vocab * shape[1]; ++i) {
                const uint16_t value = f32_to_bf16(normal(random));
                std::memcpy(data.data() + 2 * i, &value, 2);
            }
        }
        writer.add_tensor(tensor.name, tensor.dtype, shape);
    }
    for (const auto& data : bytes) writer.write(data);
    writer.finish();
}

/// A template in the dialect of Qwen3.5, which thinks unless told not to.
inline std::string qwen_template() { return read_file(source_dir() + "/tests/text/data/qwen_tags.jinja", 1 << 20); }

/// Writes the model to `path`, over one that may be there, and returns `path`. Its words mean nothing.
inline std::string write_qwen_folder(const std::string& path, const json::object& generation_config,
                                     const std::string& chat_template = qwen_template()) {
    const std::filesystem::path folder(path);
    std::filesystem::create_directories(folder);
    const SmallVocabulary vocabulary = qwen_vocabulary();
    const auto vocab = static_cast<int64_t>(vocabulary.tokens().size());
    write_weights(folder, vocab);
    const std::string fixture = source_dir() + "/tests/fixtures/qwen3_tied";
    json::value config = parse_json(read_file(fixture + "/config.json", 1 << 20), "config.json");
    config.as_object()["vocab_size"] = vocab;
    write_text(folder / "config.json", json::serialize(config));
    json::object tokenizer = vocabulary.hf();
    tokenizer["post_processor"] = nullptr;
    write_text(folder / "tokenizer.json", json::serialize(tokenizer));
    write_text(folder / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "bos_token": null})");
    write_text(folder / "generation_config.json", json::serialize(generation_config));
    write_text(folder / "chat_template.jinja", chat_template);
    return path;
}

}  // namespace riptide::testing
