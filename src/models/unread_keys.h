// Keys of config.json that no reader has asked for.
#pragma once

#include <string_view>

#include "io/hf_config.h"

namespace riptide {

/// To be called when a config has been read, with the reader of the whole file. Every key that is there must have been
/// read, or be one of the table in unread_keys.cpp: those that change no value, and those that change none while they
/// are off. Throws Error naming any other: what it asks for would not be computed.
void refuse_unread_keys(const ConfigReader& config);

/// The same for the second half of that table in GGUF metadata, whose other keys are not looked at. `keys` has the
/// prefix of the architecture; `below`: of further ones ("dflash.").
void refuse_scaled_gguf(const ConfigReader& keys, std::string_view below = "");

}  // namespace riptide
