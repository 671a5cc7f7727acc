// Requests with forms and without in one loop, drawn by the host or by a device (on the CPU, by one that is none).
#pragma once

#include <random>

#include "engine/loop/engine_loop.h"
#include "engine/loop/job_maker.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/host_decoder.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {

enum class DrawnBy { host, device };

/// What came of some requests.
struct Outcome {
    std::vector<Heard> heard;
    EngineStats stats;
};

struct Crowd {
    std::vector<Request> requests;
    EngineOptions options = demo_options();
    uint64_t seed = 1;       // of arrivals, news and cancellations
    int64_t cancelled = -1;  // the request that is cancelled in the middle of its answer
    std::optional<EngineLoop::MaskSteps> mask_steps = {};
    int64_t end_at = -1;  // searches of masks after which the loop ends, with all that is left

    Outcome run(DrawnBy drawn) const {
        Machine machine(open_checkpoint(demo_path()), options);
        std::optional<HostDecoder> stand_in;
        if (machine.decoder() != nullptr && drawn == DrawnBy::host) {
            DecodeDevice device = *machine.decoder();
            device.forward = {}, device.draw = {}, device.draw_rows = {};
            machine.use_decoder(std::move(device));
        } else if (machine.decoder() == nullptr && drawn == DrawnBy::device) {
            machine.use_decoder(stand_in.emplace(machine).functions());
        }
        const ModelText text(*machine.checkpoint());
        const JobMaker maker(text, machine.options(), machine.model().info(), machine.context_length(), nullptr);
        std::mt19937_64 random(seed);
        EngineLoop loop(machine, [&] { return random() % 7 == 0; });
        if (mask_steps) loop.use_mask_steps(*mask_steps);
        Listener listener;
        Outcome out;
        RequestId id = 0;
        for (size_t i = 0; i < requests.size() || !loop.idle();) {
            if (i < requests.size() && (loop.idle() || random() % 3 == 0)) {
                auto job = maker.make(Request(requests[i]), listener.sink(static_cast<int>(i)));
                job->id = ++id;
                if (job->share == 0) job->share = maker.share_of(id);
                ++loop.waiting;
                loop.add(std::move(job));
                ++i;
            }
            loop.step();
            loop.report(out.stats);
            if (end_at >= 0 && out.stats.masks_aside >= end_at && i == requests.size()) {
                loop.end_all(nullptr, {});
                break;
            }
            if (cancelled >= 0 && static_cast<size_t>(cancelled) < i) {
                const size_t long_enough = 9;
                if (listener.tokens_so_far(static_cast<int>(cancelled)) >= long_enough) loop.cancel(cancelled + 1);
            }
        }
        for (size_t i = 0; i < requests.size(); ++i) out.heard.push_back(listener.answer(static_cast<int>(i)));
        loop.report(out.stats);
        return out;
    }
};

inline AnswerFormat regex(const std::string& text) { return {.kind = AnswerFormat::Kind::regex, .text = text}; }

/// Of all kinds of forms, and of none, by all kinds of draws.
inline std::vector<Request> formed_requests(bool greedy) {
    const std::vector<AnswerFormat> formats = {
        {.kind = AnswerFormat::Kind::json_object},
        regex("(yes|no), because [a-z ]{10,200}\\."),
        {},
        {.kind = AnswerFormat::Kind::grammar, .text = "root ::= \"<\" root \">\" | [a-z]{3,9} (\" \" [a-z]+)*"},
        {.kind = AnswerFormat::Kind::json_schema,
         .schema = parse_json(R"({"type": "object", "properties": {"n": {"type": "string", "maxLength": 20},
             "d": {"type": "string", "format": "date"}, "l": {"type": "array", "items": {"type": "integer"}}},
             "required": ["n", "d", "l"]})",
                              "schema")},
        regex("[ -~\\n]{150}")};
    std::vector<Request> requests;
    for (size_t i = 0; i < 18; ++i) {
        Request request = chat("Is tea good? Say it in other words " + std::to_string(i), 90);
        std::get<ChatPrompt>(request.prompt).options.enable_thinking = i % 5 == 4;
        request.format = formats[i % formats.size()];
        request.want_tokens = true;
        SamplingParams& s = request.sampling;
        s.seed = 100 + i;
        s.temperature = greedy || i % 4 == 0 ? 0 : i % 4 == 1 ? 1.3 : 0.8;
        s.top_k = i % 3 == 1 ? 30 : 0;
        s.top_p = i % 3 == 2 ? 0.9 : 1;
        s.min_p = i % 7 == 3 ? 0.02 : 0;
        if (!greedy && i % 6 > 2) s.frequency_penalty = 0.4, s.repetition_penalty = 1.1;
        if (!greedy && i % 6 == 1) s.logit_bias = {{300, 2.0}};
        requests.push_back(std::move(request));
    }
    return requests;
}

inline void expect_same_outcome(const Outcome& device, const Outcome& host) {
    ASSERT_EQ(device.heard.size(), host.heard.size());
    for (size_t i = 0; i < host.heard.size(); ++i) {
        ASSERT_EQ(device.heard[i].failed.has_value(), host.heard[i].failed.has_value()) << i;
        if (host.heard[i].failed) {
            EXPECT_EQ(device.heard[i].failed->message, host.heard[i].failed->message) << i;
            EXPECT_EQ(device.heard[i].failed->kind, host.heard[i].failed->kind) << i;
        } else {
            EXPECT_EQ(device.heard[i].done->reason, host.heard[i].done->reason) << i;
        }
        EXPECT_EQ(device.heard[i].tokens, host.heard[i].tokens) << i;
        EXPECT_EQ(device.heard[i].text, host.heard[i].text) << i;
    }
}

/// Drafts of somebody who knows every answer, and is wrong every now and then, with tokens that the form allows and
/// others. `tree`: SpeculationOptions::tree.
inline void draft_well(Crowd& crowd, const Outcome& host, int32_t tree) {
    auto texts = std::make_shared<std::vector<std::vector<int32_t>>>();
    for (size_t i = 0; i < crowd.requests.size(); ++i) texts->push_back(host.heard[i].tokens);
    auto random = std::make_shared<std::mt19937>(7u + static_cast<uint32_t>(tree));
    const int64_t vocab = 300;
    crowd.options.speculation.width = 5;
    crowd.options.speculation.tree = tree;
    crowd.options.speculation.adaptive = false;
    crowd.options.speculation.make = [=] {
        return std::make_unique<TestDrafter>(5, [=](const std::vector<int32_t>& tokens, int32_t slot, int32_t choices) {
            for (const auto& text : *texts) {
                // Where the end of the text lies in an answer, what follows it.
                const size_t tail = std::min<size_t>({4, tokens.size(), text.size()});
                const auto at =
                    std::search(text.begin(), text.end(), tokens.end() - static_cast<int64_t>(tail), tokens.end());
                const auto next = static_cast<size_t>(at - text.begin()) + tail + static_cast<size_t>(slot);
                if (at == text.end() || next >= text.size()) continue;
                return drafts_with(text[next], static_cast<int32_t>((*random)() % 4 == 0), choices, vocab);
            }
            return std::vector<DraftToken>();
        });
    };
}

}  // namespace riptide::testing
