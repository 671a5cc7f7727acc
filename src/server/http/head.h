// Headers of requests and replies. Internal to the HTTP server.
#pragma once

#include <boost/beast/core/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/http/server.h"

namespace riptide::server {

using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

/// No chunked body ends in fewer bytes ("0", two line ends). Beast's parser takes that for granted: a parser that
/// wanted more, perhaps behind the size of the last chunk, must get so many, or it ends the program.
inline constexpr std::size_t kLeastChunked = 5;

/// The status to refuse a request with that could not be read; 0: nobody is there to be told.
int status_of(const boost::beast::error_code& ec);
/// What is wrong with a header that could be read: a status, and `problem` says it; or 0. `head`: its bytes as they
/// came.
int check_header(const Parser& parser, std::string_view head, const HttpOptions& options, std::string& problem);
void copy_header(const Parser& parser, HttpRequest& out);

/// Status line and fields, without the empty line behind them.
std::string reply_head(int status, std::string_view type, const Headers& headers, bool keep_alive);
/// One chunk of a chunked body; for HTTP/1.0 (`plain`) the bytes as they are.
std::string framed(std::string_view bytes, bool plain);

}  // namespace riptide::server
