// Qwen's answers that are held to a form.
#include "text/dialects/qwen.h"
#include "text/dialects/qwen_tags.h"
#include "text/dialects/response_grammar.h"

namespace riptide {

namespace {

Grammar grammar_of(const AnswerForm& form, WorkBudget* work,
                   const std::function<Grammar::Expr(Grammar&, const OfferedTool&)>& add_call) {
    Grammar grammar(work);
    const AnswerMarkup markup = {.behind_reasoning = "\n\n",
                                 .at_start = "",
                                 .between_calls = "\n",
                                 .at_end = "",
                                 .end_turn = qwen::kEndTurn,
                                 .add_call = [&](const OfferedTool& tool) { return add_call(grammar, tool); }};
    grammar.set_root(add_answer(grammar, form, markup));
    return grammar;
}

}  // namespace

Grammar qwen_tags_grammar(const AnswerForm& form, WorkBudget* work) {
    const auto text = [](std::string_view part) { return std::string(part); };
    const TagMarkup tags = {.before_name = "\n" + text(qwen::kFunction),
                            .behind_name = ">\n",
                            .before_key = text(qwen::kParameter),
                            .behind_key = ">\n",
                            .before_value_end = "\n",
                            .value_end = text(qwen::kEndParameter),
                            .behind_value = "\n",
                            .behind_arguments = text(qwen::kEndFunction) + "\n",
                            .not_in_keys = "<>\n",
                            .python_words = true};
    RawTexts texts;
    return grammar_of(form, work, [&](Grammar& grammar, const OfferedTool& tool) {
        return add_tag_call(grammar, tags, texts, tool);
    });
}

Grammar qwen_json_grammar(const AnswerForm& form, WorkBudget* work) {
    return grammar_of(form, work, [](Grammar& grammar, const OfferedTool& tool) {
        return grammar.sequence({grammar.text("\n"), add_json_call(grammar, tool), grammar.text("\n")});
    });
}

}  // namespace riptide
