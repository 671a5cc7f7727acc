// What constrained output costs on the host: making the vocabulary's tree, compiling a form, the mask of each token of
// a given answer, in a first answer (nothing is known yet) and in the tenth, and what the host does for each token
// besides: where it draws, the draw; where the device does, a number for the mask. With SCHEMAS (lines of JSON with a
// member "schema"): the masks along random walks through these, and through grammars that are made to be slow.
// usage: bench_constraint MODEL.gguf [SCHEMAS.jsonl]
#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include "base/json.h"
#include "base/work_budget.h"
#include "engine/sampling/device_masks.h"
#include "engine/sampling/form_cache.h"
#include "engine/sampling/sampler.h"
#include "io/checkpoint.h"
#include "text/dialects/response_format.h"
#include "text/structured/token_masks.h"

namespace {

using namespace riptide;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Times {
    std::vector<double> masks, accepts;
    static double quantile(std::vector<double> all, double q) {
        std::sort(all.begin(), all.end());
        return all[static_cast<std::size_t>(q * static_cast<double>(all.size() - 1))];
    }
    void print(const char* what) const {
        double sum = 0;
        for (const double time : masks) sum += time;
        fmt::print("  {}: mask mean {:.1f} median {:.1f} 90 % {:.1f} longest {:.0f}; accept median {:.2f}  (us)\n",
                   what, sum / static_cast<double>(masks.size()), quantile(masks, 0.5), quantile(masks, 0.9),
                   quantile(masks, 1), quantile(accepts, 0.5));
    }
};

Times answer(Constraint& constraint, const std::vector<int32_t>& tokens) {
    Times times;
    ConstraintState state = constraint.start();
    for (const int32_t token : tokens) {
        auto start = Clock::now();
        const auto mask = state.mask();
        times.masks.push_back(microseconds_since(start));
        start = Clock::now();
        RT_CHECK(mask->has(token) && state.accept(token), "the answer does not fit the form at token {}",
                 times.masks.size());
        times.accepts.push_back(microseconds_since(start));
    }
    RT_CHECK(state.can_end(), "the answer is not complete");
    return times;
}

/// The median of what a token takes beyond finding out about masks: `work` is shown the answer's place before each.
template <class Work>
double each_token(const std::shared_ptr<Constraint>& constraint, const std::vector<int32_t>& tokens, int64_t vocab,
                  const Work& work) {
    const int32_t stop = 0;
    AllowedTokens allowed(constraint, std::span(&stop, 1), vocab);
    std::vector<double> times;
    for (const int32_t token : tokens) {
        const auto start = Clock::now();
        work(allowed);
        times.push_back(microseconds_since(start));
        allowed.accept(token);
    }
    return Times::quantile(times, 0.5);
}

void compare_draws(const std::shared_ptr<Constraint>& constraint, const std::vector<int32_t>& tokens, int64_t vocab) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(static_cast<std::size_t>(vocab));
    for (float& logit : logits) logit = normal(random);
    SamplingParams greedy, sampled;
    greedy.temperature = 0;
    sampled.temperature = 0.8, sampled.top_p = 0.95;
    const auto draw = [&](const SamplingParams& params) {
        Sampler sampler(params, vocab);
        return each_token(constraint, tokens, vocab,
                          [&](AllowedTokens& allowed) { sampler.sample(logits, 1, allowed.next()); });
    };
    MaskPool pool(DeviceMasks::count(vocab));
    std::vector<uint64_t> words(static_cast<std::size_t>(ops::SampleMasks::words_of(vocab)));
    const auto find = [&](AllowedTokens& allowed) {
        const AllowedSet set = allowed.place();
        if (pool.find(set).fresh) set.write(words);
    };
    const double met = each_token(constraint, tokens, vocab, find), known = each_token(constraint, tokens, vocab, find);
    fmt::print(
        "  median of a token: drawn by the host {:.0f} us at temperature 0, {:.0f} us at 0.8 with top_p 0.95; drawn "
        "by the device {:.2f} us at first, {:.2f} us later\n",
        draw(greedy), draw(sampled), met, known);
}

/// Masks of many walks: what each took, in microseconds and in steps of WorkBudget.
struct Walks {
    std::vector<double> times, steps;
    int64_t forms = 0, refused = 0, too_long = 0;

    void print(const char* what) const {
        double time = 0, work = 0;
        for (const double each : times) time += each;
        for (const double each : steps) work += each;
        fmt::print(
            "{}: {} forms, {} refused; {} masks, {} beyond the limit; half take {:.1f} us, 99 % {:.0f}, the longest "
            "{:.0f}; "
            "steps: 99 % {:.0f}, most {:.0f}; a step {:.2f} us\n",
            what, forms, refused, times.size(), too_long, Times::quantile(times, 0.5), Times::quantile(times, 0.99),
            Times::quantile(times, 1), Times::quantile(steps, 0.99), Times::quantile(steps, 1), time / work);
    }
};

/// One of the tokens that fit; of eight, the first that ends something, if one does.
int32_t some_token(const TokenMask& mask, const Tokenizer& tokenizer, std::mt19937& random) {
    std::vector<int32_t> fitting;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        if (mask.has(id)) fitting.push_back(id);
    int32_t token = -1;
    for (int i = 0; i < 8 && !fitting.empty(); ++i) {
        token = fitting[random() % fitting.size()];
        if (tokenizer.piece(token).find_first_of("\"]},") != std::string_view::npos) break;
    }
    return token;
}

void walk_through(const AnswerFormat& format, const Tokenizer& tokenizer, const std::shared_ptr<const TokenTrie>& trie,
                  Walks& out) {
    ++out.forms;
    std::mt19937 random(static_cast<uint32_t>(out.forms));
    try {
        Grammar grammar;
        grammar.set_root(add_format(grammar, format));
        ConstraintState state = Constraint::compile(grammar, trie)->start();
        std::vector<int32_t> said;
        for (int i = 0; i < 100; ++i) {
            WorkBudget work(WorkBudget::kUnlimited);
            const auto start = Clock::now();
            std::shared_ptr<const TokenMask> mask;
            try {
                mask = state.next(said, &work).mask;
            } catch (const GrammarError&) {
                ++out.too_long;
            }
            out.times.push_back(microseconds_since(start));
            out.steps.push_back(static_cast<double>(work.steps_spent()));
            if (mask == nullptr || !mask->any || (state.can_end() && random() % 8 == 0)) break;
            said = {some_token(*mask, tokenizer, random)};
        }
    } catch (const GrammarError&) {
        ++out.refused;
    }
}

void walk_through_all(const char* schemas, const Tokenizer& tokenizer, const std::shared_ptr<const TokenTrie>& trie) {
    Walks real, slow;
    std::ifstream lines(schemas);
    for (std::string line; std::getline(lines, line);)
        walk_through({.kind = AnswerFormat::Kind::json_schema, .schema = parse_json(line, schemas).at("schema")},
                     tokenizer, trie, real);
    real.print("schemas");
    json::array ways;
    for (int way = 0; way < 100; ++way) {
        json::array words;
        for (int word = 0; word < 100; ++word)
            words.emplace_back(fmt::format("a long word of way {} and {}", way, word));
        ways.push_back(json::object{{"enum", words}});
    }
    const json::value many = json::object{{"type", "array"}, {"items", {{"anyOf", ways}}}};
    walk_through({.kind = AnswerFormat::Kind::json_schema, .schema = many}, tokenizer, trie, slow);
    for (const char* text :
         {"root ::= x\nx ::= x x | .", "root ::= x\nx ::= . x x | .", "root ::= e\ne ::= e e | e \"+\" e | [a-z +]+",
          "root ::= (((([a-z ] | \"ab\")* | \"abc\")* | [a-f ])* | [a-z ]+)*", "root ::= .{0,100000}"})
        walk_through({.kind = AnswerFormat::Kind::grammar, .text = text}, tokenizer, trie, slow);
    slow.print("slow forms");
}

}  // namespace

int main(int argc, char** argv) {
    RT_CHECK(argc == 2 || argc == 3, "usage: bench_constraint MODEL.gguf [SCHEMAS.jsonl]");
    const auto file = open_checkpoint(argv[1]);
    const Tokenizer tokenizer = Tokenizer::from_gguf(file->metadata(), file->path());
    auto start = Clock::now();
    const auto trie = std::make_shared<const TokenTrie>(tokenizer);
    fmt::print("{} tokens: a tree of {} nodes in {:.0f} ms\n", tokenizer.vocab_size(), trie->nodes().size(),
               microseconds_since(start) / 1000);
    if (argc == 3) {
        walk_through_all(argv[2], tokenizer, trie);
        return 0;
    }

    const std::string person =
        R"({"type": "object", "properties": {"name": {"type": "string"}, "born": {"type": "string", "format": "date"},
            "height": {"type": "number", "minimum": 0, "maximum": 3}, "languages": {"type": "array", "items": {"enum": ["C++", "CUDA", "Python"]}},
            "address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 60}, "zip": {"type": "string", "pattern": "^\\d{5}$"}},
            "required": ["street", "zip"]}, "remarks": {"type": ["string", "null"]}}, "required": ["name", "born", "height", "languages", "address", "remarks"]})";
    const std::string answer_text =
        R"({"name": "Ada Lovelace", "born": "1815-12-10", "height": 1.65, "languages": ["C++", "CUDA"], "address": {"street": "12 St James's Square, London", "zip": "12345"}, "remarks": "She wrote the first program, \"Note G\", for the Analytical Engine.\nIt was never run."})";
    const struct {
        const char* name;
        AnswerFormat format;
        std::string text;
    } cases[] = {
        {"json_schema", {.kind = AnswerFormat::Kind::json_schema, .schema = parse_json(person, "schema")}, answer_text},
        {"json_object", {.kind = AnswerFormat::Kind::json_object}, answer_text},
        {"regex",
         {.kind = AnswerFormat::Kind::regex, .text = "(\\w+ )*\\w+[.!?]"},
         "The quick brown fox jumps over the lazy dog."},
        {"grammar",
         {.kind = AnswerFormat::Kind::grammar,
          .text = "root ::= e\ne ::= e [-+*/] e | \"(\" e \")\" | [0-9]+ | [a-z]+"},
         "(a+12)*(b-34)/((c+d)*56)"},
    };
    for (const auto& c : cases) {
        const std::vector<int32_t> tokens = tokenizer.encode(c.text);
        start = Clock::now();
        Grammar grammar;
        grammar.set_root(add_format(grammar, c.format));
        const auto constraint = Constraint::compile(grammar, trie);
        fmt::print("{}: compiled in {:.0f} us; {} tokens\n", c.name, microseconds_since(start), tokens.size());
        answer(*constraint, tokens).print("first answer");
        for (int i = 0; i < 8; ++i) answer(*constraint, tokens);
        answer(*constraint, tokens).print("tenth answer");
        compare_draws(constraint, tokens, tokenizer.vocab_size());
        fmt::print("  {:.1f} MiB held\n", static_cast<double>(constraint->bytes()) / 0x1p20);
    }
}
