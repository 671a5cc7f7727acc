#include "server/api/responses/response_session.h"

#include "server/api/api.h"
#include "server/api/fields.h"

namespace riptide::server {

// The key of no request begins with a blank.
ResponseSession::ResponseSession(ResponseStore& store) : store_(store), key_(random_id(" socket ")) {}

void ResponseSession::put(const json::object& response, const json::array& input) {
    store_.remove(key_, last_);
    last_ = response.at("id").as_string();
    store_.put(key_, response, input);
}

bool take_message(json::object& body) {
    const std::string_view type = Fields(body).filled("type");
    if (type == "response.processed") return false;  // a client says so of what it has read
    if (type != "response.create") refuse("type", "type: expected response.create, found '{}'", type.substr(0, 80));
    body.erase("type");
    body["stream"] = true;
    return true;
}

std::string error_message(const HttpReply& reply) {
    json::object out = {{"type", "error"}, {"status", reply.status}};
    const json::value error = parse_json(reply.body, "an error");
    for (const auto& [key, value] : error.as_object()) out[key] = value;
    return json::serialize(out);
}

}  // namespace riptide::server
