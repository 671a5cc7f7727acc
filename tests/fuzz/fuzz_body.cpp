// Laws: the body of any request is refused with 4xx, or gives a request whose numbers are finite (their ranges are the
// engine's affair); and the same each time. Input: one byte for the dialect, then the body.
#include <cmath>
#include <string_view>

#include "base/json.h"
#include "server/api/anthropic/anthropic_request.h"
#include "server/api/ollama/ollama_request.h"
#include "server/api/responses/responses_request.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace riptide;
using namespace riptide::server;
using fuzz::require;

/// Of Ollama's API a request may have no prompt: it asks for the model alone.
void check(const GenerationRequest& r, bool ollama) {
    require(!r.prompts.empty() || ollama);
    for (const Request& request : r.prompts) {
        const SamplingParams& s = request.sampling;
        require(std::isfinite(s.temperature) && std::isfinite(s.top_p) && std::isfinite(s.min_p));
        require(std::isfinite(s.repetition_penalty) && std::isfinite(s.frequency_penalty));
        require(request.n == r.prompts[0].n && request.n >= 1 && request.n <= 128);
    }
}

/// What has come of it, in words.
std::string parse(char dialect, std::string_view text) {
    const RequestDefaults defaults;
    try {
        WorkBudget work;
        json::object body = parse_body(text, work);
        GenerationRequest out;
        const bool ollama = dialect == 'o' || dialect == 'g';
        if (dialect == 'c') out = parse_chat(std::move(body), defaults);
        else if (dialect == 'm') out = parse_messages(std::move(body), defaults, MessagesFor::answering);
        else if (dialect == 'r') out = parse_responses(std::move(body), defaults, nullptr).generation;
        else if (dialect == 'o') out = parse_ollama_chat(body, defaults);
        else if (dialect == 'g') out = parse_ollama_generate(body, defaults);
        else out = parse_completion(std::move(body), defaults, nullptr);
        check(out, ollama);
        const int64_t most = out.prompts.empty() ? 0 : out.prompts[0].sampling.max_tokens;
        return fmt::format("{} {} {}", out.prompts.size(), most, out.stream);
    } catch (const ApiError& error) {
        require(error.status() >= 400 && error.status() < 500);
        return fmt::format("{} {} {}", error.status(), error.param(), error.what());
    } catch (const Error& error) {  // what the engine's own checks say becomes 400 too
        require(from_engine(error).status() < 500);
        return error.what();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    const char dialect = static_cast<char>(data[0]);
    require(parse(dialect, text) == parse(dialect, text));
    return 0;
}
