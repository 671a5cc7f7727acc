// Laws: a conversation is refused with 4xx that names a field, or becomes a prompt that holds all its texts in order,
// none of them as the template's own; the same each time; and its tokens can be counted. Input: one byte for the API,
// and choices of which the conversation is made.
#include <algorithm>

#include "server/api/anthropic/anthropic_request.h"
#include "server/api/responses/responses_request.h"
#include "tests/fuzz/history_maker.h"
#include "tests/text/demo_tokenizer.h"
#include "text/chat/chat.h"

namespace {

using namespace riptide;
using namespace riptide::server;
using fuzz::require;

const ChatTemplate& demo_template() {
    static const ChatTemplate made = [] {
        const auto file = open_checkpoint(source_dir() + "/models/demo/laguna-demo.gguf");
        const std::string source(file->metadata().at("tokenizer.chat_template").as_string());
        return ChatTemplate(source, "chat_template", "", "");
    }();
    return made;
}

struct Reading {
    std::string refused;  // or a prompt
    std::string field;
    int status = 0;
    jinja::Rendered prompt;
};

Reading render(char api, json::object body) {
    const RequestDefaults defaults;
    Reading out;
    ChatOrigins origins;
    try {
        GenerationRequest asked;
        try {
            if (api == 'c') {
                asked = parse_chat(std::move(body), defaults);
            } else if (api == 'r') {
                ResponsesRequest all = parse_responses(std::move(body), defaults, nullptr);
                asked = std::move(all.generation);
                origins = std::move(all.origins);
            } else {
                asked = parse_messages(std::move(body), defaults,
                                       api == 'm' ? MessagesFor::answering : MessagesFor::counting);
            }
            const auto& chat = std::get<ChatPrompt>(asked.prompts.at(0).prompt);
            ChatOptions options = chat.options;
            options.now.emplace();
            out.prompt = demo_template().render(chat.messages, chat.tools, options);
        } catch (const Error& error) {
            throw api == 'r' ? in_its_words(from_engine(error), origins) : from_engine(error);
        }
    } catch (const ApiError& error) {
        out.refused = error.what();
        out.field = error.param();
        out.status = error.status();
    }
    return out;
}

/// Behind each other, and none in what the template wrote.
void require_texts(const jinja::Rendered& prompt, const fuzz::Texts& texts, const std::string& body) {
    std::size_t at = 0;
    for (const std::string& text : texts) {
        const std::size_t found = prompt.text.find(text, at);
        require(found != std::string::npos, "all texts in order", text + "\n" + body + "\n" + prompt.text);
        at = found + text.size();
        const auto begin = static_cast<int64_t>(found), end = static_cast<int64_t>(at);
        const bool trusted = std::any_of(prompt.trusted.begin(), prompt.trusted.end(),
                                         [&](const TextSpan& span) { return span.begin < end && begin < span.end; });
        require(!trusted, "what a client writes is not the template's", text + "\n" + body);
    }
}

void require_tokens(const jinja::Rendered& prompt, const std::string& body) {
    static const Tokenizer tokenizer = demo_tokenizer();
    EncodeOptions options;
    options.trusted = prompt.trusted;
    std::string text;
    for (const int32_t id : tokenizer.encode(prompt.text, options)) text += tokenizer.piece(id);
    require(text == prompt.text, "tokens spell the prompt", body + "\n" + text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz::ByteSource bytes(data, size);
    constexpr char kApis[] = {'c', 'm', 'r', 'n'};  // n: messages, to be counted
    const char api = bytes.one_of(kApis);
    const fuzz::Conversation made = api == 'c'   ? fuzz::ChatMaker(bytes).conversation()
                                    : api == 'r' ? fuzz::ResponsesMaker(bytes).conversation()
                                                 : fuzz::MessagesMaker(bytes).conversation();
    const std::string text = json::serialize(made.body);
    WorkBudget work;
    const Reading one = render(api, parse_body(text, work)), two = render(api, parse_body(text, work));
    require(one.refused == two.refused && one.prompt.text == two.prompt.text, "the same each time", text);
    if (one.status != 0) {
        require(one.status >= 400 && one.status < 500, "what cannot be read is refused", text + "\n" + one.refused);
        require(!one.field.empty(), "what is refused is named", text + "\n" + one.refused);
        return 0;
    }
    if (!made.damaged) require_texts(one.prompt, made.texts, text);
    require_tokens(one.prompt, text);
    return 0;
}
