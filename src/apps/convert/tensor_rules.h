// Types that the command line asks for, tensor by tensor.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "text/tokenizer/regex.h"

namespace riptide::apps {

/// "REGEX=TYPE", several: a tensor gets the type of the first whose pattern is found anywhere in its name.
class TensorRules {
  public:
    /// Throws Error (usage) naming the rule: no "=", an unknown type, one without a quantiser or one that GGUF does not
    /// have, a pattern that does not compile.
    explicit TensorRules(std::span<const std::string> rules);

    /// The type of `name`, or nothing.
    std::optional<DType> find(std::string_view name);
    /// Throws Error (usage) naming a rule that find() never took.
    void check_all_used() const;

  private:
    struct Rule {
        std::string text;
        Regex pattern;
        DType type;
        bool used = false;
    };
    std::vector<Rule> rules_;
    Regex::Scratch scratch_;
};

}  // namespace riptide::apps
