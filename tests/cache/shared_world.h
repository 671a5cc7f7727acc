// Places that do what they are told to, and the owner of a store.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

#include "cache/shared/store.h"
#include "tests/cache/disk_world.h"

namespace riptide {

/// A place in memory that does what it is told to.
class FakePlace final : public SharedPlace {
  public:
    enum class Mood { well, fails, full, hangs, lies, garbles };

    void set(Mood mood) {
        const std::lock_guard lock(mutex);
        mood_ = mood;
        changed_.notify_all();
    }
    std::vector<int64_t> sizes(std::span<const std::string> names) override {
        std::unique_lock lock(mutex);
        if (!answers(lock)) return {};
        if (mood_ == Mood::garbles) return std::vector<int64_t>(names.size() + 1, 7);
        std::vector<int64_t> sizes;
        for (const std::string& name : names)
            sizes.push_back(mood_ == Mood::lies ? INT64_MAX : pieces.contains(name) ? std::ssize(pieces[name]) : -1);
        return sizes;
    }
    Status get(const std::string& name, std::span<std::byte> to) override {
        std::unique_lock lock(mutex);
        ++gets;
        if (!answers(lock)) return Status::failed;
        if (mood_ == Mood::lies) return Status::done;  // with whatever is there
        if (!pieces.contains(name) || pieces[name].size() != to.size()) return Status::missing;
        std::copy(pieces[name].begin(), pieces[name].end(), to.begin());
        return Status::done;
    }
    Status put(const std::string& name, std::span<const std::byte> bytes) override {
        std::unique_lock lock(mutex);
        if (!answers(lock) || mood_ == Mood::full) return Status::failed;
        pieces[name].assign(bytes.begin(), bytes.end());
        order.push_back(name);
        return Status::done;
    }
    void erase(const std::string& name) override {
        const std::lock_guard lock(mutex);
        ++erased;
        pieces.erase(name);
    }

    std::mutex mutex;
    std::map<std::string, std::vector<std::byte>> pieces;
    std::vector<std::string> order;
    int gets = 0, erased = 0;

    auto locked(const auto& what) {
        const std::lock_guard lock(mutex);
        return what();
    }
    /// How many questions do.
    int hang() {
        return locked([this] { return hanging_; });
    }

  private:
    bool answers(std::unique_lock<std::mutex>& lock) {
        ++hanging_;
        changed_.wait(lock, [this] { return mood_ != Mood::hangs; });
        --hanging_;
        return mood_ != Mood::fails;
    }
    std::condition_variable changed_;
    Mood mood_ = Mood::well;
    int hanging_ = 0;
};

inline SealKey fleet_key(uint8_t secret = 1) { return SealKey::of_secret(std::vector(32, std::byte{secret})); }

/// A store and whoever owns it.
struct Replica {
    std::mutex mutex;
    std::condition_variable heard;
    int64_t news = 0;
    SharedStore store;

    explicit Replica(std::shared_ptr<SharedPlace> place, const SealKey& key = fleet_key())
        : store(
              std::move(place), key,
              [this] {
                  const std::lock_guard lock(mutex);
                  ++news;
                  heard.notify_all();
              },
              std::chrono::milliseconds(20)) {}

    /// Whether it comes true within ten seconds.
    bool until(const std::function<bool()>& true_now) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        std::unique_lock lock(mutex);
        while (!true_now() && std::chrono::steady_clock::now() < end)
            heard.wait_for(lock, std::chrono::milliseconds(1));
        return true_now();
    }
    bool put(uint32_t i) {
        const Record one = record(i);
        return store.put_later(one.id.name, one.tag, one.parts);
    }
    bool flush() {
        return until([this] { return store.pending_bytes() == 0; });
    }
    std::shared_ptr<SharedLookup> look(std::vector<uint32_t> which) {
        auto lookup = std::make_shared<SharedLookup>();
        for (const uint32_t i : which) lookup->names.push_back(record(i).id.name);
        store.look(lookup);
        return lookup;
    }
    /// One letter a record: is it there; "failed".
    std::string found(std::vector<uint32_t> which) {
        const auto lookup = look(std::move(which));
        EXPECT_TRUE(until([&] { return lookup->done.load(); }));
        std::string found;
        for (const char there : lookup->there) found += there ? 'y' : 'n';
        return lookup->failed ? "failed" : found;
    }
    std::shared_ptr<SharedLoad> load(std::vector<uint32_t> which) {
        auto load = std::make_shared<SharedLoad>();
        for (const uint32_t i : which) {
            SharedPiece piece{.name = record(i).id.name};
            for (const HostBytes& part : record(i).parts) {
                piece.parts.push_back(heap()->take_for_host(part->bytes));
                std::memset(piece.parts.back()->data, 0x5a, static_cast<size_t>(part->bytes));
            }
            load->pieces.push_back(std::move(piece));
        }
        store.load(load);
        return load;
    }
    /// Which of them came; every one that did is what it should be.
    std::string read(std::vector<uint32_t> which) {
        const auto load = this->load(which);
        EXPECT_TRUE(until([&] { return load->done.load(); }));
        std::string got;
        int64_t bytes = 0;
        for (size_t i = 0; i < which.size(); ++i) {
            const SharedPiece& piece = load->pieces[i];
            const Record expected = record(which[i]);
            got += piece.there ? 'y' : 'n';
            if (!piece.there) continue;
            bytes += expected.payload_bytes();
            EXPECT_TRUE(payload_of({.parts = piece.parts}) == payload_of(expected) && piece.tag == expected.tag) << i;
        }
        EXPECT_EQ(load->bytes, bytes);
        EXPECT_EQ(load->failed, got.find('n') != std::string::npos);
        store.reap();
        return got;
    }
};

}  // namespace riptide
