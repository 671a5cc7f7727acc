// Text to token ids and back: byte-level byte-pair encoding, from a GGUF file or a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/work_budget.h"
#include "text/text_span.h"
#include "text/tokenizer/pretokenizer.h"

namespace riptide {

/// How a text is to be read.
struct EncodeOptions {
    /// Put the ids round the text that the file asks for (usually the BOS id in front). A rendered chat template writes
    /// BOS itself, so this is off by default.
    bool add_special = false;
    /// Recognise added tokens (`<think>`, `</assistant>`, `〈|EOS|〉`) anywhere in the text. For text that is all ours.
    /// Those of white space alone, which some vocabularies have, are text like any other and recognised in any case.
    bool parse_special = false;
    /// Recognise added tokens only where they lie entirely inside one of these spans: the parts that the chat template
    /// wrote, not what the user wrote. In order, without overlap, inside the text. Ignored with parse_special.
    std::span<const TextSpan> trusted = {};
    /// Counts what is done, unless null; encode() throws what it throws.
    WorkBudget* work = nullptr;
};

/// What kind of entry a token is.
enum class TokenKind : uint8_t {
    normal,   // made by merging
    added,    // matched as a whole; part of the visible text (Laguna's `<tool_call>`)
    special,  // matched as a whole; control, not part of the visible text (BOS, EOS)
    unused,   // padding of the table; never produced
};

struct TokenizerSpec;  // what a file says, before it is checked (text/tokenizer/tokenizer_spec.h)

/// A vocabulary with its rules. Immutable after loading: any number of threads may use it at once.
class Tokenizer {
  public:
    /// From the metadata of a GGUF file (`tokenizer.ggml.*`); `path` names the file in errors. Throws Error naming the
    /// key or entry: a model other than "gpt2", an unknown pre-tokenizer, doubled or missing tokens, merges of unknown
    /// tokens, ids out of range. GGUF does not say whether text is normalised, so it never is (Qwen's tokenizer.json
    /// asks for NFC: the two differ on text with decomposed accents).
    static Tokenizer from_gguf(const json::object& metadata, const std::string& path);

    /// From tokenizer.json, with tokenizer_config.json (may be null) for the BOS, EOS, ... names. BPE models with a
    /// ByteLevel pre-tokenizer; the normalizer may be absent or NFC. Throws Error as above, and for what is not
    /// supported.
    static Tokenizer from_hf(const json::value& tokenizer_json, const json::value* tokenizer_config,
                             const std::string& path);

    explicit Tokenizer(TokenizerSpec&& spec);
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    /// The token ids of any bytes. Added tokens found as the options say are cut out first; each stretch between them
    /// is normalised, pre-tokenised and merged as one text, across the borders of trusted spans. With everything
    /// trusted the ids equal those of Hugging Face. Bytes that are not UTF-8 are encoded one by one and merged only
    /// among themselves. Time n log n. Throws Error if the spans are out of order, or a byte has no token.
    std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

    /// The bytes of the ids, one after the other (not always valid UTF-8; see Detokenizer). `skip_special` leaves out
    /// tokens of kind special, not those of kind added. Throws Error for an id that is not in the vocabulary.
    std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

    /// The raw bytes of one token. Throws Error for an id that is not in the vocabulary.
    std::string_view piece(int32_t id) const;
    TokenKind kind(int32_t id) const;
    bool is_special(int32_t id) const { return kind(id) == TokenKind::special; }
    /// Matched as a whole (special or added): what it spells is markup, not text that happens to look alike.
    bool is_added(int32_t id) const { return kind(id) == TokenKind::special || kind(id) == TokenKind::added; }

    int32_t vocab_size() const;
    /// The ids that the file names, or -1.
    int32_t bos() const;
    int32_t eos() const;
    int32_t eot() const;
    int32_t unk() const;
    int32_t pad() const;
    int32_t mask() const;
    bool adds_bos() const;  // whether add_special puts BOS in front

    /// The ids that end an answer: eos, eot and `more` (generation_config's eos_token_id), sorted, each once. Entries
    /// of `more` outside the vocabulary are an Error.
    std::vector<int32_t> stop_ids(std::span<const int32_t> more = {}) const;

    /// The token that spells exactly these bytes, an added one before a normal one, or -1.
    int32_t id_of(std::string_view bytes) const;

    /// A hash of what decides encode and decode: tokens, merges, added tokens, rules. Equal for the same tokenizer read
    /// from GGUF and from tokenizer.json (unused padding entries and names of control tokens do not count); stable for
    /// ever.
    uint64_t fingerprint() const;

    const PreTokenizer& pre_tokenizer() const;

  private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace riptide
