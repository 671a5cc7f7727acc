// From the tokens of an answer to what a client wants to see: text, reasoning, tool calls.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace riptide {

/// More of the visible answer. Valid UTF-8, never empty.
struct TextDelta {
    std::string text;
};
/// More of the model's thinking. Valid UTF-8, never empty.
struct ReasoningDelta {
    std::string text;
};
/// A call whose name is complete. `index` counts the calls of one answer from 0.
struct ToolCallBegin {
    int index = 0;
    std::string id;
    std::string name;
};
/// More of a call's arguments. The fragments of one call, joined, are one JSON object once ToolCallEnd has come with
/// `complete`; until then, and for ever if it comes without, they are the beginning of one: never empty at the end, and
/// no JSON.
/// Nothing else comes between ToolCallBegin and ToolCallEnd, so a call can be passed on as it comes: text that a model
/// wrote between the parts of a call follows behind its end.
struct ToolCallArguments {
    int index = 0;
    std::string json_fragment;
};
/// The call is over. `complete` is false if the answer ended inside it, or what the model wrote cannot be read further:
/// then nobody knows what it would have said, the last value may be cut short, and the call must not be executed. So
/// that nobody can, the object stays open.
struct ToolCallEnd {
    int index = 0;
    bool complete = true;
};
/// Always the last event, exactly once. `closed`: the model wrote its end-of-turn markup.
struct Finish {
    bool closed = false;
    int tool_calls = 0;
};
using StreamEvent = std::variant<TextDelta, ReasoningDelta, ToolCallBegin, ToolCallArguments, ToolCallEnd, Finish>;
using StreamEvents = std::vector<StreamEvent>;

/// The stream parser of one chat dialect, for one answer. Total: any bytes, cut anywhere, give events and never an
/// exception; what is not understood is delivered as text, but for markup that was cut. How the input was cut changes
/// only how the deltas are cut, not their joined contents. Time linear in the input. Not thread-safe.
class StreamParser {
  public:
    virtual ~StreamParser() = default;

    /// The text of one token, or any part of the answer. `is_special`: it is one whole added token of the vocabulary
    /// (Tokenizer::is_added), so that it is markup and not text that happens to look alike. Appends events to `out`.
    virtual void push_token(std::string_view text, bool is_special, StreamEvents& out) = 0;
    /// The model has ended its turn, by a token that was not pushed. What comes from now on is dropped.
    virtual void end_turn(StreamEvents& out) = 0;
    /// The answer is over. Closes what is open, delivers what was held back, and ends with Finish. If the turn has not
    /// ended, the answer was cut: then the markup of a call that has no name yet is dropped. REQUIRES: called once,
    /// last.
    virtual void finish(StreamEvents& out) = 0;

    /// Plain text.
    void push(std::string_view text, StreamEvents& out) { push_token(text, false, out); }
};

}  // namespace riptide
