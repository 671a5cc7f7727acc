// How long a long prompt takes to come back from host memory and from disk: Laguna XS.2's layers, random K/V, nothing
// else on the device. The K/V memory is overwritten before each restore, and every byte compared after it.
// Times are medians of 5; in brackets the shortest and the longest. "returns": when the engine thread may go on;
// "there": when the device has everything. The disk's files are in the page cache.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/host_heap.h"
#include "cache/prefix_cache.h"
#include "ops/kv/kv_pack.h"

namespace riptide {
namespace {

constexpr int kRepeats = 5;
constexpr int32_t kPageRows = 64;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Times {
    std::vector<double> all;
    std::string text() const {
        std::vector<double> sorted = all;
        std::sort(sorted.begin(), sorted.end());
        return fmt::format("{:.1f} ms [{:.1f} {:.1f}]", 1e3 * sorted[sorted.size() / 2], 1e3 * sorted.front(),
                           1e3 * sorted.back());
    }
};

/// A cache with one sequence of random K/V, and what it should look like.
class Bench {
  public:
    Bench(Gpu* gpu, DType type, int64_t tokens) : gpu_(gpu) {
        std::vector<StateSpec> specs;
        for (int layer = 0; layer < 40; ++layer)
            specs.push_back(layer % 4 == 0 ? StateSpec{StateSpec::Kind::paged, 8, 128, 0}
                                           : StateSpec{StateSpec::Kind::window, 8, 128, 512});
        const auto pages = static_cast<int32_t>((tokens + kPageRows - 1) / kPageRows) + 8;
        kv_ = std::make_unique<KvCache>(specs,
                                        KvCacheOptions{.k_dtype = type,
                                                       .v_dtype = type,
                                                       .page_rows = kPageRows,
                                                       .pages = pages,
                                                       .max_sequences = 2,
                                                       .max_step_rows = 512},
                                        gpu);
        std::mt19937_64 rng(1);
        for (int64_t i = 0; i <= tokens; ++i) prompt_.push_back(static_cast<int32_t>(rng() % 100352));
        std::vector<uint64_t> random;
        for (const KvView& view : kv_->views()) {
            const int64_t slots = view.window > 0 ? 2 * int64_t{view.ring_rows} : int64_t{pages} * kPageRows;
            for (void* const base : {view.k, view.v}) {
                random.resize(static_cast<size_t>(slots * view.k_slot_bytes / 8));
                for (uint64_t& word : random) word = rng();
                if (gpu_ != nullptr) gpu_->to_device(base, random.data(), 8 * std::ssize(random));
                else std::memcpy(base, random.data(), 8 * random.size());
            }
        }
    }

    /// The sequence as if it had just been computed, kept by `cache`.
    void publish(PrefixCache& cache) {
        SequenceState sequence(*kv_);
        for (int64_t done = 0; done < length();) {
            const int64_t rows = std::min<int64_t>(512, length() - done);
            RT_CHECK(sequence.try_reserve(rows), "too few pages");
            sequence.commit_prefix(rows);
            done += rows;
        }
        if (expected_.empty()) expected_ = contents(sequence);
        else restore_contents(sequence);
        const double begin = now();
        cache.publish(request(), sequence, PrefixCache::Mark::message);
        published_.all.push_back(now() - begin);
    }

    /// Everything out of the K/V memory, and the memory overwritten.
    void evict(PrefixCache& cache, Times& returns, Times& there) {
        const double begin = now();
        cache.make_room(kv_->pool().size(), false);
        returns.all.push_back(now() - begin);
        synchronize();
        there.all.push_back(now() - begin);
        RT_CHECK(kv_->pool().free_count() == kv_->pool().size(), "pages are still held");
        for (const KvView& view : kv_->views())
            for (void* const base : {view.k, view.v}) {
                const int64_t slots = view.window > 0 ? 2 * int64_t{view.ring_rows} : kv_->pool().size() * kPageRows;
                if (gpu_ != nullptr) gpu_->fill(base, 0xEE, slots * view.k_slot_bytes);
                else std::memset(base, 0xEE, static_cast<size_t>(slots * view.k_slot_bytes));
            }
        synchronize();
    }

    void attach(PrefixCache& cache, Times& returns, Times& there) {
        SequenceState sequence(*kv_);
        const double before = now();
        cache.find(request());
        const double begin = now();
        found_.all.push_back(begin - before);
        const PrefixMatch match = cache.attach(request(), sequence);
        returns.all.push_back(now() - begin);
        synchronize();
        there.all.push_back(now() - begin);
        RT_CHECK(match.cached == length(), "{} of {} tokens came back: {}", match.cached, length(), match.why());
        RT_CHECK(contents(sequence) == expected_, "other bytes came back");
    }

    /// Evicts and attaches a few times; the first eviction is what fills the tier.
    void run(const char* tier, PrefixCache& cache) {
        Times fill, filled, touch, touched, returns, there;
        evict(cache, fill, filled);
        for (int i = 0; i < kRepeats; ++i) {
            attach(cache, returns, there);
            evict(cache, touch, touched);
        }
        fmt::print("{}: evict {} returns, {} there; find {}; restore {} returns, {} there\n", tier, fill.text(),
                   filled.text(), std::exchange(found_, {}).text(), returns.text(), there.text());
    }

    int64_t length() const { return std::ssize(prompt_) - 1; }
    int64_t bytes() const {
        return length() * kv_->bytes_per_token() + ops::packed_state_bytes(kv_->bounded(), length());
    }
    KvCache& kv() { return *kv_; }
    const Times& published() const { return published_; }
    void synchronize() const {
        if (gpu_ != nullptr) gpu_->synchronize();
    }

  private:
    PrefixRequest request() const { return {salt_, prompt_, ends_}; }

    std::vector<char> contents(const SequenceState& sequence) const {
        const int64_t pages = std::ssize(sequence.pages()), tail = length() % kPageRows;
        const int64_t page_bytes = kPageRows * kv_->bytes_per_token();
        const int64_t rings = ops::packed_state_bytes(kv_->bounded(), length());
        const DeviceMemory packed(gpu_, pages * page_bytes + rings, "comparison");
        ops::pack_pages(gpu_, kv_->views(), sequence.pages().first(static_cast<size_t>(pages - 1)), kPageRows,
                        packed.data());
        ops::pack_pages(gpu_, kv_->views(), sequence.pages().last(1), tail == 0 ? kPageRows : tail,
                        packed.data() + (pages - 1) * page_bytes);
        ops::pack_state(gpu_, kv_->bounded(), sequence.slot(), length(), packed.data() + pages * page_bytes);
        std::vector<char> bytes(static_cast<size_t>(packed.bytes()));
        if (gpu_ != nullptr) gpu_->to_host(bytes.data(), packed.data(), packed.bytes());
        else std::memcpy(bytes.data(), packed.data(), bytes.size());
        return bytes;
    }
    void restore_contents(const SequenceState& sequence) {
        const int64_t pages = std::ssize(sequence.pages()), page_bytes = kPageRows * kv_->bytes_per_token();
        DeviceMemory packed(gpu_, std::ssize(expected_), "comparison");
        if (gpu_ != nullptr) gpu_->to_device(packed.data(), expected_.data(), packed.bytes());
        else std::memcpy(packed.data(), expected_.data(), expected_.size());
        const int64_t tail = length() % kPageRows;
        ops::unpack_pages(gpu_, kv_->views(), sequence.pages().first(static_cast<size_t>(pages - 1)), kPageRows,
                          packed.data());
        ops::unpack_pages(gpu_, kv_->views(), sequence.pages().last(1), tail == 0 ? kPageRows : tail,
                          packed.data() + (pages - 1) * page_bytes);
        ops::unpack_state(gpu_, kv_->bounded(), sequence.slot(), length(), packed.data() + pages * page_bytes);
        synchronize();
    }

    Gpu* gpu_;
    std::unique_ptr<KvCache> kv_;
    std::vector<int32_t> prompt_;
    std::vector<int64_t> ends_;
    std::vector<char> expected_;
    PrefixSalt salt_{"", "no template", ""};
    Times published_, found_;
};

void run(Gpu* gpu, DType type, int64_t tokens, const std::string& folder) {
    Bench bench(gpu, type, tokens);
    const double gigabytes = 1e-9 * static_cast<double>(bench.bytes());
    fmt::print("device: {}\n{} tokens, {}: {:.2f} GB\n", gpu != nullptr ? gpu->info().name : "CPU", tokens,
               dtype_name(type), gigabytes);
    {
        const double begin = now();
        HostHeap::make(gpu)->reserve(HostHeap::kRegionBytes);
        fmt::print("{} MiB from the system: {:.1f} ms\n", HostHeap::kRegionBytes >> 20, 1e3 * (now() - begin));
    }
    {
        HostStore host(4 * bench.bytes());
        PrefixCache cache(bench.kv(), {}, &host);
        bench.publish(cache);
        bench.run("host memory", cache);
    }
    const int64_t budget = 4 * bench.bytes();
    {
        DiskStore disk(folder, budget);
        RT_CHECK(disk.problem().empty(), "{}", disk.problem());
        PrefixCache cache(bench.kv(), {}, nullptr, &disk);
        bench.publish(cache);
        const double begin = now();
        cache.persist();
        fmt::print("persist: {:.1f} ms\n", 1e3 * (now() - begin));
    }
    const double begin = now();
    DiskStore disk(folder, budget);
    fmt::print("start with {} files: {:.1f} ms\n", disk.count(), 1e3 * (now() - begin));
    PrefixCache cache(bench.kv(), {}, nullptr, &disk);
    bench.run("disk", cache);
    fmt::print("publish: {} returns\n", bench.published().text());
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    using namespace riptide;
    std::string device = "cuda", kv = "f8_e4m3", folder = std::filesystem::temp_directory_path().string();
    int64_t tokens = 60000;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view flag = argv[i];
        if (flag == "--device") device = argv[i + 1];
        else if (flag == "--kv") kv = argv[i + 1];
        else if (flag == "--folder") folder = argv[i + 1];
        else if (flag == "--tokens") tokens = std::atoll(argv[i + 1]);
        else device.clear();
    }
    if ((device != "cuda" && device != "cpu") || tokens < 1 || argc % 2 == 0) {
        fmt::print(stderr, "usage: {} [--device cuda|cpu] [--kv TYPE] [--tokens N] [--folder DIR]\n", argv[0]);
        return 64;
    }
    std::string made = folder + "/riptide-bench-XXXXXX";
    int result = 0;
    try {
        RT_CHECK(::mkdtemp(made.data()) != nullptr, "{}: cannot make a folder in it", folder);
        DType type = DType::f32;
        for (const DType one : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0})
            if (kv == dtype_name(one)) type = one;
        RT_CHECK(kv == dtype_name(type), "{}: not a type of K and V", kv);
        const std::unique_ptr<Gpu> gpu = device == "cuda" ? Gpu::open() : nullptr;
        run(gpu.get(), type, tokens, made);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_cache_restore: {}\n", error.what());
        result = 1;
    }
    std::filesystem::remove_all(made);
    return result;
}
