// One line for each answer.
#pragma once

#include <functional>
#include <string>

#include "engine/request.h"

namespace riptide::server {

struct LogOptions {
    std::function<void(const std::string&)> write;  // called on I/O and worker threads; empty: no log
    bool json = false;                              // lines are JSON objects
    bool content = false;                           // prompts and answers too: for who asks for it only
};

/// What lines are about.
struct LogSubject {
    std::string id;          // of the reply
    std::string request_id;  // x-request-id
    std::string route, session;
};

/// No line holds a key, or (unless asked for) a word of a prompt or an answer. Thread-safe if `write` is.
class RequestLog {
  public:
    explicit RequestLog(LogOptions options) : options_(std::move(options)) {}

    bool content() const { return options_.write && options_.content; }
    /// What a client sent.
    void asked(const LogSubject& subject, const std::string& body) const;
    void answered(const LogSubject& subject, const Event& event, const Done& done, const std::string& text) const;
    void failed(const LogSubject& subject, RequestId id, const std::string& why) const;
    /// The client did not wait for the end.
    void abandoned(const LogSubject& subject, RequestId id) const;
    /// The server made a mistake.
    void mistake(std::string_view route, const std::string& what) const;

  private:
    LogOptions options_;
};

}  // namespace riptide::server
