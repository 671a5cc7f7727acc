// Any bytes through a stream parser, whole and in pieces: the same events, sound arguments, valid UTF-8, no exception.
// Input: one byte of options, then the answer. Byte 0xF8 + k stands for marker k as a single token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/dialects/parser_options.h"
#include "text/dialects/section_parser.h"
#include "text/utf8.h"

namespace riptide::fuzz {

using MakeParser = std::unique_ptr<StreamParser> (*)(ParserOptions);

inline ParserOptions options_of(uint8_t bits) {
    static const ToolSchemas tools(
        json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties":
        {"s": {"type": "string"}, "n": {"type": ["string", "null"]}, "i": {"type": "integer"}}}}}])")
            .as_array());
    ParserOptions options;
    options.thinking = (bits & 1) != 0;
    options.strict_specials = (bits & 2) != 0;
    options.newline_framing = (bits & 4) != 0;
    options.tools = tools;
    return options;
}

/// `step`: bytes per push of plain text.
inline StreamEvents feed(StreamParser& parser, const MarkerSpellings& markers, std::string_view input,
                         std::size_t step) {
    StreamEvents events;
    for (std::size_t at = 0; at < input.size();) {
        const int marker = static_cast<unsigned char>(input[at]) - 0xF8;
        if (marker >= 0 && marker < 5) {
            parser.push_token(markers[static_cast<std::size_t>(marker)], true, events);
            ++at;
            continue;
        }
        std::size_t end = at;
        while (end < input.size() && end - at < step && static_cast<unsigned char>(input[end]) < 0xF8) ++end;
        if (end == at) end = at + 1;
        parser.push(input.substr(at, end - at), events);
        at = end;
    }
    parser.finish(events);
    return events;
}

/// Of a call: its name, the fragments joined, and whether it is complete.
struct Arguments {
    std::string name, text;
    bool complete = false;
    bool operator==(const Arguments&) const = default;
};

/// The events with neighbouring deltas joined, and each call's arguments.
inline std::string joined(const StreamEvents& events, std::vector<Arguments>& arguments) {
    std::string out;
    char last = 0;
    const auto add = [&](char kind, const std::string& text) {
        require(!text.empty() && utf8_valid_prefix(text) == text.size());
        if (kind != last) out += kind;
        out += text;
        last = kind;
    };
    for (const StreamEvent& event : events) {
        if (const auto* e = std::get_if<TextDelta>(&event)) add('T', e->text);
        if (const auto* e = std::get_if<ReasoningDelta>(&event)) add('R', e->text);
        if (const auto* e = std::get_if<ToolCallArguments>(&event)) {
            add('A', e->json_fragment);
            arguments.at(static_cast<std::size_t>(e->index)).text += e->json_fragment;
        }
        if (const auto* e = std::get_if<ToolCallBegin>(&event)) {
            add('B', e->name);
            arguments.push_back({.name = e->name});
        }
        if (const auto* e = std::get_if<ToolCallEnd>(&event)) {
            add('E', e->complete ? "1" : "0");
            arguments.at(static_cast<std::size_t>(e->index)).complete = e->complete;
        }
        if (const auto* e = std::get_if<Finish>(&event)) {
            require(&event == &events.back() && e->tool_calls == static_cast<int>(arguments.size()));
            add('F', e->closed ? "1" : "0");
        }
        if (!std::holds_alternative<TextDelta>(event) && !std::holds_alternative<ReasoningDelta>(event) &&
            !std::holds_alternative<ToolCallArguments>(event)) {
            last = 0;
        }
    }
    return out;
}

/// The calls of an answer: the same in any pieces, and sound.
inline std::vector<Arguments> check_pieces(MakeParser make, const ParserOptions& options,
                                           const MarkerSpellings& markers, std::string_view input) {
    const auto run = [&](std::size_t step, std::vector<Arguments>& arguments) {
        const auto parser = make(options);
        return joined(feed(*parser, markers, input, step), arguments);
    };
    std::vector<Arguments> whole_arguments;
    const std::string whole = run(input.size(), whole_arguments);
    for (const auto& [name, text, complete] : whole_arguments) {
        json::error_code error;
        const json::value value = json::parse(text, error, {}, {.max_depth = 128});
        require(complete ? !error && value.is_object() : error && text.starts_with('{'), "arguments are sound", text);
    }
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}}) {
        std::vector<Arguments> arguments;
        require(run(step, arguments) == whole && arguments == whole_arguments, "pieces say the same", whole);
    }
    return whole_arguments;
}

inline int check_stream(const uint8_t* data, std::size_t size, MakeParser make, std::string_view end_turn) {
    if (size == 0) return 0;
    const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
    check_pieces(make, options_of(data[0]), markers_with(end_turn), input);
    return 0;
}

}  // namespace riptide::fuzz
