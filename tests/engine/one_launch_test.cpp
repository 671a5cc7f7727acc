// Decoding in one launch, seen from an engine: where it is refused, and what it leaves alone.
#include <filesystem>

#include "base/file.h"
#include "engine/loop/resources.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

EngineOptions one_launch_options(bool one_launch = true) {
    EngineOptions options;
    options.threads = 1;
    options.context = options.kv_tokens = 64;
    options.page_rows = options.chunk_rows = 16;
    options.max_running = 1;
    options.prefix_cache = false;
    options.one_launch = one_launch;
    if (Gpu* gpu = test_gpu()) options.gpu = gpu->options();
    return options;
}
std::string tied_path() { return fixture_path("qwen35_tied") + "/model.safetensors"; }

TEST(OneLaunch, is_refused_by_engines_and_sessions_on_the_cpu) {
    EngineOptions options = one_launch_options();
    options.gpu.reset();
    const auto refused = [](const auto& open) {
        try {
            open();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            return std::string(error.what());
        }
        return std::string();
    };
    const std::string why = "--decode persistent: it runs on a GPU only";
    EXPECT_EQ(refused([&] { Machine(open_checkpoint(tied_path()), options); }), why);
    EXPECT_EQ(refused([&] { Session::open(tied_path(), options); }), why);
}

TEST(OneLaunch, has_a_name_of_its_own_for_the_values_it_keeps) {
    RT_GPU_ONLY();
    const auto name = [](bool one_launch) {
        return Machine(open_checkpoint(tied_path()), one_launch_options(one_launch)).weights_name();
    };
    EXPECT_NE(name(true), name(false));
    EXPECT_EQ(name(true), name(true));
}

TEST(OneLaunch, weights_that_it_does_not_take_are_not_taken_by_a_reload) {
    RT_GPU_ONLY();
    // The same bytes, said to be f16.
    std::string bytes = read_file(tied_path(), 1 << 24);
    for (size_t at = 0; (at = bytes.find("\"BF16\"", at)) != std::string::npos;) bytes.replace(at, 6, "\"F16\" ");
    const std::string folder = ::testing::TempDir() + "riptide_one_launch";
    std::filesystem::create_directories(folder);
    std::filesystem::copy(fixture_path("qwen35_tied") + "/config.json", folder,
                          std::filesystem::copy_options::overwrite_existing);
    write_file_atomic(folder + "/model.safetensors", bytes);

    Machine machine(open_checkpoint(tied_path()), one_launch_options());
    const auto logits = [&] {
        SequenceState sequence(machine.cache());
        const int32_t token = 5;
        const StepItem item{&sequence, std::span(&token, 1), {}, StepRows::Logits::last, {}};
        machine.step(std::span(&item, 1), Family::decode);
        const Tensor host = machine.logits();
        sequence.commit_prefix(0);
        return std::vector<float>(host.row(0), host.row(0) + host.row_elements());
    };
    const std::vector<float> before = logits();
    EXPECT_THROW(machine.replace(open_checkpoint(folder + "/model.safetensors")), Error);
    ASSERT_TRUE(machine.usable());
    EXPECT_EQ(logits(), before);
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace riptide::testing
