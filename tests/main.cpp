// The main function of the test binaries: GoogleTest's flags, and the device to run on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/test_device.h"

namespace riptide {

namespace {
std::unique_ptr<Gpu> gpu;
bool full = false, few = false;
int jobs = 1, multiprocessors = 0;

[[noreturn]] void usage(const char* program, const char* argument) {
    std::fprintf(stderr,
                 "%s: unknown argument %s\n"
                 "usage: %s [--device cpu|cuda] [--portable] [--full | --brief] [--multiprocessors N] [--jobs N] "
                 "[--gtest_...]\n",
                 program, argument, program);
    std::exit(64);
}

/// Everything behind GoogleTest's flags.
void read_arguments(int argc, char** argv) {
    bool cuda = false;
    GpuOptions options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (argument == "--portable") options.portable = true;
        else if (argument == "--full") full = true;
        else if (argument == "--brief") few = true;
        else if (argument == "--jobs" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) jobs = std::atoi(argv[++i]);
        else if (argument == "--multiprocessors" && i + 1 < argc && std::atoi(argv[i + 1]) > 0)
            multiprocessors = std::atoi(argv[++i]);
        else if (argument == "--device" && i + 1 < argc && std::strcmp(argv[i + 1], "cuda") == 0) cuda = true, ++i;
        else if (argument == "--device" && i + 1 < argc && std::strcmp(argv[i + 1], "cpu") == 0) ++i;
        else usage(argv[0], argv[i]);
    }
    if (!cuda) return;
    try {
        gpu = Gpu::open(options);
        limit_multiprocessors(*gpu);
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
        std::exit(static_cast<int>(error.kind()));
    }
    std::printf("device: %s, compute capability %d.%d%s\n", gpu->info().name.c_str(), gpu->info().major,
                gpu->info().minor, options.portable ? ", portable kernels" : "");
}
}  // namespace

Gpu* test_gpu() { return gpu.get(); }
bool full_counts() { return full; }
bool brief_counts() { return few; }
int test_jobs() { return jobs; }
void limit_multiprocessors(Gpu& device) {
    if (multiprocessors == 0) return;
    // The library has no such option: nobody but a test wants it. What a device is, is only asked for by info().
    int& count = const_cast<GpuInfo&>(device.info()).sm_count;
    count = std::min(count, multiprocessors);
}

}  // namespace riptide

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    riptide::read_arguments(argc, argv);
    const int result = RUN_ALL_TESTS();
    riptide::gpu.reset();
    return result;
}
