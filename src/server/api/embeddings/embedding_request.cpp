#include "server/api/embeddings/embedding_request.h"

#include <limits>
#include <utility>

#include "base/json.h"

namespace riptide::server {

namespace {

constexpr std::string_view kRerankInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

/// What all of them have. Background work: it drives no live conversation out of the cache.
Request parse_call(const Fields& fields, const RequestDefaults& defaults, GenerationRequest& out) {
    out.until = parse_timeout(fields, defaults);
    out.model = std::string(fields.string("model").value_or(""));
    out.cache_salt = std::string(fields.string("cache_salt").value_or(""));
    if (fields.find("truncate_prompt_tokens") != nullptr)
        refuse("truncate_prompt_tokens", "truncate_prompt_tokens: not supported; shorten what is too long yourself");
    Request request;
    request.read_row = request.side = true;
    return request;
}

/// As the tokenizer of the model's makers reads it: with what it puts round a text, and markup as markup.
TextPrompt text_prompt(std::string_view text) { return {.text = std::string(text), .parse_special = true}; }

TokenPrompt token_prompt(const json::array& ids, const std::string& where) {
    TokenPrompt out;
    out.reserve(ids.size());
    for (const json::value& id : ids) {
        if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > std::numeric_limits<int32_t>::max())
            refuse("input", "{}[{}]: expected a token id, found {}", where, out.size(),
                   json::serialize(id).substr(0, 40));
        out.push_back(static_cast<int32_t>(id.get_int64()));
    }
    if (out.empty()) refuse("input", "{}: no token ids in it, expected one or more", where);
    return out;
}

void check_count(const char* field, std::size_t count) {
    if (count == 0) refuse(field, "{}: empty, expected one or more", field);
    if (count > kMostInputs) refuse(field, "{}: {} of them, expected at most {}", field, count, kMostInputs);
}

/// A text, token ids, or a list of either.
std::vector<Prompt> parse_inputs(const json::value& input) {
    if (input.is_string()) return {text_prompt(input.get_string())};
    if (!input.is_array())
        refuse("input", "input: expected a string, token ids, or an array of either, found {}", kind_of(input));
    const json::array& list = input.get_array();
    if (!list.empty() && list[0].is_number()) return {token_prompt(list, "input")};
    check_count("input", list.size());
    std::vector<Prompt> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = fmt::format("input[{}]", i);
        if (list[i].is_string()) out.emplace_back(text_prompt(list[i].get_string()));
        else if (list[i].is_array()) out.emplace_back(token_prompt(list[i].get_array(), where));
        else refuse("input", "{}: expected a string or an array of token ids, found {}", where, kind_of(list[i]));
    }
    return out;
}

void add_prompts(std::vector<Prompt> prompts, const Request& request, GenerationRequest& out) {
    for (Prompt& prompt : prompts) {
        Request& each = out.prompts.emplace_back(request);
        each.prompt = std::move(prompt);
        each.same_call = out.prompts.size() > 1;
    }
}

std::string ranked_text(const json::value& value, std::size_t i) {
    const std::string where = fmt::format("documents[{}]", i);
    if (value.is_string()) return std::string(value.get_string());
    if (!value.is_object())
        refuse("documents", "{}: expected a string or an object with \"text\", found {}", where, kind_of(value));
    const json::value* text = value.get_object().if_contains("text");
    if (text == nullptr || !text->is_string())
        refuse("documents", "{}.text: expected a string; documents of other kinds are not supported", where);
    return std::string(text->get_string());
}

}  // namespace

EmbeddingRequest parse_embeddings(const json::object& body, const RequestDefaults& defaults, int64_t size) {
    const Fields fields(body);
    EmbeddingRequest out;
    const Request request = parse_call(fields, defaults, out.asked);
    out.dimensions = fields.integer("dimensions", 1, size).value_or(0);
    const std::string_view format = fields.string("encoding_format").value_or("float");
    if (format != "float" && format != "base64")
        refuse("encoding_format", "encoding_format: expected \"float\" or \"base64\", found '{}'",
               format.substr(0, 40));
    out.base64 = format == "base64";
    const json::value* input = fields.find("input");
    if (input == nullptr) refuse("input", "input: missing");
    add_prompts(parse_inputs(*input), request, out.asked);
    return out;
}

EmbeddingRequest parse_ollama_embed(const json::object& body, const RequestDefaults& defaults, int64_t size) {
    const Fields fields(body);
    EmbeddingRequest out;
    const Request request = parse_call(fields, defaults, out.asked);
    out.dimensions = fields.integer("dimensions", 0, size).value_or(0);
    out.truncate = fields.boolean("truncate").value_or(true);
    const json::value* input = fields.find("input");
    if (input == nullptr || *input == "" || *input == json::array()) return out;
    add_prompts(parse_inputs(*input), request, out.asked);
    return out;
}

EmbeddingRequest parse_ollama_embeddings(const json::object& body, const RequestDefaults& defaults) {
    const Fields fields(body);
    EmbeddingRequest out;
    const Request request = parse_call(fields, defaults, out.asked);
    out.truncate = true;
    const std::string_view text = fields.string("prompt").value_or("");
    if (!text.empty()) add_prompts({text_prompt(text)}, request, out.asked);
    return out;
}

RerankRequest parse_rerank(const json::object& body, const RequestDefaults& defaults) {
    const Fields fields(body);
    RerankRequest out;
    (void)parse_call(fields, defaults, out.asked);
    out.query = fields.filled("query");
    out.instruction = fields.string("instruction").value_or(kRerankInstruction);
    const json::array* documents = fields.array("documents");
    if (documents == nullptr) refuse("documents", "documents: missing");
    check_count("documents", documents->size());
    for (std::size_t i = 0; i < documents->size(); ++i) out.documents.push_back(ranked_text((*documents)[i], i));
    out.top = static_cast<std::size_t>(
        fields.integer("top_n", 1, std::numeric_limits<int32_t>::max()).value_or(std::ssize(out.documents)));
    out.with_documents = fields.boolean("return_documents").value_or(false);
    return out;
}

std::string pair_text(const RerankRequest& request, std::size_t document) {
    return fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", request.instruction, request.query,
                       request.documents[document]);
}

}  // namespace riptide::server
