// A compiled regular expression of a pre-tokenizer (PCRE2, JIT where the machine allows it).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace riptide {

/// A pattern in the dialect that Hugging Face tokenizers use (Oniguruma), as far as the two dialects agree: literals,
/// classes, Unicode properties, groups, `(?i:)`, look-around, all quantifiers. `\s` and `\S` mean exactly Unicode's
/// White_Space (PCRE2's own `\s` also takes U+180E). `\w` and `\d` are PCRE2's with UCP. Set operations in classes
/// (`&&`) are refused. Immutable; any number of threads may match at once, each with its own Scratch.
class Regex {
  public:
    /// Working memory of one thread. Cheap to make, worth keeping over many matches.
    class Scratch {
      public:
        Scratch();
        ~Scratch();
        Scratch(const Scratch&) = delete;
        Scratch& operator=(const Scratch&) = delete;

      private:
        friend class Regex;
        struct Impl;
        std::unique_ptr<Impl> impl_;
    };
    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
    };

    /// Throws Error naming `what` if the pattern does not compile or is longer than 16 KiB.
    Regex(std::string_view pattern, std::string_view what);
    ~Regex();
    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;

    /// Finds the first match that starts at byte `from` or later; false if there is none.
    /// REQUIRES: `subject` is valid UTF-8, `from` is a character border. Throws Error if the match needs more steps
    /// than 1,000,000 + 100 per byte of the subject (only patterns with nested repeats do).
    bool find(std::string_view subject, std::size_t from, Scratch& scratch, Match& match) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The PCRE2 spelling of a Hugging Face pattern: `\s` and `\S` written out. Exposed for tests.
std::string translate_regex(std::string_view pattern, std::string_view what);

}  // namespace riptide
