// The demo model on a GPU says what it says on the CPU.
//
// The CPU reads the GPU's own answers and says at each position which token it would have chosen. Where that is the
// GPU's token all along, its own greedy answer is that answer. Where it is another, the two logits must be so close
// that rounding may have changed their order: decoding multiplies int8 activations on both devices, prefill bf16 on the
// GPU, and the two round independently (rounding.h). An error of norm e |x| without a preferred direction moves the
// distance of two logits by e |x| |w_a - w_b| / sqrt(D); five standard deviations are allowed.
#include "base/file.h"
#include "base/json.h"
#include "engine/session/session.h"
#include "ops/topk.h"
#include "tests/models/fixture.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide::testing {
namespace {

constexpr double kDemoDeviations = 5;
constexpr int64_t kTokens = 256;

std::vector<std::string> prompts() {
    const std::string path = source_dir() + "/tests/models/demo_prompts.json";
    return json::value_to<std::vector<std::string>>(parse_json(read_file(path, 1 << 20), path));
}

/// Q4_K_M on both devices. The distance of two passes, each of which rounds everything by as much as either does.
Variance demo_variance(const Checkpoint& checkpoint, int64_t keys) {
    const json::object& m = checkpoint.metadata();
    const auto number = [&](const char* key) { return m.at(std::string("laguna.") + key).to_number<double>(); };
    const json::value& counts = m.at("laguna.attention.head_count");
    std::vector<double> heads(static_cast<size_t>(number("block_count")));
    for (size_t l = 0; l < heads.size(); ++l)
        heads[l] = (counts.is_array() ? counts.as_array().at(l) : counts).to_number<double>();
    const OperandRounding each = OperandRounding::int8() + OperandRounding::prefill(false);
    return {heads,
            number("embedding_length"),
            number("attention.key_length"),
            number("feed_forward_length"),
            static_cast<double>(keys),
            each + each};
}

struct Agreement {
    int64_t positions = 0, differ = 0;
    int equal = 0;     // whole answers
    double share = 0;  // of the bound
};

/// `answer` is the GPU's, behind `prompt`.
void judge(Session& cpu, const std::vector<std::vector<float>>& head, const std::vector<int32_t>& prompt,
           const std::vector<int32_t>& answer, Agreement& result) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), answer.begin(), answer.end() - 1);
    const size_t D = head.front().size(), V = head.size();
    std::vector<float> x;  // normalised hidden states
    cpu.runner().context().tap = [&](std::string_view name, int, const Tensor& value) {
        if (name == "norm")
            for (int64_t r = 0; r < value.rows(); ++r) x.insert(x.end(), value.row(r), value.row(r) + D);
    };
    const std::vector<float> logits = all_logits(cpu, all);
    cpu.runner().context().tap = nullptr;
    ASSERT_EQ(x.size(), all.size() * D);
    const double deviation = std::sqrt(demo_variance(cpu.checkpoint(), std::ssize(all)).head / static_cast<double>(D));
    bool equal = true;
    for (size_t i = 0; i < answer.size(); ++i) {
        const size_t row = prompt.size() - 1 + i;
        const auto mine = row_at(logits, row, V);
        const auto best = static_cast<size_t>(ops::argmax(mine)), other = static_cast<size_t>(answer[i]);
        ++result.positions;
        if (best == other) continue;
        equal = false;
        ++result.differ;
        const double allowed =
            kDemoDeviations * deviation * norm2(row_at(x, row, D)) * distance(head[best], head[other]);
        const double share = (double{mine[best]} - mine[other]) / allowed;
        EXPECT_LE(share, 1) << "position " << i << " of an answer: the CPU prefers token " << best << " (" << mine[best]
                            << ") to " << other << " (" << mine[other] << ")";
        result.share = std::max(result.share, share);
    }
    result.equal += equal;
}

TEST(Demo, greedy_answers_on_a_gpu_are_those_of_the_cpu_up_to_ties) {
    RT_GPU_ONLY();
    const std::string path = source_dir() + "/models/demo/laguna-demo.gguf";
    SessionOptions options;
    options.context = 1024;
    const auto cpu = Session::open(path, options);
    options.gpu = test_gpu()->options();
    const auto gpu = Session::open(path, options);
    const Tokenizer tokenizer = Tokenizer::from_gguf(cpu->checkpoint().metadata(), path);
    const auto head = head_rows(cpu->checkpoint());
    const std::vector<std::string> texts = prompts();
    ASSERT_EQ(texts.size(), 20u);
    Agreement result;
    for (const std::string& text : texts) {
        EncodeOptions encode;
        encode.parse_special = true;
        const std::vector<int32_t> prompt = tokenizer.encode(text, encode);
        const std::vector<int32_t> answer = draw_greedily(*gpu, prompt, kTokens).tokens;
        ASSERT_EQ(std::ssize(answer), kTokens);
        judge(*cpu, head, prompt, answer, result);
    }
    fmt::print("{} of {} answers equal; {} of {} positions differ, {:.3f} of the bound on their margins\n",
               result.equal, texts.size(), result.differ, result.positions, result.share);
    EXPECT_LE(result.differ, result.positions / 50) << "near-ties are rare";
}

}  // namespace
}  // namespace riptide::testing
