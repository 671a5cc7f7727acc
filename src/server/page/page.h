// The page that a browser is shown at "/": chat, what the server does, how to connect.
#pragma once

#include <string_view>

#include "server/http/message.h"

namespace riptide::server {

/// page.html in this folder, which is built from web/ (tests/page/run.sh holds it to that). It is inside the program, and
/// lives as long.
std::string_view page_text();

/// Whether a browser asks: `Accept` names text/html, with a weight that is not 0. Programs say */*, or nothing.
bool wants_page(const HttpRequest& request);

/// The page, compressed by gzip for who takes that. Its Content-Security-Policy lets run the script and style that are in
/// it (by SHA-256) and lets them ask this server: nothing is loaded from anywhere, and no page may frame it.
HttpReply page_reply(const HttpRequest& request);

/// What stands at "/": the page for browsers, if it is shown here; who looks for the server gets a word.
HttpReply hello_reply(const HttpRequest& request, bool page);

}  // namespace riptide::server
