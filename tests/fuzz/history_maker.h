// Conversations as clients send them, out of a fuzzer's choices, with the texts that the prompt must hold.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tests/fuzz/fuzz_input.h"

namespace riptide::fuzz {

using Texts = std::vector<std::string>;

struct Conversation {
    json::object body;
    Texts texts;           // in the order in which the prompt has them
    bool damaged = false;  // some of them may be lost
};

/// Texts that are found again, and what may stand where an API wants something else.
class HistoryMaker {
  protected:
    explicit HistoryMaker(ByteSource& bytes) : bytes_(bytes) {}

    std::string word(Texts& out) {
        out.push_back("t" + std::to_string(++words_) + "e");
        return out.back();
    }
    std::string text(Texts& out) {
        static const char* const beside[] = {"", "ä", "<user>", "</tool_call>", "{{x}}", "<|im_end|>", "\""};
        if (bytes_.once_in(8)) return "";
        std::string all = bytes_.one_of(beside) + word(out) + bytes_.one_of(beside);
        return out.back() = std::move(all);
    }
    json::value odd() {
        static const json::value list[] = {nullptr, 5, true, "", json::array(), json::object()};
        return bytes_.one_of(list);
    }
    /// A block that no API of ours reads.
    json::object unknown_block(Texts& out) {
        static const char* const types[] = {"image", "image_url", "tool_reference", "audio", "x_tool_result", "file"};
        static const char* const names[] = {"title", "name", "tool_name", "filename", "query"};
        json::object block = {{"type", bytes_.one_of(types)}, {"data", {1, "x"}}};
        const int kind = bytes_.next(4);
        if (kind == 0) block[bytes_.one_of(names)] = word(out);
        if (kind == 1) block["file"] = {{"filename", word(out)}};
        if (kind == 2) block["content"] = {{{"title", word(out)}}, {{"name", word(out)}}};
        return block;
    }
    /// The arguments of a call as text, which may be no JSON.
    json::value arguments(Texts& out) {
        switch (bytes_.next(8)) {
            case 0:
                return json::string("{}");
            case 1:
                return json::string("{\"k\": [1, {\"a\": \"" + word(out) + "\"}]}");
            case 2:
                return json::object{{"k", word(out)}};
            case 3:
                return json::string("{\"k\": \"" + word(out));
            case 4:
                return json::string("[\"" + word(out) + "\"]");
            case 5:
                return json::string(word(out));
            case 6:
                return json::string(" \n");
            default:
                return odd();
        }
    }
    void maybe_odd(json::object& object) {
        if (object.empty() || !bytes_.once_in(24)) return;
        auto at = object.begin() + bytes_.next(static_cast<int>(object.size()));
        damaged_ = true;
        if (bytes_.next(2) == 0) object.erase(at);
        else at->value() = odd();
    }
    static void move_behind(Texts& out, Texts more) { out.insert(out.end(), more.begin(), more.end()); }

    ByteSource& bytes_;
    bool damaged_ = false;

  private:
    int words_ = 0;
};

/// POST /v1/chat/completions.
class ChatMaker : private HistoryMaker {
  public:
    explicit ChatMaker(ByteSource& bytes) : HistoryMaker(bytes) {}

    Conversation conversation() {
        json::array messages;
        Texts first, rest, of_tools;
        for (int i = 0, n = bytes_.next(6); i <= n; ++i) messages.push_back(message(i == 0 ? first : rest));
        Conversation out{{{"messages", std::move(messages)}}, {}};
        if (bytes_.next(2) == 1) {
            const json::object function = {{"name", "f"}, {"description", word(of_tools)}};
            out.body["tools"] = {{{"type", "function"}, {"function", function}}, {{"type", "web_search"}}};
        }
        if (bytes_.once_in(4)) out.body["reasoning_effort"] = "low";
        if (bytes_.once_in(8)) out.body["continue_final_message"] = true;
        maybe_odd(out.body);
        move_behind(out.texts, opens_ ? first : of_tools);
        move_behind(out.texts, opens_ ? of_tools : first);
        move_behind(out.texts, rest);
        out.damaged = damaged_;
        return out;
    }

  private:
    json::value message(Texts& out) {
        static const char* const roles[] = {"user", "assistant", "tool", "system", "developer", "user", "robot"};
        const std::string role = bytes_.one_of(roles);
        if (!begun_) opens_ = role == "system" || role == "developer";
        begun_ = true;
        json::object made = {{"role", role}};
        if (role == "assistant" && bytes_.next(2) == 1) {
            static const char* const names[] = {"reasoning", "reasoning_content"};
            made[bytes_.one_of(names)] = text(out);
        }
        if (const int kind = bytes_.next(6); kind < 3) made["content"] = text(out);
        else if (kind < 5) made["content"] = parts(out);
        else made["content"] = nullptr;
        if (role == "tool") made["tool_call_id"] = "c";
        if (role == "assistant" && bytes_.next(2) == 1) made["tool_calls"] = calls(out);
        maybe_odd(made);
        return made;
    }
    json::array parts(Texts& out) {
        static const char* const types[] = {"text", "input_text", "output_text"};
        json::array made;
        for (int n = bytes_.next(4); n > 0; --n) {
            json::object part;
            if (bytes_.once_in(4)) part = unknown_block(out);
            else if (bytes_.once_in(6)) part = {{"type", "refusal"}, {"refusal", text(out)}};
            else part = {{"type", bytes_.one_of(types)}, {"text", text(out)}};
            maybe_odd(part);
            made.push_back(std::move(part));
        }
        return made;
    }
    json::array calls(Texts& out) {
        json::array made;
        for (int n = bytes_.next(3); n > 0; --n) {
            json::object function = {{"name", word(out)}, {"arguments", arguments(out)}};
            maybe_odd(function);
            made.push_back({{"id", "c"}, {"type", "function"}, {"function", std::move(function)}});
        }
        return made;
    }

    bool begun_ = false, opens_ = false;  // opens_: the first message is the system's
};

/// POST /v1/messages.
class MessagesMaker : private HistoryMaker {
  public:
    explicit MessagesMaker(ByteSource& bytes) : HistoryMaker(bytes) {}

    Conversation conversation() {
        Conversation out;
        Texts first, rest;
        if (const int kind = bytes_.next(4); kind == 1) out.body["system"] = text(first);
        else if (kind == 2)
            out.body["system"] = {{{"type", "text"}, {"text", "x-anthropic-billing-header: a"}},
                                  {{"type", "text"}, {"text", text(first)}}};
        const bool opens = !first.empty();
        Texts of_tools;
        if (bytes_.next(2) == 1)
            out.body["tools"] = {{{"name", "f"}, {"description", word(of_tools)}, {"input_schema", json::object()}},
                                 {{"type", "web_search_1"}, {"name", "web_search"}}};
        json::array messages;
        for (int i = 0, n = bytes_.next(6); i <= n; ++i) messages.push_back(message(i == 0 && !opens, first, rest));
        out.body["messages"] = std::move(messages);
        if (bytes_.once_in(4)) out.body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
        maybe_odd(out.body);
        move_behind(out.texts, first);
        move_behind(out.texts, of_tools);
        move_behind(out.texts, rest);
        out.damaged = damaged_;
        return out;
    }

  private:
    json::value message(bool may_open, Texts& first, Texts& rest) {
        static const char* const roles[] = {"user", "assistant", "user", "system", "robot"};
        const std::string role = roles[bytes_.next(bytes_.once_in(8) ? 5 : 4)];
        Texts& out = may_open && role == "system" ? first : rest;
        json::object made = {{"role", role}};
        if (bytes_.next(3) == 0) made["content"] = text(out);
        else if (role == "assistant") made["content"] = said(out);
        else made["content"] = asked(out, role == "user");
        maybe_odd(made);
        return made;
    }
    json::object text_block(Texts& out) {
        json::object block = {{"type", "text"}, {"text", text(out)}, {"cache_control", {{"type", "ephemeral"}}}};
        if (bytes_.once_in(6)) block.erase("type");
        return block;
    }
    json::object document(Texts& out) {
        json::object block = {{"type", "document"}, {"title", word(out)}};
        const int kind = bytes_.next(3);
        if (kind > 0) block["context"] = word(out);
        if (kind == 1) block["source"] = {{"type", "text"}, {"data", text(out)}};
        else if (kind == 2)
            block["source"] = {{"type", "content"}, {"content", json::array{text_block(out), text_block(out)}}};
        else block["source"] = {{"type", "base64"}, {"data", "QQ=="}};
        return block;
    }
    json::object readable(Texts& out) {
        const int kind = bytes_.next(6);
        if (kind < 3) return text_block(out);
        if (kind == 3) return unknown_block(out);
        if (kind == 4) return document(out);
        const std::string title = word(out), source = word(out);
        return {
            {"type", "search_result"}, {"title", title}, {"source", source}, {"content", json::array{text_block(out)}}};
    }
    json::array asked(Texts& out, bool results) {
        json::array made;
        for (int n = bytes_.next(4); n > 0; --n) {
            json::object block;
            if (results && bytes_.next(3) == 1) {
                block = {{"type", "tool_result"}, {"tool_use_id", "u"}};
                if (const int kind = bytes_.next(4); kind == 1) block["content"] = text(out);
                else if (kind > 1) block["content"] = json::array{readable(out), readable(out)};
            } else {
                block = readable(out);
            }
            maybe_odd(block);
            made.push_back(std::move(block));
        }
        return made;
    }
    /// Thinking, text and calls in any order; a prompt has them in this one.
    json::array said(Texts& out) {
        json::array made;
        Texts thoughts, texts, calls;
        for (int n = bytes_.next(5); n > 0; --n) {
            json::object block;
            const int kind = bytes_.next(6);
            if (kind == 0) block = {{"type", "thinking"}, {"thinking", text(thoughts)}, {"signature", "s"}};
            else if (kind == 1) block = {{"type", "redacted_thinking"}, {"data", "x"}};
            else if (kind == 2) block = {{"type", "server_tool_use"}, {"id", "s"}, {"name", word(texts)}};
            else if (kind == 3) {
                const std::string name = word(calls);
                block = {{"type", "tool_use"}, {"id", "u"}, {"name", name}, {"input", {{"k", word(calls)}, {"n", 1}}}};
            } else {
                block = text_block(texts);
            }
            maybe_odd(block);
            made.push_back(std::move(block));
        }
        for (Texts* part : {&thoughts, &texts, &calls}) move_behind(out, *part);
        return made;
    }
};

/// POST /v1/responses.
class ResponsesMaker : private HistoryMaker {
  public:
    explicit ResponsesMaker(ByteSource& bytes) : HistoryMaker(bytes) {}

    Conversation conversation() {
        Conversation out;
        Texts first, rest, of_tools;
        if (bytes_.next(2) == 1) out.body["instructions"] = text(first);
        bool may_open = first.empty();
        if (bytes_.once_in(6)) {
            out.body["input"] = text(rest);
        } else {
            json::array items;
            for (int n = bytes_.next(8); n >= 0; --n) items.push_back(item(may_open, first, rest));
            out.body["input"] = std::move(items);
        }
        if (bytes_.next(2) == 1)
            out.body["tools"] = {{{"type", "function"}, {"name", "f"}, {"description", word(of_tools)}},
                                 {{"type", "web_search"}}};
        maybe_odd(out.body);
        move_behind(out.texts, first);
        move_behind(out.texts, of_tools);
        move_behind(out.texts, rest);
        out.damaged = damaged_;
        return out;
    }

  private:
    /// `may_open`: no item so far has made a message.
    json::value item(bool& may_open, Texts& first, Texts& rest) {
        json::object made;
        const int kind = bytes_.next(10);
        if (kind < 4) {
            static const char* const roles[] = {"user", "assistant", "system", "developer", "user", "robot"};
            const std::string role = bytes_.one_of(roles);
            Texts& out = may_open && (role == "system" || role == "developer") ? first : rest;
            made = {{"type", "message"}, {"role", role}, {"content", content(out)}};
            if (bytes_.once_in(4)) made.erase("type");
        } else if (kind == 9) {
            static const char* const types[] = {"web_search_call", "item_reference", "computer_call"};
            made = {{"type", bytes_.one_of(types)}, {"id", "x"}};
            return made;  // no message
        } else {
            const std::size_t before = rest.size();
            made = kind < 6 ? reasoning(rest) : call_or_output(kind, rest);
            if (kind < 6 && rest.size() == before) return made;
        }
        may_open = false;
        maybe_odd(made);
        return made;
    }
    json::value content(Texts& out) {
        static const char* const types[] = {"input_text", "output_text", "text"};
        if (bytes_.next(2) == 0) return json::string(text(out));
        json::array parts;
        for (int n = bytes_.next(4); n > 0; --n) {
            if (bytes_.once_in(5)) parts.push_back(unknown_block(out));
            else parts.push_back({{"type", bytes_.one_of(types)}, {"text", text(out)}});
        }
        return parts;
    }
    json::object reasoning(Texts& out) {
        json::object made = {{"type", "reasoning"}, {"summary", json::array()}};
        const json::array parts = {json::object{{"type", "reasoning_text"}, {"text", text(out)}}};
        const int kind = bytes_.next(3);
        if (kind == 0) made["content"] = parts;
        if (kind == 1) made["summary"] = parts;
        if (kind == 2) made["encrypted_content"] = "riptide:" + std::string(parts[0].at("text").get_string());
        return made;
    }
    json::object call_or_output(int kind, Texts& out) {
        if (kind == 6) {
            const std::string name = word(out);
            const json::value given = arguments(out);
            const std::string written = given.is_string() ? std::string(given.get_string()) : json::serialize(given);
            return {{"type", "function_call"}, {"call_id", "c"}, {"name", name}, {"arguments", written}};
        }
        if (kind == 7) {
            const std::string name = word(out);
            return {{"type", "custom_tool_call"}, {"call_id", "c"}, {"name", name}, {"input", text(out)}};
        }
        return {{"type", "function_call_output"}, {"call_id", "c"}, {"output", content(out)}};
    }
};

}  // namespace riptide::fuzz
