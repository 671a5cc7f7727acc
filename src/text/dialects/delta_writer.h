// The output side of a stream parser: joins deltas, drops the newlines that frame markup, counts calls.
#pragma once

#include <string>
#include <string_view>

#include "text/dialects/stream_parser.h"

namespace riptide {

/// Writes events for one answer.
class DeltaWriter {
  public:
    enum class Channel { text, reasoning };

    /// Up to `framing` newlines at the start of a section and at its end are dropped; `lead`: at the start of the
    /// answer.
    DeltaWriter(int framing, int lead, std::string call_id_prefix)
        : framing_(framing), lead_(lead), call_id_prefix_(std::move(call_id_prefix)) {}

    /// Events go to the end of `out` from now on; older ones in it are not touched. Call at each push.
    void attach(StreamEvents& out);

    /// The answer goes on with text that was shown before.
    void go_on() { lead_ = 0, visible_ = true; }

    /// Markup ends a section of text and starts the next: held newlines are dropped, the next ones will be.
    void start_section();
    /// The newlines that come next, if any, are framing.
    void expect_newlines() { lead_ = framing_; }
    /// Markup ends a section, and text of another kind follows.
    void end_section() { held_ = 0; }
    /// No markup follows: held newlines are text.
    void release(Channel channel);

    /// Text of a section, less the newlines that frame it.
    void write(Channel channel, std::string_view text);
    /// Text as it is. Inside a call it is kept until the call has ended.
    void write_verbatim(Channel channel, std::string_view text);
    /// Whether the section has shown anything but white space.
    bool visible() const { return visible_; }

    void begin_call(const std::string& name);
    void write_arguments(const std::string& fragment);
    /// REQUIRES, if `complete`: the arguments are a JSON object.
    void end_call(bool complete);
    int calls() const { return calls_; }

    void finish(bool closed);

  private:
    int framing_;
    int lead_;              // so many newlines now would be framing
    std::size_t held_ = 0;  // newlines that are framing if markup follows, at most framing_
    bool visible_ = false;
    std::string call_id_prefix_;
    int calls_ = 0;
    bool in_call_ = false, has_arguments_ = false;
    std::string aside_;  // text that came inside the call
    StreamEvents* out_ = nullptr;
    std::size_t first_ = 0;  // events of this push start here
};

}  // namespace riptide
