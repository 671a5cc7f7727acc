// Jinja templates with budgets: renders the chat templates of released models byte for byte as Hugging Face
// transformers does.
//
// The language is that of Jinja2 3.1 in transformers' settings: trim_blocks, lstrip_blocks, loop controls, the
// `generation` tag, `tojson` = json.dumps(ensure_ascii=False), `raise_exception`, `strftime_now`, no autoescape, and
// the immutable sandbox (no `list.append`, no private attributes). Values behave as Python's do (repr of floats,
// negative slices, one-shot generators).
//
// Not there, each refused with an error that says so: include, import, extends, block, autoescape; calculating beyond
// 64 bits; the filters random, urlize, urlencode, xmlattr, pprint, striptags, truncate, wordwrap, filesizeformat;
// printing functions, generators and namespaces. Filters that Jinja runs lazily (map, select, ...) run at once, so that
// their errors show even where nobody walks their result. `lower` does not know the final sigma. A template sees its
// variables and the functions range, dict, namespace, cycler, joiner, raise_exception and strftime_now; nothing of the
// host.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/work_budget.h"
#include "text/text_span.h"

namespace riptide::jinja {

/// Budgets, beside that of the work. Whatever goes beyond one is an Error that names the template, the line and the
/// limit.
struct Limits {
    int64_t source_bytes = int64_t{1} << 20;
    int64_t nodes = 100'000;  // of the syntax tree
    int depth = 100;          // brackets and blocks inside each other, in the source
    int eval_depth = 400;     // expressions and blocks being evaluated inside each other, through macros too
    int macro_depth = 32;     // macros (and recursive loops) running inside each other
    int value_depth = 160;    // lists and dicts inside each other
    int64_t output_bytes = int64_t{16} << 20;  // of the output, and of any one string
    int64_t value_bytes = int64_t{64} << 20;   // all values alive at one time, approximately
    int64_t range_items = 100'000;
};

/// A rendered text, and which of its bytes are the template's own: sorted, disjoint, never touching, never empty spans.
/// All other bytes came from the variables (or are numbers, punctuation and quotes made from values). A tokenizer that
/// looks for special tokens only inside these spans cannot be led by what a user wrote.
struct Rendered {
    std::string text;
    std::vector<TextSpan> trusted;
};

struct RenderOptions {
    /// Variables whose strings count as the template's own, such as bos_token. They come before `variables`.
    json::object trusted_variables;
    /// Strings that count as the template's own where they are the value of a key `role` in the variables.
    std::vector<std::string> trusted_roles;
    /// What strftime_now shows; the local time if absent.
    std::optional<std::tm> now;
    /// Counts nodes evaluated, items visited and text gone through; null: a budget of its own.
    WorkBudget* work = nullptr;
};

/// The template called raise_exception (or a macro of it did): it refuses these variables. The message is the
/// template's own, cut to 1,000 bytes; what() has template name and line before it.
class RaisedError : public Error {
  public:
    RaisedError(const std::string& what, std::string template_message)
        : Error(what), template_message_(std::move(template_message)) {}
    const std::string& template_message() const { return template_message_; }

  private:
    std::string template_message_;
};

struct Program;

/// A parsed template. Immutable: copies share it, and threads may render it at the same time.
class Template {
  public:
    /// `name` stands in errors ("chat_template.jinja:12:5: ..."). `source` is UTF-8.
    /// Throws Error with line and column if it is malformed, asks for something unsupported, or is over a limit.
    /// Time linear in the source.
    static Template parse(std::string_view source, std::string name, const Limits& limits = {});

    /// Throws RaisedError, or Error with the line, where Jinja2 would raise or a limit is reached (TooMuchWork if it is
    /// the work's); WorkStopped. Deterministic unless the template asks for the time. Needs less than 512 KiB of stack.
    Rendered render(const json::object& variables, const RenderOptions& options = {}) const;

    const std::string& name() const;

  private:
    explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
    std::shared_ptr<const Program> program_;
};

}  // namespace riptide::jinja
