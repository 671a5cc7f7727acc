// Text of which each byte knows whether the template itself wrote it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"

namespace riptide::jinja {

/// UTF-8 bytes with provenance: "trusted" bytes are the template's literals, all others come from variables.
/// A text of one provenance costs no more than its bytes; a mixed one keeps a list of spans. Positions are in bytes.
class Text {
  public:
    Text() = default;
    Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), trust_(trusted ? Trust::all : Trust::none) {}

    const std::string& bytes() const { return bytes_; }
    int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
    bool empty() const { return bytes_.empty(); }
    /// Bytes, with those of the spans.
    int64_t memory() const { return size() + static_cast<int64_t>(spans_.size() * sizeof(TextSpan)); }

    void append(std::string_view bytes, bool trusted);
    void append(const Text& other) { append(other, 0, other.size()); }
    /// Appends bytes [begin, end) of `other`. REQUIRES 0 <= begin <= end <= other.size(), and other is not *this.
    void append(const Text& other, int64_t begin, int64_t end);
    Text part(int64_t begin, int64_t end) const;

    bool all_trusted() const { return trust_ == Trust::all; }
    /// The byte at `at` is the template's own.
    bool trusted_at(int64_t at) const;
    /// The end of the run of equal provenance that `at` lies in. REQUIRES 0 <= at < size().
    int64_t run_end(int64_t at) const;
    /// The trusted bytes: sorted, disjoint, never touching, never empty.
    std::vector<TextSpan> trusted() const;

  private:
    enum class Trust : uint8_t { none, all, mixed };
    std::vector<TextSpan>::const_iterator span_after(int64_t at) const;
    void mix();
    void add_span(int64_t begin, int64_t end);

    std::string bytes_;
    std::vector<TextSpan> spans_;  // the trusted ones; used only when mixed
    Trust trust_ = Trust::all;
};

}  // namespace riptide::jinja
