// Builds without libedit.
#include "apps/chat/line_editor.h"
#include "base/error.h"

namespace riptide::apps {

struct LineEditor::Impl {};

bool LineEditor::available() { return false; }

LineEditor::LineEditor(InputBytes&, const std::string&) {
    fail(ErrorKind::unavailable, "this riptide was built without libedit");
}

LineEditor::~LineEditor() = default;

TypedLine LineEditor::read(const std::string&) { return {TypedLine::Kind::end, ""}; }

void LineEditor::remember(const std::string&) {}

}  // namespace riptide::apps
