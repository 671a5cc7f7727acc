// What the stream parsers of all dialects with <think> and <tool_call> tokens have in common: bytes to characters to
// text and tags, and the sections outside calls. The calls are the dialect's. Private to dialect_*.cpp.
//
// Rules outside calls:
// - `<think>` is dropped at the start of reasoning, starts reasoning if nothing visible came before, and is text
//   otherwise (as is then the `</think>` that goes with it). Any other `</think>` outside reasoning is dropped.
// - A call whose `<tool_call>` is missing may be known by a tag at the beginning of a line of the text: the dialect
//   says which, and what must follow.
// - A `<tool_call>` inside reasoning ends the reasoning. A "call" that the dialect gives up before it has a name is
//   text (reasoning, if it began there). If the answer is cut there, before that is known, what has come of the call is
//   dropped. A `</tool_call>` that ends nothing is text. Where no tools are offered, both are text everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "text/dialects/delta_writer.h"
#include "text/dialects/parser_options.h"
#include "text/dialects/stream_parser.h"
#include "text/utf8.h"

namespace riptide {

/// White space between the parts of a call.
inline constexpr std::string_view kCallSpace = " \t\r\n";

/// The tags that are single tokens. How a turn's end is spelled is the dialect's.
enum class Marker { think, end_think, tool_call, end_tool_call, end_turn };
using MarkerSpellings = std::array<std::string_view, 5>;
constexpr MarkerSpellings markers_with(std::string_view end_turn) {
    return {"<think>", "</think>", "<tool_call>", "</tool_call>", end_turn};
}

/// The name of a call as it comes: without white space round it, 1 to 256 bytes, no control characters, nothing of
/// < > { } [ ] ". Whether it can be that of a tool is known when it is complete: SectionParser::is_tool_name.
class CallName {
  public:
    enum class Step { more, complete, wrong };
    /// One more byte; `end` completes a name that is not empty.
    Step push(char c, char end);
    const std::string& text() const { return text_; }

  private:
    std::string text_;
    std::size_t read_ = 0;
    bool ended_ = false;  // white space behind it
};

class SectionParser : public StreamParser {
  public:
    void push_token(std::string_view text, bool is_special, StreamEvents& out) final;
    void end_turn(StreamEvents& out) final;
    void finish(StreamEvents& out) final;

  protected:
    enum class Place {
        section,  // reasoning or text
        opening,  // behind <tool_call>, not yet sure that it is a call: all that came is in raw_
        call,     // between begin_call and end_call
    };

    SectionParser(ParserOptions options, std::string_view end_turn, DeltaWriter writer, bool keep_last_newlines)
        : options_(std::move(options)),
          markers_(markers_with(end_turn)),
          writer_(std::move(writer)),
          keep_last_newlines_(keep_last_newlines),
          in_reasoning_(options_.thinking),
          line_begins_(!options_.continues) {
        if (options_.continues) writer_.go_on();
    }

    // The dialect's part, called in `opening` and `call` only.

    /// Behind <tool_call>.
    virtual void on_open() = 0;
    /// Behind a tag of bare_tags(), with which a line of the text begins: a call, most likely, whose <tool_call> is
    /// missing.
    virtual void on_bare_open() {}
    virtual std::span<const std::string_view> bare_tags() const { return {}; }
    /// The plain-text tags that mean something here; all begin with '<' and have no other.
    virtual std::span<const std::string_view> tags() const = 0;
    virtual void on_tag(std::string_view tag) = 0;
    /// Text without tags. Returns how much of it was used before the state changed (0: it changed at once).
    virtual std::size_t on_call_text(std::string_view text) = 0;
    /// What looked like the start of a tag is none. True: the state has changed, and it may be that of another.
    virtual bool on_no_tag() = 0;
    /// In `opening`. False: it cannot stand here, and there is no call.
    virtual bool on_opening_marker(Marker marker) = 0;
    virtual void on_call_marker(Marker marker) = 0;
    /// The answer ends in `call`.
    virtual void on_cut() = 0;

    // What it may do.

    std::string_view spelling_of(Marker marker) const { return markers_[static_cast<std::size_t>(marker)]; }
    Place place() const { return place_; }
    /// Whether `name` is a tool's: one that is offered, or one to 128 characters of A-Z a-z 0-9 _ . - / :, as tools are
    /// called. Other names are no calls: clients, and the APIs behind them, refuse whole conversations for one.
    bool is_tool_name(std::string_view name) const;
    void start_call();
    /// The same, for what follows a call without a <tool_call> of its own.
    void start_next_call();
    void begin_call(const std::string& name);
    void end_call(bool complete);
    /// No call after all: raw_ goes where it came from.
    void abandon_call();
    void turn_ends() { done_ = true; }

    ParserOptions options_;
    const MarkerSpellings markers_;
    DeltaWriter writer_;
    std::string raw_;

  private:
    void on_characters(std::string_view text);
    void flush_marker();
    void on_text(std::string_view text);
    std::size_t on_plain(std::string_view text);
    void flush_tag();
    void drop_opening();
    void start_bare_call(std::string_view tag);
    void on_marker(Marker marker);
    void on_section_marker(Marker marker);
    void enter(bool reasoning);
    void write(std::string_view text);

    const bool keep_last_newlines_;
    Place place_ = Place::section;
    bool in_reasoning_;
    bool line_begins_;   // of the section
    bool done_ = false;  // the end of the turn has come
    Utf8Stream utf8_;
    std::string marker_;      // start of a marker in plain text (strict_specials off)
    std::string tag_;         // start of a plain-text tag
    int literal_thinks_ = 0;  // <think> tags that were shown as text
};

}  // namespace riptide
