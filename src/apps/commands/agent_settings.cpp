#include "apps/commands/agent_settings.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

std::string json_quoted(const std::string& text) { return json::serialize(json::value(text)); }

std::string shell_quoted(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

/// In `text` @url, @key, @model and @provided stand for strings as `quoted` writes them, @context and @output for
/// numbers of tokens.
struct SettingsForm {
    const char* agent;
    const char* place;
    int64_t wanted_context;
    std::string (*quoted)(const std::string&);
    const char* text;
};

// As the documentation of each had it in November 2026. Run with what is printed here: Qwen Code 0.24.4, Cline 3.0.65,
// Continue's CLI 1.5.47.
constexpr SettingsForm kForms[] = {
    {"hermes", "in ~/.hermes/config.yaml, in place of what stands at model:", 64'000, json_quoted, R"(model:
  provider: custom
  default: @model
  base_url: @url
  api_key: @key
  context_length: @context
)"},
    {"openclaw", "in ~/.openclaw/openclaw.json", 0, json_quoted, R"({
  "models": {
    "mode": "merge",
    "providers": {
      "riptide": {
        "baseUrl": @url,
        "apiKey": @key,
        "api": "openai-completions",
        "models": [
          {
            "id": @model,
            "name": @model,
            "reasoning": true,
            "input": ["text"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": @context,
            "maxTokens": @output
          }
        ]
      }
    }
  },
  "agents": {"defaults": {"model": {"primary": @provided}}}
}
)"},
    {"qwen-code", "in ~/.qwen/settings.json", 17'444, json_quoted, R"({
  "modelProviders": {
    "openai": [
      {
        "id": @model,
        "name": @model,
        "envKey": "RIPTIDE_API_KEY",
        "baseUrl": @url,
        "generationConfig": {"timeout": 1800000, "contextWindowSize": @context}
      }
    ]
  },
  "env": {"RIPTIDE_API_KEY": @key},
  "security": {"auth": {"selectedType": "openai"}},
  "model": {"name": @model}
}
)"},
    {"cline", "once in a shell; the editor's extension asks for the same: API Provider \"OpenAI Compatible\"", 3'778,
     shell_quoted, "cline auth -p openai -b @url -k @key -m @model\n"},
    {"continue", "in ~/.continue/config.yaml", 1'642, json_quoted, R"(name: riptide
version: 1.0.0
schema: v1
models:
  - name: @model
    provider: openai
    model: @model
    apiBase: @url
    apiKey: @key
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: @context
)"},
    {"zed", "in ~/.config/zed/settings.json; the key goes into the variable RIPTIDE_API_KEY, or into Zed's settings", 0,
     json_quoted, R"({
  "language_models": {
    "openai_compatible": {
      "riptide": {
        "api_url": @url,
        "available_models": [
          {
            "name": @model,
            "display_name": @model,
            "max_tokens": @context,
            "max_output_tokens": @output
          }
        ]
      }
    }
  }
}
)"}};

/// The text with the values in place of their names.
std::string filled_in(const SettingsForm& form, const AgentServer& server) {
    const std::pair<std::string_view, std::string> values[] = {
        {"@url", form.quoted(server.url + "/v1")},    {"@key", form.quoted(server.key)},
        {"@model", form.quoted(server.model)},        {"@provided", form.quoted("riptide/" + server.model)},
        {"@context", std::to_string(server.context)}, {"@output", std::to_string(output_limit(server))}};
    std::string out;
    for (std::string_view rest = form.text; !rest.empty();) {
        const auto* value = std::find_if(std::begin(values), std::end(values),
                                         [&](const auto& each) { return rest.starts_with(each.first); });
        const bool found = value != std::end(values);
        out += found ? value->second : std::string(1, rest.front());
        rest.remove_prefix(found ? value->first.size() : 1);
    }
    return out;
}

/// What riptide launch would do, in a shell's words.
std::string as_commands(const AgentProfile& profile, const std::string& folder) {
    std::string out;
    for (const auto& [name, contents] : profile.files) out += fmt::format("# {}/{}:\n{}\n", folder, name, contents);
    for (const auto& [name, value] : profile.environment) out += fmt::format("{}={} \\\n", name, shell_quoted(value));
    out += profile.program;
    for (const std::string& argument : profile.arguments) out += " " + shell_quoted(argument);
    return out + "\n";
}

}  // namespace

bool only_printed(const std::string& agent) {
    return std::any_of(std::begin(kForms), std::end(kForms),
                       [&](const SettingsForm& form) { return agent == form.agent; });
}

AgentSettings agent_settings(const std::string& agent, const AgentServer& server) {
    for (const SettingsForm& form : kForms)
        if (agent == form.agent) return {form.place, filled_in(form, server), form.wanted_context};
    const std::string folder = "FOLDER";
    return {"in a shell", as_commands(agent_profile(agent, server, folder), folder)};
}

}  // namespace riptide::apps
