#include "text/jinja/template.h"

#include "base/json.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace riptide::jinja {

Template Template::parse(std::string_view source, std::string name, const Limits& limits) {
    RT_CHECK(static_cast<int64_t>(source.size()) <= limits.source_bytes, "{}: the template has {} bytes, more than {}",
             name, source.size(), limits.source_bytes);
    auto program = std::make_shared<Program>(limits);
    program->name = std::move(name);
    try {
        Parser(*program, tokenize(source)).parse();
    } catch (const SourceFault& found) {
        throw Error(fmt::format("{}:{}:{}: {}", program->name, found.line, found.column, found.what()));
    } catch (const Fault& found) {
        throw Error(fmt::format("{}: {}", program->name, found.what()));
    }
    return Template(std::move(program));
}

Rendered Template::render(const json::object& variables, const RenderOptions& options) const {
    return Interpreter(*program_, variables, options).run();
}

const std::string& Template::name() const { return program_->name; }

}  // namespace riptide::jinja
