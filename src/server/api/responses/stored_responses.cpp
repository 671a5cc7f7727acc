// Routes of stored responses: one again, what it was asked, away with it.
#include <charconv>

#include "base/json.h"
#include "base/percent.h"
#include "server/api/api.h"
#include "server/api/responses/responses_tools.h"

namespace riptide::server {

namespace {

constexpr int kMostListed = 100;

ApiError no_response(const std::string& id) {
    return {404,
            fmt::format("Response with id '{}' not found: it was not stored, is deleted, had to make room for newer "
                        "ones, or is another key's",
                        id.substr(0, 80))};
}

/// An input item as the API lists it: with a type, an id, and content in parts.
json::object as_listed(json::object item, const std::string& response, std::size_t index) {
    if (const json::value* id = item.if_contains("id"); id == nullptr || !id->is_string())
        item["id"] = fmt::format("{}_input_{}", response, index);
    if (item_type(item) != "message" || !item.contains("content")) return item;
    item["type"] = "message";
    const json::value content = item.at("content");
    if (!content.is_string()) return item;
    const char* type = string_of(item, "role") == "assistant" ? "output_text" : "input_text";
    item["content"] = json::array{json::object{{"type", type}, {"text", content}}};
    return item;
}

int most_listed(std::string_view text) {
    if (text.empty()) return 20;
    int out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size() || out < 1 || out > kMostListed)
        refuse("limit", "limit: expected 1 to {}, found '{}'", kMostListed, text.substr(0, 40));
    return out;
}

bool newest_first(std::string_view order) {
    if (!order.empty() && order != "asc" && order != "desc")
        refuse("order", "order: expected asc or desc, found '{}'", order.substr(0, 40));
    return order != "asc";
}

}  // namespace

HttpReply get_response(const ResponseStore& store, const std::string& isolation, const std::string& id,
                       std::string_view query) {
    if (query_value(query, "stream") == "true")
        refuse("stream", "stream: a stored response is complete and comes whole; ask without");
    auto found = store.response(isolation, id);
    if (!found) throw no_response(id);
    return {200, std::move(*found)};
}

HttpReply delete_response(ResponseStore& store, const std::string& isolation, const std::string& id) {
    if (!store.remove(isolation, id)) throw no_response(id);
    return {200, json::serialize(json::object{{"id", id}, {"object", "response"}, {"deleted", true}})};
}

HttpReply get_input_items(const ResponseStore& store, const std::string& isolation, const std::string& id,
                          std::string_view query) {
    const auto most = static_cast<std::size_t>(most_listed(query_value(query, "limit")));
    const bool backwards = newest_first(query_value(query, "order"));
    const std::string after = percent_decoded(query_value(query, "after"));
    const auto input = store.input(isolation, id);
    if (!input) throw no_response(id);
    json::array data;
    bool begun = after.empty(), more = false;
    for (std::size_t i = 0; i < input->size() && !more; ++i) {
        const std::size_t index = backwards ? input->size() - 1 - i : i;
        json::object item = as_listed((*input)[index].as_object(), id, index);
        if (begun && data.size() < most) data.push_back(std::move(item));
        else if (begun) more = true;
        else begun = item.at("id").as_string() == after;
    }
    if (!begun) refuse("after", "after: this response has no input item '{}'", after.substr(0, 80));
    const json::value none;
    json::object out = {{"object", "list"}, {"has_more", more}};
    out["first_id"] = data.empty() ? none : data.front().at("id");
    out["last_id"] = data.empty() ? none : data.back().at("id");
    out["data"] = std::move(data);
    return {200, json::serialize(out)};
}

}  // namespace riptide::server
