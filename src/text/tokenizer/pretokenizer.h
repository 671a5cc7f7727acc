// Cuts text into the pieces inside which byte-pair merging happens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/work_budget.h"
#include "text/text_span.h"
#include "text/tokenizer/regex.h"

namespace riptide {

/// What becomes of the matches of a Split rule, as Hugging Face tokenizers define it. The text is a sequence of matches
/// and of gaps between them; `invert` swaps the two.
enum class SplitBehaviour {
    isolated,              // each match is a piece, each gap is a piece
    removed,               // matches are dropped
    merged_with_previous,  // a match joins the gap before it
    merged_with_next,      // a match joins the gap after it
    contiguous,            // neighbouring matches join each other
};

/// A list of split rules, applied one after the other: each rule sees every piece of the rule before as a text of its
/// own (so look-around does not see beyond a piece). Immutable and shareable between threads.
class PreTokenizer {
  public:
    /// The rules behind a value of GGUF's `tokenizer.ggml.pre`:
    ///   gpt-2      the GPT-2 pattern (numbers and words with their leading space)
    ///   starcoder  each digit alone, then the GPT-2 pattern
    ///   llama-bpe  the Llama 3 pattern (digits in threes)
    ///   qwen2      the Qwen2 pattern (digits one at a time)
    ///   qwen35     Qwen2 with combining marks counted as letters
    ///   laguna     every run of line breaks (\n or \r\n) starts a new piece together with what follows it; then qwen2
    /// and the other names that mean the same rules. Throws Error naming `what` and the known names otherwise.
    static PreTokenizer from_ggml(std::string_view name, std::string_view what);

    /// The `pre_tokenizer` of a tokenizer.json: Sequence, Split, ByteLevel, Digits, or null (no cut at all).
    /// Throws Error naming `what` for another type, or for `add_prefix_space`.
    static PreTokenizer from_hf(const json::value& node, std::string_view what);

    /// Appends the pieces of `text`, in order, none empty. Bytes that are not valid UTF-8 form pieces of their own: a
    /// run of them ends the text before it and begins the text after it. Without a `removed` rule the pieces cover the
    /// text. Time linear in the text for all named rules; `work`, unless null, counts it.
    void split(std::string_view text, std::vector<TextSpan>& pieces, WorkBudget* work = nullptr) const;

    /// The rules in a canonical spelling; equal strings cut equally, whichever kind of file they came from.
    std::string description() const;
    /// True for the rules called `laguna`, wherever they came from.
    bool is_laguna() const;

  private:
    struct Rule {
        bool line_breaks = false;  // Laguna's first rule, without a regex engine
        std::string pattern;
        std::shared_ptr<const Regex> regex;
        SplitBehaviour behaviour = SplitBehaviour::isolated;
        bool invert = false;
        void apply(std::string_view text, TextSpan piece, Regex::Scratch& scratch, std::vector<TextSpan>& out,
                   WorkBudget* work) const;
    };
    void add(std::string_view pattern, SplitBehaviour behaviour, bool invert, std::string_view what);
    void add_hf(const json::object& node, std::string_view what);
    void add_hf_split(const json::object& node, std::string_view what);

    std::vector<Rule> rules_;
};

}  // namespace riptide
