// Token ids to text, one at a time, never cutting a character in two.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

namespace riptide {

/// Turns the ids of one sequence into valid UTF-8 as they come. The texts of all calls together are those of
/// Tokenizer::decode, with each maximal invalid prefix of a character replaced by U+FFFD.
class Detokenizer {
  public:
    enum class Special { show, hide };
    /// `tokenizer` must outlive this. `hide` leaves out tokens of kind special (not of kind added).
    explicit Detokenizer(const Tokenizer& tokenizer, Special special = Special::hide)
        : tokenizer_(&tokenizer), special_(special) {}

    /// The text that `id` completes: whole characters; at most 3 bytes of an unfinished one are held back.
    /// Throws Error for an id outside the vocabulary.
    std::string push(int32_t id);
    /// The rest: U+FFFD if an unfinished character is held, else nothing. Afterwards the object is as new.
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    Special special_;
    Utf8Stream stream_;
};

}  // namespace riptide
