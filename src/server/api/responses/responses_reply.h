// Replies of POST /v1/responses.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "server/api/reply_parts.h"
#include "server/api/responses/responses_request.h"

namespace riptide::server {

/// Turns the engine's events into the events of a stream, or into one response: the same items either way, with the
/// same order of parts. Each item is opened, filled and closed before the next; an item or a part is announced before
/// its first delta, for clients throw otherwise. A call that the answer did not finish is incomplete, and its arguments
/// are no JSON. Not thread-safe.
class ResponseReply {
  public:
    /// `keep` is given what later requests may refer to: the response when it is complete, and all items before its
    /// output. It may be empty.
    using Keep = std::function<void(const json::object& response, const json::array& input)>;
    ResponseReply(ReplyFacts facts, const ResponsesRequest& request, Keep keep);

    /// response.created and response.in_progress.
    std::string opening();
    /// In place of an answer, for a request that does not want one: a complete response without output.
    HttpReply prepared();
    bool take(const Item& item, std::string& out);
    void heartbeat(std::string& out);
    void abort(const ApiError& error, std::string& out);
    HttpReply finish() const;

  private:
    enum class Kind { none, reasoning, message, call, custom_call };

    json::object response(std::string_view status, const json::object& also) const;
    void emit(std::string_view type, json::object fields, std::string& out);
    void delta(const std::string& head, std::string_view text, std::string_view tail, std::string& out);

    void open(Kind kind, std::string& out);
    void open_parts(std::string& out);
    void open_call(const ToolCallBegin& call, std::string& out);
    void close(bool complete, std::string& out);
    void close_message(std::string& out);
    void close_custom_call(std::string& out);
    void close_reasoning(std::string& out);
    void part_event(std::string_view type, std::string_view index_name, json::object fields, std::string& out);
    void take_body(const EventBody& body, std::string& out);
    void take_summary(const EventBody& body, std::string& out);
    void answer_ends(const Done& done, std::string& out);
    void fail(const ApiError& error, std::string& out);

    ReplyFacts facts_;
    json::object echo_;
    std::map<std::string, std::string, std::less<>> namespaces_;
    CustomTools custom_;
    json::array input_;
    Keep keep_;
    json::value temperature_, top_p_;
    bool stream_, one_tool_call_, summary_, sealed_, store_, compact_;
    int64_t sequence_ = 0;
    Kind kind_ = Kind::none;
    bool dropping_ = false;  // inside a call that one_tool_call leaves out
    json::object item_;      // that is open
    std::string text_;       // of it
    std::string delta_head_, summary_head_;
    json::array output_;  // items that are closed
    json::object last_;   // the response, once it is complete
    UsageSum usage_{1};
    std::optional<ApiError> error_;
};

}  // namespace riptide::server
