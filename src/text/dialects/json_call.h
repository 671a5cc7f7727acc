// A tool call written as a JSON object, read as it comes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace riptide {

/// Reads {"name": NAME, "arguments": OBJECT}, members in any order, others passed over. Of the arguments
/// strings come in pieces, keys and other values when they are whole.
///
/// Mended on the way: control characters inside strings are escaped; a backslash that escapes nothing is one; half a
/// surrogate pair becomes U+FFFD; True, False and None are true, false and null; a comma before a closing bracket is
/// dropped. Arguments may be a string that holds an object; null, "" or none are {}. "parameters" is another name of
/// them. The first of equal members counts; inside the arguments all are passed on. Nesting beyond 100 is not read.
class JsonCall {
  public:
    enum class State { open, closed, broken };

    State state() const { return state_; }
    /// More of the text, whole characters. Returns how much of it was used: all, or up to the closing brace, or less
    /// because what follows cannot stand there. REQUIRES: open.
    std::size_t push(std::string_view text);
    bool in_string() const { return expect_ == Expect::string; }
    /// Empty until it is known.
    const std::string& name() const { return name_; }
    bool has_arguments() const { return has_arguments_; }
    /// The whole of them has come, or the whole call.
    bool complete() const { return arguments_closed_ || state_ == State::closed; }
    /// The text of the arguments that has come since the last call.
    std::string take();
    /// The rest of it, or {} if there were none. REQUIRES: complete(). Nothing may be pushed or taken afterwards.
    std::string end();

  private:
    enum class Expect { value, item_or_end, key, colon, comma, string, scalar };
    enum class Role { other, name, arguments };  // of a member of the outermost object

    bool step(char c);
    bool structure(char c);
    bool begin_value(char c);
    bool open(char c);
    bool close(char c);
    bool string_byte(char c);
    bool plain_byte(char c);
    void escaped_code_unit();
    void end_surrogate();
    bool end_string();
    bool end_scalar();
    bool whole_arguments(const std::string& text);
    void choose_role(const std::string& key);
    bool inside_arguments() const { return role_ == Role::arguments && stack_.size() > 1; }
    void give(std::string_view text);

    State state_ = State::open;
    Expect expect_ = Expect::value;
    Role role_ = Role::other;
    std::string stack_;               // the open brackets
    bool is_key_ = false;             // the string
    std::string text_;                // of the string, as JSON has it
    std::string escape_, surrogate_;  // begun inside the string
    std::string scalar_;
    std::string name_;
    bool has_name_ = false, has_arguments_ = false, arguments_closed_ = false;
    std::string pending_;  // of the arguments, to be given out with the value that follows
    std::string out_;
};

}  // namespace riptide
