// riptide template: render a chat template.
#include <cstdio>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/terminal.h"
#include "base/file.h"
#include "base/json.h"
#include "text/jinja/template.h"

namespace riptide::apps {

namespace {

struct TemplateFlags {
    std::string file, variables;
    bool show_trusted = false;
};

constexpr int64_t kMaxVariables = int64_t{64} << 20;

int render(const TemplateFlags& options) {
    const jinja::Limits limits;
    const auto source = read_file(options.file, limits.source_bytes);
    const auto program = jinja::Template::parse(source, options.file, limits);
    json::object variables;
    if (!options.variables.empty()) {
        const json::value parsed = parse_json(read_file(options.variables, kMaxVariables), options.variables);
        RT_CHECK(parsed.is_object(), "{}: expected a JSON object of variables", options.variables);
        variables = parsed.get_object();
    }
    const jinja::Rendered rendered = program.render(variables);
    if (!options.show_trusted) {
        put_text(rendered.text);
        return 0;
    }
    json::array spans;
    for (const TextSpan& span : rendered.trusted) spans.push_back({span.begin, span.end});
    tell("{}\n", json::serialize(json::object{{"text", rendered.text}, {"trusted", spans}}));
    return 0;
}

}  // namespace

void add_template(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("template", "Render a Jinja chat template as Hugging Face does");
    auto options = std::make_shared<TemplateFlags>();
    cmd->add_option("FILE", options->file, "Template (chat_template.jinja)")->required();
    cmd->add_option("--vars", options->variables, "JSON file with an object of variables: messages, tools, ...");
    cmd->add_flag("--trusted", options->show_trusted, "Print JSON with the byte spans that the template itself wrote");
    cmd->footer(
        "Examples:\n  riptide template chat_template.jinja --vars vars.json\n"
        "  vars.json: {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"add_generation_prompt\": true}");
    cmd->callback([options, &action] { action = [options] { return render(*options); }; });
}

}  // namespace riptide::apps
