// The output side of a stream parser: joins deltas, drops the newlines that frame markup, counts calls.
#pragma once

#include <string>
#include <string_view>

#include "text/stream_parser.h"

namespace riptide {

/// Writes events for one answer.
class DeltaWriter {
  public:
    enum class Channel { text, reasoning };

    /// `newline_framing`: one newline at the start of a section and one at its end are dropped.
    DeltaWriter(bool newline_framing, std::string call_id_prefix)
        : framing_(newline_framing), lead_(newline_framing), call_id_prefix_(std::move(call_id_prefix)) {}

    /// Events go to the end of `out` from now on; older ones in it are not touched. Call at each push.
    void attach(StreamEvents& out);

    /// Markup ends a section of text and starts the next: a held newline is dropped, the next one will be.
    void start_section();
    /// The newline that comes next, if any, is framing.
    void expect_newline() { lead_ = framing_; }
    /// Markup ends a section, and text of another kind follows.
    void end_section() { held_newline_ = false; }

    /// Text of a section, less the newlines that frame it.
    void write(Channel channel, std::string_view text);
    /// Text as it is.
    void write_verbatim(Channel channel, std::string_view text);
    /// Whether the section has shown anything but white space.
    bool visible() const { return visible_; }

    void begin_call(const std::string& name);
    void write_arguments(const std::string& fragment);
    void end_call(bool complete);
    int calls() const { return calls_; }

    void finish(bool closed);

  private:
    bool framing_;
    bool lead_;                  // a newline now would be framing
    bool held_newline_ = false;  // a newline that is framing if markup follows
    bool visible_ = false;
    std::string call_id_prefix_;
    int calls_ = 0;
    StreamEvents* out_ = nullptr;
    std::size_t first_ = 0;  // events of this push start here
};

}  // namespace riptide
