// The description of the API and the server say the same: every route, and every field that a body may have.
#include <set>

#include "base/json.h"
#include "server/api/routes.h"
#include "server/openapi/openapi.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

/// Reads the description. References are followed wherever they stand.
class Description {
  public:
    Description() : api_(parse_json(server::openapi_text(), "openapi.json")) {}

    const json::object& paths() const { return api_.at("paths").as_object(); }

    const json::object& resolved(const json::value& schema) const {
        const json::value* ref = schema.as_object().if_contains("$ref");
        return ref == nullptr ? schema.as_object() : resolved(api_.at_pointer(ref->as_string().subview(1)));
    }

    /// The objects that a body may be.
    std::vector<json::object> bodies(std::string_view path) const {
        const json::object& post = paths().at(path).at("post").as_object();
        if (!post.contains("requestBody")) return {};
        const json::object& body = resolved(post.at("requestBody").at_pointer("/content/application~1json/schema"));
        const json::value* several = body.if_contains("anyOf");
        if (several == nullptr) return {body};
        std::vector<json::object> out;
        for (const json::value& each : several->as_array()) out.push_back(resolved(each));
        return out;
    }

    /// The fields of an object, of those that it is made of, and of the alternatives that are one.
    json::object fields(const json::object& schema) const {
        json::object out;
        for (const char* key : {"allOf", "anyOf"})
            if (const json::value* parts = schema.if_contains(key))
                for (const json::value& part : parts->as_array())
                    for (const auto& [name, value] : fields(resolved(part))) out[name] = value;
        if (const json::value* own = schema.if_contains("properties"))
            for (const auto& [name, value] : own->as_object()) out[name] = value;
        return out;
    }

    /// The types of JSON that a field may have; nothing: any.
    std::set<std::string> types(const json::value& schema) const {
        std::set<std::string> out;
        const json::object& whole = resolved(schema);
        if (const json::value* words = whole.if_contains("enum"))
            if (words->as_array().at(0).is_string()) out.insert("string");
        if (const json::value* several = whole.if_contains("anyOf"))
            for (const json::value& each : several->as_array()) out.merge(types(each));
        const json::value* type = whole.if_contains("type");
        if (type != nullptr && type->is_string()) out.emplace(type->as_string());
        if (type != nullptr && type->is_array())
            for (const json::value& each : type->as_array()) out.emplace(each.as_string());
        return out;
    }

  private:
    json::value api_;
};

/// A value of each type.
const std::vector<std::pair<std::string, json::value>> kValues = {
    {"number", 0.5}, {"string", "unheard of"}, {"object", json::object{{"unheard_of", 1}}}, {"boolean", true}};

/// Values of no type that the field may have.
std::vector<json::value> wrong_for(const std::set<std::string>& types) {
    std::vector<json::value> out;
    for (const auto& [type, value] : kValues)
        if (!types.contains(type)) out.push_back(value);
    return out;
}

class ServerOpenApi : public ServerTest {
  protected:
    void SetUp() override {
        server::ServerOptions options = server_options();
        options.admin = true;
        start(options);
    }

    /// Whether the server refuses a body because of this field.
    bool refuses(const std::string& path, const json::object& body, const std::string& field) {
        const Answer answer = post(path, body);
        if (answer.status != 400) return false;
        const json::value error = answer.object().at("error");  // of Ollama's API a string
        const json::value* param = error.is_object() ? error.get_object().if_contains("param") : nullptr;
        const std::string said(param != nullptr && param->is_string() ? param->as_string()
                               : error.is_object()                    ? error.at("message").as_string()
                                                                      : error.as_string());
        return said.starts_with(field) &&
               (said.size() == field.size() || std::string(".[: ").find(said[field.size()]) != std::string::npos);
    }

    /// From now on a server whose model is for this.
    void serve_task(Task task) {
        EngineOptions engine_options = demo_options();
        engine_options.model.task = task;
        start(server_options(), engine_options, source_dir() + "/tests/fixtures/qwen3_embed");
    }

    /// A body with those of the `known` fields that the path does not describe is answered as one without.
    void expect_passes_over_others(const std::string& path, const std::set<std::string>& known) {
        std::set<std::string> here;
        for (const json::object& body : api.bodies(path))
            for (const auto& [name, schema] : api.fields(body)) here.emplace(name);
        const std::vector<json::object> bodies = api.bodies(path);
        for (const auto& [type, value] : kValues) {
            json::object body = bodies.empty() ? json::object() : bodies.at(0).at("examples").at(0).as_object();
            for (const std::string& name : known)
                if (!here.contains(name)) body[name] = value;
            const Answer answer = post(path, body);
            EXPECT_EQ(answer.status, 200) << path << " reads a field that is not described: " << answer.body;
        }
    }

    const Description api;
};

constexpr std::pair<std::string_view, Task> kRoutesOfTasks[] = {{"/v1/embeddings", Task::embed},
                                                                {"/api/embed", Task::embed},
                                                                {"/api/embeddings", Task::embed},
                                                                {"/v1/rerank", Task::rerank}};

TEST_F(ServerOpenApi, every_route_is_described_and_nothing_else) {
    std::set<std::string> described, served;
    for (const auto& [path, methods] : api.paths())
        for (const auto& [method, about] : methods.as_object())
            described.insert(std::string(method) + " " + std::string(path));
    for (const server::Known& known : server::all_routes()) {
        std::string method(known.method);
        std::transform(method.begin(), method.end(), method.begin(), [](char c) { return static_cast<char>(c + 32); });
        served.insert(method + " " + std::string(known.label));
        EXPECT_EQ(server::find_route(known.label, known.method).route, known.route) << known.label;
    }
    EXPECT_EQ(described, served);
}

TEST_F(ServerOpenApi, it_is_served_like_other_facts) {
    const Answer answer = get("/openapi.json");
    ASSERT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("Content-Type"), "application/json");
    EXPECT_EQ(answer.body, server::openapi_text());
    const std::string version(answer.object().at("info").at("version").as_string());
    EXPECT_TRUE(!version.empty() && version.find_first_not_of("0123456789.") == std::string::npos) << version;
    EXPECT_EQ(get("/v1/openapi.json").body, answer.body);
    EXPECT_EQ(post("/openapi.json", {}).status, 405);
    EXPECT_EQ(Client(port()).ask("GET", "/openapi.json", "", "Host: evil.example\r\n").status, 403);

    server::ServerOptions options = server_options();
    options.api_keys = {"secret"};
    start(options);
    EXPECT_EQ(get("/openapi.json").status, 401);
    EXPECT_EQ(Client(port()).ask("GET", "/openapi.json", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(ServerOpenApi, every_field_that_is_described_is_read) {
    int64_t checked = 0;
    const auto check = [&](const std::string& path, const json::object& example, const std::string& field,
                           const json::value& wrong, const std::string& what) {
        ++checked;
        json::object beside = example, alone;
        beside[field] = alone[field] = wrong;  // alone: of several names for one thing the first is read
        EXPECT_TRUE(refuses(path, beside, field) || refuses(path, alone, field))
            << path << ": " << what << " as " << json::serialize(wrong)
            << " is not refused by name: " << post(path, beside).body;
    };
    for (const auto& [path_text, methods] : api.paths()) {
        const std::string path(path_text);
        if (!methods.as_object().contains("post")) continue;
        for (const json::object& body : api.bodies(path)) {
            const json::object& example = body.at("examples").at(0).as_object();
            for (const auto& [name, schema] : api.fields(body)) {
                if (schema.as_object().contains("x-echoed")) continue;
                const std::string field(name);
                const std::set<std::string> types = api.types(schema);
                ASSERT_FALSE(types.empty()) << path << ": " << field;
                check(path, example, field, wrong_for(types).at(0), field);
                if (!types.contains("object")) continue;
                for (const auto& [inner, of_inner] : api.fields(api.resolved(schema))) {
                    const std::set<std::string> inner_types = api.types(of_inner);
                    if (inner_types.empty()) continue;
                    check(path, example, field, json::object{{inner, wrong_for(inner_types).at(0)}},
                          field + "." + std::string(inner));
                }
            }
        }
    }
    EXPECT_GT(checked, 200);
    EXPECT_EQ(Client(port()).ask("POST", "/resume", "", "").status, 200);
    expect_alive();
}

TEST_F(ServerOpenApi, every_field_that_is_read_is_described) {
    std::set<std::string> known;
    for (const auto& [path, methods] : api.paths())
        if (methods.as_object().contains("post"))
            for (const json::object& body : api.bodies(path))
                for (const auto& [name, schema] : api.fields(body)) known.emplace(name);
    ASSERT_GT(known.size(), 60u);
    for (const auto& [path_text, methods] : api.paths()) {
        const std::string path(path_text);
        if (!methods.as_object().contains("post") || path == "/update_weights" || path == "/models/unload") continue;
        if (path == "/abort_request") continue;                                         // there is nothing to end
        if (path == "/sleep") continue;                                                 // the engine is lent
        if (path == "/v1/mcp/{name}") continue;                                         // read by another server
        if (!methods.at("post").at("responses").as_object().contains("200")) continue;  // it is always refused
        if (std::ranges::any_of(kRoutesOfTasks, [&](const auto& route) { return path == route.first; })) continue;
        expect_passes_over_others(path, known);
    }
    EXPECT_EQ(Client(port()).ask("POST", "/resume", "", "").status, 200);
    expect_alive();
    for (const auto& [path, task] : kRoutesOfTasks) {
        serve_task(task);
        expect_passes_over_others(std::string(path), known);
    }
}

}  // namespace
}  // namespace riptide::testing
