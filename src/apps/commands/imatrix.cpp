// riptide imatrix: which columns of a model's matrices have large inputs, for riptide quantize --imatrix.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/convert/input_squares.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "engine/prompt/loaded_text.h"
#include "io/gguf_writer.h"

namespace riptide::apps {

namespace {

struct ImatrixFlags {
    ModelFlags model;
    std::string text, out;
    int64_t window = 512, windows = 0;
};

constexpr int64_t kMaxImatrixText = int64_t{256} << 20;

int collect_imatrix(ImatrixFlags o) {
    catch_interrupts();
    RT_CHECK(o.model.device != "cuda", ErrorKind::usage,
             "--device cuda: inputs are seen on the CPU alone, where every product has rows in f32: expected cpu");
    o.model.device = "cpu";
    const auto session = open_session(o.model);
    const Tokenizer tokenizer = load_tokenizer(session->checkpoint());
    const std::vector<int32_t> ids = tokenizer.encode(read_file(o.text, kMaxImatrixText));
    const int64_t size = std::min(o.window, session->context_length()), bos = tokenizer.adds_bos() ? 1 : 0;
    RT_CHECK(size > bos, ErrorKind::usage, "--window {}: expected at least {} tokens", o.window, bos + 1);
    const int64_t fresh = size - bos;  // tokens of the text in a window
    int64_t count = std::ssize(ids) / fresh;
    RT_CHECK(count > 0, "{}: {} tokens, expected at least one window of {} (--window)", o.text, ids.size(), fresh);
    if (o.windows > 0) count = std::min(count, o.windows);

    GgufWriter writer(o.out);  // what cannot be written is said before the work
    InputSquares squares(session->checkpoint(), session->runner().context());
    Progress progress("reading", "tok");
    int64_t done = 0;
    for (; done < count && !interrupted(); ++done) {
        std::vector<int32_t> piece(static_cast<size_t>(size));
        if (bos > 0) piece[0] = tokenizer.bos();
        std::copy_n(ids.begin() + done * fresh, fresh, piece.begin() + bos);
        session->score(
            piece, [](int64_t, const Tensor&) {}, &interrupted());
        progress.update((done + 1) * size, count * size);
    }
    RT_CHECK(!interrupted(), ErrorKind::io, "interrupted; {} was left as it was", o.out);
    ImportanceMatrix matrix = squares.result();
    matrix.chunk_count = done;
    matrix.chunk_size = size;
    matrix.datasets = {std::filesystem::path(o.text).filename().string()};
    write_importance(matrix, writer);
    int64_t matrices = 0, unreached = 0;
    for (const auto& [name, entry] : matrix.entries) {
        matrices += std::ssize(entry.counts);
        unreached += std::count(entry.counts.begin(), entry.counts.end(), 0.0f);
    }
    tell("{}: {} tensors with {} matrices, over {} tokens in {} windows of {}{}\n", o.out, matrix.entries.size(),
         matrices, done * size, done, size,
         unreached == 0 ? "" : fmt::format("; {} matrices of experts saw none: take a longer text", unreached));
    return 0;
}

}  // namespace

void add_imatrix(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("imatrix", "Which columns of a model count: an importance matrix for quantize");
    auto options = std::make_shared<ImatrixFlags>();
    add_model_flags(*cmd, options->model);
    for (const char* flag : {"--device", "--gpu", "--memory-budget", "--portable", "--prefill"})
        cmd->get_option(flag)->group("")->description("Of no use here: it runs on the CPU");
    cmd->add_option("-f,--text", options->text, "Text file that is like what the model will read and write")
        ->required();
    cmd->add_option("-o,--output", options->out, "GGUF file to write, as llama.cpp's programs have it")->required();
    cmd->add_option("--window", options->window,
                    "Tokens in a window; each window starts afresh, a last part is left out")
        ->check(Sign::positive)
        ->capture_default_str();
    cmd->add_option("--windows", options->windows, "Stop after so many windows; 0: the whole text")
        ->check(Sign::non_negative)
        ->capture_default_str();
    cmd->footer(
        "Runs on the CPU. MODEL is a GGUF file, best the one that will be quantised.\n"
        "Examples:\n  riptide imatrix laguna-bf16.gguf -f calibration.txt -o laguna.imatrix.gguf\n"
        "  riptide quantize laguna-bf16.gguf laguna-q2_k.gguf --type q2_k --imatrix laguna.imatrix.gguf");
    cmd->callback([options, &action] { action = [options] { return collect_imatrix(*options); }; });
}

}  // namespace riptide::apps
