// Shows an answer as it comes.
#pragma once

#include <string>

#include "engine/request.h"

namespace riptide::apps {

/// On stdout: thinking dimmed, calls on lines of their own. On a terminal control characters are escaped.
class AnswerPrinter {
  public:
    AnswerPrinter() = default;
    /// No colour outlives it.
    ~AnswerPrinter();
    AnswerPrinter(const AnswerPrinter&) = delete;
    AnswerPrinter& operator=(const AnswerPrinter&) = delete;
    /// On the engine's thread.
    void show(const EventBody& event);

  private:
    void put(const std::string& text, bool dim);
    bool dim_ = false;
};

/// A line on stderr, dimmed on a terminal.
void say_dimly(const std::string& line);

}  // namespace riptide::apps
