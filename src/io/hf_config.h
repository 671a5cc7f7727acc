// Typed reading of configuration: Hugging Face's config.json and GGUF metadata, with errors that name key, value and
// wish.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "io/checkpoint.h"

namespace riptide {

/// A view of a JSON object whose members are read by key and checked type. A key's full name is `prefix` + key, so that
/// one reader serves "config.json: hidden_size" and "model.gguf: laguna.embedding_length". JSON null counts as missing.
///
/// T is one of bool, int, int64_t, float, double, std::string, or a std::vector of int64_t, double, bool or
/// std::string. Whole numbers are accepted as floating point; nothing else is converted. Every function that throws,
/// throws Error with
///   "config.json: missing key rope_theta (expected a number)" or "config.json: rope_theta is \"abc\", expected a
///   number".
/// The object must outlive the reader. A reader, its copies and its children note together what they were asked for:
/// one thread at a time.
class ConfigReader {
  public:
    /// `source` names the file in messages.
    ConfigReader(const json::object& object, std::string source, std::string prefix = "")
        : object_(&object),
          source_(std::move(source)),
          prefix_(std::move(prefix)),
          read_(std::make_shared<std::set<std::string, std::less<>>>()) {}

    bool has(std::string_view key) const { return lookup(key) != nullptr; }
    /// The value under a key that must be there.
    template <class T>
    T get(std::string_view key) const;
    /// The value, or `fallback` if the key is missing. A value of the wrong type is an error all the same.
    template <class T>
    T get_or(std::string_view key, T fallback) const {
        return has(key) ? get<T>(key) : fallback;
    }
    template <class T>
    std::optional<T> find(std::string_view key) const {
        return has(key) ? std::optional<T>(get<T>(key)) : std::nullopt;
    }
    /// One value per layer: an array of exactly `layers` values, or a single one that holds for all.
    std::vector<int64_t> get_per_layer(std::string_view key, int64_t layers) const;

    /// A nested object; messages name the whole path ("rope_parameters.full_attention.rope_theta").
    ConfigReader child(std::string_view key) const;
    /// The value as it is, for what the types above do not cover. Throws Error if missing.
    const json::value& raw(std::string_view key) const;
    /// The name of a key in messages: "config.json: rope_theta".
    std::string name_of(std::string_view key) const;
    const json::object& object() const { return *object_; }
    /// What is there and nobody has asked for, with its name below this object ("rope_parameters.mscale"); of an object
    /// that was asked for, its members.
    std::vector<std::pair<std::string, const json::value*>> unread() const;

  private:
    const json::value* lookup(std::string_view key) const;
    [[noreturn]] void fail_type(std::string_view key, const json::value& value, std::string_view expected) const;

    const json::object* object_;
    std::string source_;
    std::string prefix_;                                        // part of the key
    std::string path_;                                          // of the nested object
    std::shared_ptr<std::set<std::string, std::less<>>> read_;  // whole names of what was asked for
};

using HfConfig = ConfigReader;

/// config.json of a safetensors checkpoint. Throws Error if it has none.
ConfigReader hf_config(const Checkpoint& checkpoint);

/// Keys of a GGUF checkpoint that begin with `prefix` ("laguna.", or nothing for all).
ConfigReader gguf_config(const Checkpoint& checkpoint, std::string prefix = "");

}  // namespace riptide
