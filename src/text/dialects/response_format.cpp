#include "text/dialects/response_format.h"

#include "text/grammar/grammar_regex.h"
#include "text/json/json_schema.h"
#include "text/structured/grammar_ebnf.h"
#include "text/structured/grammar_lark.h"

namespace riptide {

Grammar::Expr add_format(Grammar& grammar, const AnswerFormat& format) {
    switch (format.kind) {
        case AnswerFormat::Kind::json_object:
            return add_json_object(grammar);
        case AnswerFormat::Kind::json_schema:
            return add_json_schema(grammar, *format.schema, {.lenient = format.lenient});
        case AnswerFormat::Kind::regex:
            return add_regex(grammar, format.text, false);
        case AnswerFormat::Kind::grammar:
            return looks_like_lark(format.text) ? add_lark(grammar, format.text) : add_ebnf(grammar, format.text);
        case AnswerFormat::Kind::choice: {
            std::vector<std::string> words;
            for (const json::value& word : (*format.schema).as_array()) words.emplace_back(word.as_string());
            return grammar.words(std::move(words));
        }
        case AnswerFormat::Kind::any:
            break;
    }
    RT_ASSERT(false);
}

}  // namespace riptide
