// Messages from a person at a terminal, or from a pipe.
#pragma once

#include <memory>
#include <string>

#include "apps/chat/line_editor.h"
#include "apps/chat/typed_line.h"

namespace riptide::apps {

/// Reads standard input. On a terminal lines are edited, if riptide was built with libedit and the terminal is able to;
/// elsewhere there are no prompts.
class MessageReader {
  public:
    /// `history_file`: see LineEditor.
    explicit MessageReader(const std::string& history_file);

    /// Does a person sit there?
    bool interactive() const { return interactive_; }
    /// One message: a line; what is pasted, of several lines too; or the lines between """ and """. A block that is
    /// broken off is none.
    TypedLine read(const std::string& prompt);
    /// Keeps a message for the arrow keys, and for the next run. What prevents it is said once.
    void remember(const std::string& text);
    /// A question: was the answer y or yes?
    bool agrees(const std::string& question);

  private:
    TypedLine read_line(const std::string& prompt);

    InputBytes bytes_;
    std::unique_ptr<LineEditor> editor_;
    bool interactive_;
};

}  // namespace riptide::apps
