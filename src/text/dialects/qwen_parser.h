// Qwen's stream parser. Private to dialect_qwen*.cpp.
#pragma once

#include <string>

#include "text/dialects/json_call.h"
#include "text/dialects/section_parser.h"
#include "text/json/tool_arguments.h"

namespace riptide {

class QwenParser final : public SectionParser {
  public:
    /// Where in a call the parser is.
    enum class State {
        open,            // behind <tool_call>
        name,            // behind <function=
        bare,            // behind the name of a call without <tool_call>, not yet sure that it is one
        between,         // behind the name, before the first <parameter=
        key,             // behind <parameter=
        value,           // behind the > of a key
        next_key,        // behind <parameter= at the beginning of a line of a value, not yet sure that it ended it
        after_value,     // behind </parameter>, not yet sure that it ended the value
        after_function,  // behind that and </function>, not yet sure either
        lone_function,   // behind </function> in an open value
        after_close,     // behind </tool_call> in an open value or string, not yet sure that it ended the call
        next_name,       // behind a further <function=, not yet sure that it begins a call
        object,          // in a JSON object
        rest,            // the arguments are closed, </tool_call> is to come
    };

    explicit QwenParser(ParserOptions options);

  private:
    void on_open() override;
    void on_bare_open() override;
    std::span<const std::string_view> bare_tags() const override;
    std::span<const std::string_view> tags() const override;
    void on_tag(std::string_view tag) override;
    std::size_t on_call_text(std::string_view text) override;
    bool on_no_tag() override;
    bool on_opening_marker(Marker marker) override;
    void on_call_marker(Marker marker) override;
    void on_cut() override;

    void on_function();
    std::size_t on_name(std::string_view text);
    std::size_t on_bare(std::string_view text);
    std::size_t on_next_name(std::string_view text);
    std::size_t on_key(std::string_view text);
    std::size_t on_next_key(std::string_view text);
    std::size_t on_space(std::string_view text);
    std::size_t on_open_text(std::string_view text);
    std::size_t on_object(std::string_view text);
    std::size_t on_held(std::string_view text);
    void on_held_marker(Marker marker);
    bool is_held() const;
    void write_value(std::string_view text);
    void start_key();
    void start_value();
    void begin_function();
    void finish_arguments(bool complete);
    void close(bool complete);
    void leave(Marker marker);
    void goes_on();
    void give_back();

    State state_ = State::open;
    State back_ = State::open;  // before next_name
    bool bare_ = false;         // the call has no <tool_call>
    bool is_object_ = false;    // the call
    CallName name_, next_name_;
    std::string key_;
    bool lead_ = false;  // a newline now would be the one before the value
    bool held_newline_ = false;
    std::string hold_;      // what may have ended a value or the call
    bool junk_ = false;     // text where none belongs
    bool complete_ = true;  // in rest
    ToolArguments arguments_;
    JsonCall object_;
};

}  // namespace riptide
