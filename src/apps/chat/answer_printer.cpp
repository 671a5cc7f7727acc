#include "apps/chat/answer_printer.h"

#include <unistd.h>

#include <cstdio>

#include "apps/support/terminal.h"

namespace riptide::apps {

AnswerPrinter::~AnswerPrinter() {
    if (dim_) put("", false);
}

void AnswerPrinter::show(const EventBody& event) {
    if (const auto* text = std::get_if<TextDelta>(&event)) return put(text->text, false);
    if (const auto* thought = std::get_if<ReasoningDelta>(&event)) return put(thought->text, true);
    if (const auto* call = std::get_if<ToolCallBegin>(&event)) return put("\n-> " + call->name + " ", false);
    if (const auto* part = std::get_if<ToolCallArguments>(&event)) return put(part->json_fragment, false);
    if (const auto* end = std::get_if<ToolCallEnd>(&event); end != nullptr && !end->complete)
        put(" (cut short)", false);
    if (std::holds_alternative<Done>(event)) put("\n", false);
}

void AnswerPrinter::put(const std::string& text, bool dim) {
    if (dim != dim_ && stdout_is_terminal()) std::fputs(dim ? "\033[2m" : "\033[0m\n", stdout);
    dim_ = dim;
    put_text(text);
    std::fflush(stdout);
}

void say_dimly(const std::string& line) {
    const bool dim = isatty(STDERR_FILENO) == 1;
    std::fflush(stdout);
    if (dim) std::fputs("\033[2m", stderr);
    say("{}", line);
    std::fputs(dim ? "\033[0m\n" : "\n", stderr);
}

}  // namespace riptide::apps
