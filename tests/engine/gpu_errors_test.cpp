// What goes wrong on a GPU is said in a sentence with numbers; what can go on, does.
#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/embed.h"
#include "tensor/context.h"
#include "tests/test_device.h"

namespace riptide::testing {
namespace {

/// The sentence of the Error of this kind that `body` throws; "" if it throws none or another.
template <class Body>
std::string sentence(ErrorKind kind, const Body& body) {
    try {
        body();
    } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
}

#define RT_EXPECT_SAYS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST(GpuErrors, too_much_memory_is_refused_and_the_device_goes_on) {
    RT_GPU_ONLY();
    Gpu* gpu = test_gpu();
    const int64_t before = gpu->allocated();
    const std::string text = sentence(ErrorKind::unavailable, [&] { gpu->allocate(int64_t{1} << 46, "mountains"); });
    RT_EXPECT_SAYS(text, "mountains need 70368744177664 bytes of GPU memory, but " + gpu->info().name + " has ");
    EXPECT_EQ(gpu->allocated(), before);
    GpuOptions options = gpu->options();
    options.memory_budget = int64_t{1} << 20;
    const auto small = Gpu::open(options);
    const std::string over = sentence(ErrorKind::unavailable, [&] { small->allocate(int64_t{1} << 20, "a MiB"); });
    RT_EXPECT_SAYS(over, "a MiB need 1048576 bytes of GPU memory, but ");
    RT_EXPECT_SAYS(over, "of the budget of 1048576 are left");
    const int32_t value = 42;
    int32_t back = 0;
    const DeviceMemory memory(small.get(), 4, "a number");
    small->to_device(memory.data(), &value, 4);
    small->to_host(&back, memory.data(), 4);
    EXPECT_EQ(back, 42);
}

// In a process of its own: after a failed kernel a device is of no use.
TEST(GpuErrorsDeathTest, a_failed_kernel_is_a_sentence_and_every_later_call_fails) {
    RT_GPU_ONLY();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            Gpu* gpu = test_gpu();
            Arena arena(1 << 20, gpu);
            Context ctx;
            ctx.gpu = gpu;
            ctx.arena = &arena;
            const Tensor x = ctx.alloc(DType::f32, {8, 64});
            const auto* nowhere = reinterpret_cast<const int32_t*>(uintptr_t{256});
            int failures = 0;
            for (int i = 0; i < 3; ++i) {
                try {
                    if (i == 0) ops::gather_rows(ctx, x, {nowhere, 4});
                    gpu->synchronize();
                } catch (const Error& error) {
                    std::fprintf(stderr, "%s\n", error.what());
                    failures += error.kind() == ErrorKind::system ? 1 : 0;
                }
            }
            std::_Exit(failures == 3 ? static_cast<int>(ErrorKind::system) : 1);
        },
        ::testing::ExitedWithCode(static_cast<int>(ErrorKind::system)), "CUDA: .*illegal");
}

TEST(GpuErrors, a_build_or_machine_without_a_gpu_says_so) {
    if (test_gpu() != nullptr) GTEST_SKIP() << "this machine has one";
    const std::string text = sentence(ErrorKind::unavailable, [] { Gpu::open(); });
    RT_EXPECT_SAYS(text, "CUDA");
    RT_EXPECT_SAYS(text, "--device cpu");
    EXPECT_TRUE(list_gpus().empty());
}

}  // namespace
}  // namespace riptide::testing

#undef RT_EXPECT_SAYS
