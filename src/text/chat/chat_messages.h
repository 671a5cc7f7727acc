// Checks the messages and tools of a request and brings them into the form that templates expect.
#pragma once

#include <string_view>

#include "base/json_fwd.h"

namespace riptide {

struct MessageForm {
    bool content_parts = false;  // keep content as a list of parts
    bool developer = false;      // keep the role developer
    bool late_system = true;     // system messages may stand anywhere, not only first
};

/// The messages as a template should get them; see ChatTemplate::render. Throws Error that names the field.
json::array prepare_messages(const json::array& messages, const MessageForm& form);
/// Puts a mark behind the content of the last message, by which the place is found again in what a template makes of
/// it. REQUIRES prepared messages. Throws Error unless that message is the assistant's and calls no tools.
std::string_view mark_final_message(json::array& messages);
/// Throws Error that names the field unless each tool is a function with a name.
void check_tools(const json::array& tools);
/// Throws Error unless `extra` holds at most 64 scalars, none of them under a name that the engine sets.
void check_template_kwargs(const json::object& extra);

}  // namespace riptide
