// Laguna's answers that are held to a form.
#include "text/dialects/laguna.h"
#include "text/dialects/laguna_tags.h"
#include "text/dialects/response_grammar.h"

namespace riptide {

Grammar laguna_grammar(const AnswerForm& form, WorkBudget* work) {
    const std::string newline = form.newline_framing ? "\n" : "";
    const auto text = [](std::string_view part) { return std::string(part); };
    const TagMarkup tags = {.before_name = "",
                            .behind_name = newline,
                            .before_key = text(laguna::kArgKey),
                            .behind_key = text(laguna::kEndArgKey) + newline + text(laguna::kArgValue),
                            .before_value_end = "",
                            .value_end = text(laguna::kEndArgValue),
                            .behind_value = newline,
                            .behind_arguments = "",
                            .not_in_keys = "<\n"};
    Grammar grammar(work);
    RawTexts texts;
    const AnswerMarkup markup = {
        .behind_reasoning = newline,
        .at_start = newline,
        .between_calls = newline,
        .at_end = newline,
        .end_turn = laguna::kEndAssistant,
        .add_call = [&](const OfferedTool& tool) { return add_tag_call(grammar, tags, texts, tool); }};
    grammar.set_root(add_answer(grammar, form, markup));
    return grammar;
}

}  // namespace riptide
