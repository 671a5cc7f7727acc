// A conversation with a person, or with a pipe.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "apps/chat/chat_settings.h"
#include "apps/chat/conversation.h"
#include "apps/chat/message_reader.h"
#include "base/json.h"
#include "engine/engine.h"

namespace riptide::apps {

struct TalkOptions {
    json::array tools;         // that the model may call
    std::string tool_program;  // runs calls, each after a question; empty: their results are typed
    bool quiet = false;        // no statistics
    bool drafted = false;      // somebody drafts: tell how well
    std::string history_file;
};

/// Reads messages and commands (`/help` tells them), asks the engine, prints. What goes wrong with a message or a
/// command is said, and the conversation goes on as it was. Ctrl-C stops an answer, and what was said of it stays.
class Talk {
  public:
    Talk(Engine& engine, ChatSettings settings, Conversation begun, TalkOptions options);
    /// Until the person leaves, or the input ends. The exit code: 0, or 130 after Ctrl-C.
    int run();

  private:
    struct Word;
    static std::span<const Word> words();

    /// False: leave.
    bool take(const std::string& text);
    void obey(const Word& word, const std::string& rest);
    /// What begins with a slash and is no command: a path is a message, others throw Error.
    void refuse(const std::string& text, const std::string& first);
    void ask_model(const std::string& question);
    /// Asks about what is there, and again while tool calls get results. Throws Error.
    void answer();
    bool answer_calls(const json::array& calls);
    /// Ctrl-C at the prompt. True: it was the second within a second.
    bool leaves();
    void help(const std::string& rest);
    void set(const std::string& rest);
    void system(const std::string& rest);
    void show(const std::string& rest);
    void save(const std::string& path);
    void load(const std::string& path);
    void retry(const std::string& rest);
    void undo(const std::string& rest);
    void attach(const std::string& path);
    void list_tools(const std::string& rest);
    void start_over(const std::string& rest);
    void switch_thinking(const std::string& rest);
    void quit(const std::string& rest);

    Engine& engine_;
    ChatSettings settings_;
    Conversation conversation_;
    TalkOptions options_;
    MessageReader reader_;
    std::string attached_;  // goes with the next message
    bool quit_ = false;
    std::chrono::steady_clock::time_point last_interrupt_{};
};

}  // namespace riptide::apps
