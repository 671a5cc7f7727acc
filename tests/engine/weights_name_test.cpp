// Weights are what they hold: copies share the records on disk, and what was changed never meets them.
#include "base/digest_memo.h"
#include "engine/prompt/weights_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/engine_world.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

/// Bytes that are minutes' work.
constexpr int64_t kVeryLong = WeightsDigest::kBytesPerSecond * 400;

class WeightsName : public ::testing::Test {
  protected:
    WeightsName() {
        std::string name = ::testing::TempDir() + "/riptide-weights-XXXXXX";
        folder = ::mkdtemp(name.data());
    }
    ~WeightsName() override { fs::remove_all(folder); }

    /// A copy of the demo model.
    std::string copy(const std::string& name) const {
        const std::string path = folder + "/" + name;
        fs::create_directories(fs::path(path).parent_path());
        fs::copy_file(demo_path(), path);
        return path;
    }
    /// Turns one byte of a tensor of the demo model round; size and date stay as they are.
    static void change(const std::string& path) {
        const auto checkpoint = open_checkpoint(path);
        const auto at = checkpoint->find("output_norm.weight")->bytes.data() - checkpoint->files()[0].bytes().data();
        struct stat status = {};
        ASSERT_EQ(::stat(path.c_str(), &status), 0);
        const int fd = ::open(path.c_str(), O_RDWR);
        unsigned char byte = 0;
        ASSERT_EQ(::pread(fd, &byte, 1, at + 3), 1);
        byte ^= 0x81;  // sign and exponent of the first value
        ASSERT_EQ(::pwrite(fd, &byte, 1, at + 3), 1);
        const timespec dates[2] = {status.st_atim, status.st_mtim};
        ASSERT_EQ(::futimens(fd, dates), 0);
        ::close(fd);
    }
    virtual std::unique_ptr<Checkpoint> load(const std::string& path) const { return open_checkpoint(path); }
    /// Opens an engine with a disk tier, and waits until it knows the weights by their content, if it can.
    Engine& open(const std::string& path, bool wait = true) {
        engine.reset();
        news.clear();
        EngineOptions o = demo_options();
        o.host_cache_bytes = 0;
        o.disk_cache = folder + "/tier";
        o.digests = memo;
        o.on_disk_news = [this](const std::string& what) {
            const std::lock_guard lock(mutex);
            news.push_back(what);
            heard.notify_all();
        };
        bool known = false;
        for (const std::string& one : {memo, folder + "/tier/digests"})
            known = known || DigestMemo(one).find(path, stamp_of(path));
        engine = std::make_unique<Engine>(load(path), o);
        if (wait && !known) hear();
        return *engine;
    }
    void hear() {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(heard.wait_for(lock, kPatience, [this] { return !news.empty(); }));
    }
    static Heard answer(Engine& of) {
        Request request = continuation(std::vector<int32_t>(300, 21), 20);
        request.deterministic = true;
        return ask(of, request);
    }
    /// Tokens from the cache; the answer must be the one that no cache gives.
    static int64_t cached(Engine& of, const std::vector<int32_t>& cold) {
        const Heard got = answer(of);
        EXPECT_EQ(got.tokens, cold);
        return got.done->usage.cached;
    }
    static std::vector<int32_t> cold_answer(const std::string& path) {
        EngineOptions o = demo_options();
        o.prefix_cache = false;
        return answer(*Engine::open(path, o)).tokens;
    }

    std::string folder, memo;
    std::mutex mutex;
    std::condition_variable heard;
    std::vector<std::string> news;
    std::unique_ptr<Engine> engine;
};

TEST_F(WeightsName, a_copy_at_another_path_finds_the_records_of_the_first) {
    memo = folder + "/digests";
    const std::string a = copy("a/model.gguf"), b = copy("b/other-name.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    EXPECT_EQ(cached(open(a), cold), 0);
    EXPECT_NE(news.at(0).find("SHA-256"), std::string::npos) << news.at(0);
    EXPECT_GT(cached(open(b), cold), 200);
    EXPECT_GT(cached(open(a), cold), 200);
    EXPECT_TRUE(news.empty()) << "what is remembered is not computed again: " << news.at(0);
}

TEST_F(WeightsName, it_is_remembered_beside_the_records_too) {
    const std::string a = copy("a.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    for (const bool again : {false, true}) {
        memo = again ? folder + "/digests" : "";  // which is empty
        EXPECT_EQ(cached(open(a), cold) > 200, again);
        EXPECT_EQ(news.empty(), again);
    }
}

TEST_F(WeightsName, a_new_date_changes_nothing_once_the_digest_is_known) {
    memo = folder + "/digests";
    const std::string a = copy("a.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    EXPECT_EQ(cached(open(a), cold), 0);
    engine.reset();
    fs::last_write_time(a, fs::last_write_time(a) - std::chrono::hours(1));
    EXPECT_GT(cached(open(a), cold), 200);
    EXPECT_FALSE(news.empty()) << "the file has another stamp";
}

TEST_F(WeightsName, one_byte_of_one_tensor_is_another_name_though_size_and_date_are_kept) {
    memo = folder + "/digests";
    const std::string a = copy("a.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    EXPECT_EQ(cached(open(a), cold), 0);
    engine.reset();
    change(a);
    const std::vector<int32_t> changed = cold_answer(a);
    ASSERT_NE(changed, cold);
    EXPECT_EQ(cached(open(a, false), changed), 0) << "nor is it known by its old name until the digest is there";
    hear();
    EXPECT_GT(cached(*engine, changed), 200) << "of its own";
    EXPECT_GT(cached(open(a), changed), 200);
    change(a);  // and back
    EXPECT_GT(cached(open(a), cold), 200) << "of the first";
}

/// A model of a file, and of a second one that no reader comes to the end of.
class EndlessModel final : public Checkpoint {
  public:
    explicit EndlessModel(const std::string& path) : model_(open_checkpoint(path)) {
        files_.emplace_back(path);
        files_.emplace_back(path + ".slow");
    }
    Format format() const override { return model_->format(); }
    const std::string& path() const override { return model_->path(); }
    std::span<const TensorInfo> tensors() const override { return model_->tensors(); }
    const TensorInfo* find(std::string_view name) const override { return model_->find(name); }
    const json::object& metadata() const override { return model_->metadata(); }
    void check_intact() const override { model_->check_intact(); }
    std::span<const MappedFile> files() const override { return files_; }

  private:
    std::unique_ptr<Checkpoint> model_;
    std::vector<MappedFile> files_;
};

class SlowWeights : public WeightsName {
  protected:
    std::string slow_copy(const std::string& name) const {
        const std::string path = copy(name);
        write_file_atomic(path + ".slow", "");
        fs::resize_file(path + ".slow", static_cast<uintmax_t>(kVeryLong));  // zeros that no disk has
        return path;
    }
    std::unique_ptr<Checkpoint> load(const std::string& path) const override {
        return std::make_unique<EndlessModel>(path);
    }
};

TEST_F(SlowWeights, what_is_saved_before_the_digest_is_known_is_found_before_and_after) {
    memo = folder + "/digests";
    const std::string a = slow_copy("a.gguf"), b = slow_copy("b.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    EXPECT_EQ(cached(open(a, false), cold), 0) << "nobody waits for the digest";
    EXPECT_GT(cached(open(a, false), cold), 200) << "behind a restart that did not wait for it either";
    EXPECT_EQ(cached(open(b, false), cold), 0) << "another file, for all that is known";
    engine.reset();
    const auto say = [&](const std::string& path) {  // as who has read it
        for (const std::string& file : {path, path + ".slow"}) DigestMemo(memo).add(file, stamp_of(file), sha256({}));
    };
    say(a);
    EXPECT_GT(cached(open(a, false), cold), 200) << "by the digest's name";
    say(b);
    EXPECT_GT(cached(open(b, false), cold), 200) << "for a copy, too";
    EXPECT_TRUE(news.empty());
}

TEST_F(WeightsName, a_reload_finds_nothing_of_the_old_weights_and_later_starts_find_each_their_own) {
    for (const bool remembered : {true, false}) {
        fs::remove_all(folder + "/tier");
        memo = remembered ? folder + "/digests" : "";
        const std::string a = copy(remembered ? "a1.gguf" : "a2.gguf"), b = copy(remembered ? "b1.gguf" : "b2.gguf");
        change(b);
        const std::vector<int32_t> cold = cold_answer(a), other = cold_answer(b);
        ASSERT_NE(cold, other);
        EXPECT_EQ(cached(open(a), cold), 0);
        EXPECT_EQ(cached(open(b), other), 0);
        open(a);
        EXPECT_GT(cached(*engine, cold), 200);
        engine->reload(b);
        EXPECT_EQ(answer(*engine).tokens, other);
        engine->reload(a);
        EXPECT_EQ(answer(*engine).tokens, cold);
        EXPECT_GT(cached(open(b), other), 200);
        EXPECT_GT(cached(open(a), cold), 200);
    }
}

TEST_F(WeightsName, a_file_changed_under_the_engine_leaves_no_record_that_anybody_finds) {
    RT_CPU_ONLY("on a GPU the weights are copies");
    memo = folder + "/digests";
    const std::string a = copy("a.gguf"), b = copy("b.gguf");
    const std::vector<int32_t> cold = cold_answer(a);
    open(a);
    change(a);
    fs::last_write_time(a, fs::last_write_time(a) + std::chrono::seconds(1));
    answer(*engine);
    EXPECT_EQ(cached(open(b), cold), 0);
    const std::vector<int32_t> changed = cold_answer(a);
    EXPECT_EQ(cached(open(a), changed), 0);
}

/// A checkpoint of these files, which nobody parses.
class SomeFiles final : public Checkpoint {
  public:
    explicit SomeFiles(std::initializer_list<std::string> paths) {
        for (const std::string& path : paths) files_.emplace_back(path);
    }
    Format format() const override { return Format::safetensors; }
    const std::string& path() const override { return files_.front().path(); }
    std::span<const TensorInfo> tensors() const override { return {}; }
    const TensorInfo* find(std::string_view) const override { return nullptr; }
    const json::object& metadata() const override { return nothing_; }
    void check_intact() const override {}
    std::span<const MappedFile> files() const override { return files_; }

  private:
    std::vector<MappedFile> files_;
    json::object nothing_;
};

class ContentDigest : public WeightsName {
  protected:
    std::string file(const std::string& name, const std::string& text) const {
        write_file_atomic(folder + "/" + name, text);
        return folder + "/" + name;
    }
    static void await(const WeightsDigest& digest) {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (!digest.settled() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        ASSERT_TRUE(digest.settled());
    }
    std::optional<Digest> of(std::initializer_list<std::string> paths) const {
        const SomeFiles files(paths);
        const WeightsDigest digest(files, {DigestMemo(memo)});
        await(digest);
        return digest.digest();
    }
};

TEST_F(ContentDigest, files_count_by_content_and_order_and_not_by_name_or_date) {
    const std::string big(3'000'001, 'w');
    const std::string a = file("a", big), b = file("b", "more"), c = file("c", big), d = file("d", "more");
    fs::last_write_time(c, fs::last_write_time(c) - std::chrono::hours(1));
    EXPECT_EQ(of({a, b}), of({c, d}));
    EXPECT_NE(of({a, b}), of({b, a}));
    EXPECT_NE(of({a, b}), of({a}));
    EXPECT_NE(of({a, file("e", "")}), of({a}));
    EXPECT_NE(of({a, b}), of({file("f", big + "m"), file("g", "ore")})) << "where one ends counts";
}

TEST_F(ContentDigest, of_several_files_those_that_are_known_are_not_read) {
    const std::string a = file("a", "aa"), b = file("b", "bb"), slow = file("slow", "");
    fs::resize_file(slow, static_cast<uintmax_t>(kVeryLong));
    memo = folder + "/digests";
    const Digest said = sha256({});
    DigestMemo(memo).add(slow, stamp_of(slow), said);
    const std::optional<Digest> once = of({a, slow, b});
    ASSERT_TRUE(once);
    EXPECT_EQ(DigestMemo(memo).find(slow, stamp_of(slow)), said);
    for (const std::string& one : {a, b}) EXPECT_TRUE(DigestMemo(memo).find(one, stamp_of(one))) << one;
    const SomeFiles files({a, slow, b});
    const WeightsDigest known(files, {DigestMemo(memo)});
    EXPECT_TRUE(known.settled()) << "at once";
    EXPECT_EQ(known.digest(), once);
    EXPECT_EQ(known.note(), "");
}

TEST_F(ContentDigest, who_ends_does_not_wait_for_it) {
    const std::string slow = file("slow", "");
    fs::resize_file(slow, static_cast<uintmax_t>(kVeryLong));
    memo = folder + "/digests";
    const SomeFiles files({slow});
    for (int i = 0; i < 3; ++i) {
        const WeightsDigest digest(files, {DigestMemo(memo)});
        EXPECT_FALSE(digest.settled());
    }
    EXPECT_EQ(DigestMemo(memo).find(slow, stamp_of(slow)), std::nullopt);
}

TEST_F(ContentDigest, a_file_that_is_not_what_was_opened_has_none_and_it_is_said_why) {
    const std::string a = file("a", std::string(100, 'a'));
    memo = folder + "/digests";
    const SomeFiles files({a});
    fs::last_write_time(a, fs::last_write_time(a) - std::chrono::hours(1));
    const WeightsDigest digest(files, {DigestMemo(memo)});
    await(digest);
    EXPECT_EQ(digest.digest(), std::nullopt);
    EXPECT_NE(digest.note().find("was changed while in use"), std::string::npos) << digest.note();
    EXPECT_EQ(DigestMemo(memo).find(a, stamp_of(a)), std::nullopt);
}

TEST_F(ContentDigest, a_memo_that_cannot_be_written_costs_the_next_start_and_is_said) {
    const std::string a = file("a", "aa");
    memo = folder + "/a/digests";
    const SomeFiles files({a});
    const WeightsDigest digest(files, {DigestMemo(memo)});
    await(digest);
    EXPECT_TRUE(digest.digest());
    EXPECT_NE(digest.note().find("not remembered"), std::string::npos) << digest.note();
}

TEST_F(ContentDigest, what_was_never_a_file_goes_by_its_tensors) {
    const auto of_image = [](float value) {
        FakeCheckpoint image;
        image.add<float>("t", DType::f32, {2}, {1.0F, value});
        const WeightsDigest digest(image, {});
        EXPECT_TRUE(digest.settled());
        return digest.digest();
    };
    EXPECT_EQ(of_image(2), of_image(2));
    EXPECT_NE(of_image(2), of_image(3));
}

}  // namespace
}  // namespace riptide::testing
