// A line that is edited on a terminal, with those before it at hand.
#pragma once

#include <memory>
#include <string>

#include "apps/chat/typed_line.h"

namespace riptide::apps {

/// Emacs keys, history, search (Ctrl-R); a paste, of several lines too, is text and sends nothing. One at a time.
class LineEditor {
  public:
    /// Was riptide built with libedit? Otherwise the rest throws.
    static bool available();
    /// `history_file`: where lines are remembered, for the owner's eyes only; "": nowhere. One that cannot be read is
    /// as good as none.
    LineEditor(InputBytes& bytes, const std::string& history_file);
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    /// Text of one line, or of several that were pasted. Ctrl-C and interrupted() end it as interrupted. The terminal
    /// is as it was afterwards. REQUIRES: stdin and stdout are a terminal that can move its cursor.
    TypedLine read(const std::string& prompt);
    /// The next read() has it in its history. Throws Error (io): the file cannot be written.
    void remember(const std::string& text);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide::apps
