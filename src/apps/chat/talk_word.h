// A command of a conversation.
#pragma once

#include "apps/chat/talk.h"

namespace riptide::apps {

struct Talk::Word {
    const char* name;
    const char* argument;  // "": there is none
    const char* help;      // "": not listed
    void (Talk::*act)(const std::string& rest);
};

}  // namespace riptide::apps
