// The state machine behind make_laguna_parser. Private to dialect_laguna*.cpp; the rules stand in dialect_laguna.h.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "text/delta_writer.h"
#include "text/dialect_laguna.h"
#include "text/utf8.h"

namespace riptide::laguna {

inline constexpr std::string_view kSpace = " \t\r\n";

/// The tags that are single tokens, and how they are spelled.
enum class Marker { think, end_think, tool_call, end_tool_call, end_assistant };
inline constexpr std::array<std::string_view, 5> kMarkers = {"<think>", "</think>", "<tool_call>", "</tool_call>",
                                                             "</assistant>"};
inline std::string_view spelling_of(Marker marker) { return kMarkers[static_cast<std::size_t>(marker)]; }

/// Where in an answer the parser is.
enum class State {
    reasoning,
    content,
    name,          // behind <tool_call>
    before_key,    // in a call, between arguments
    key,           // behind <arg_key>
    before_value,  // behind </arg_key>
    value,         // behind <arg_value>
    after_value,   // behind </arg_value>, not yet sure that it ended the value
    after_close,   // behind </tool_call> in an open value, not yet sure that it ended the call
};

/// The tags that are plain text.
inline constexpr std::string_view kArgKey = "<arg_key>", kEndArgKey = "</arg_key>";
inline constexpr std::string_view kArgValue = "<arg_value>", kEndArgValue = "</arg_value>";

class LagunaParser final : public StreamParser {
  public:
    explicit LagunaParser(LagunaParserOptions options)
        : options_(std::move(options)),
          state_(options_.thinking ? State::reasoning : State::content),
          writer_(options_.newline_framing, options_.call_id_prefix) {}

    void push_token(std::string_view text, bool is_special, StreamEvents& out) override;
    void finish(StreamEvents& out) override;

  private:
    // Input, from bytes to whole characters to text and markers.
    void on_characters(std::string_view text);
    void flush_marker();
    void on_text(std::string_view text);
    std::size_t on_plain(std::string_view text);
    void on_all_plain(std::string_view text);
    void flush_tag();
    void on_tag(std::string_view tag);
    void on_marker(Marker marker);
    bool on_section_marker(Marker marker);
    void on_call_marker(Marker marker);
    void on_value_marker(Marker marker);
    std::size_t on_name(std::string_view text);
    std::size_t on_between(std::string_view text);
    std::size_t on_held(std::string_view text);

    // Steps of a call.
    void start_call();
    void begin_call();
    void abandon_call();
    void close_call(bool complete);
    void start_value();
    void value_goes_on();

    // Output to the section that the parser is in.
    void write(std::string_view text);

    LagunaParserOptions options_;
    State state_;
    bool done_ = false;  // </assistant> has come
    DeltaWriter writer_;

    Utf8Stream utf8_;
    std::string marker_;  // start of a marker in plain text (strict_specials off)
    std::string tag_;     // start of a plain-text tag
    std::string hold_;    // a closing tag and white space, in after_value and after_close

    int literal_thinks_ = 0;  // <think> tags that were shown as text

    State origin_ = State::content;  // where <tool_call> came
    std::string raw_;                // of a call whose name is not complete
    std::string name_;
    bool name_ended_ = false;  // white space behind the name
    std::string key_;
    bool junk_ = false;  // text where none belongs, between the parts of a call
    ToolArguments arguments_;
};

}  // namespace riptide::laguna
