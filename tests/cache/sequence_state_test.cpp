#include "cache/sequence_state.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/batch_builder.h"
#include "tests/cache/fake_forward.h"

namespace riptide {
namespace {

using Ints = std::vector<int32_t>;

const std::vector<StateSpec> kTwoKinds{{StateSpec::Kind::paged, 2, 2, 0}, {StateSpec::Kind::window, 1, 2, 5}};

KvCacheOptions options(int32_t pages, int32_t sequences, int32_t step = 16) {
    return {.k_dtype = DType::f32,
            .v_dtype = DType::f32,
            .page_rows = 4,
            .pages = pages,
            .max_sequences = sequences,
            .max_step_rows = step};
}

/// Feeds a chain and commits it.
void feed(SequenceState& s, const Ints& tokens) {
    BatchBuilder builder;
    for (size_t begin = 0; begin < tokens.size(); begin += 8) {
        const size_t n = std::min<size_t>(8, tokens.size() - begin);
        ASSERT_TRUE(s.try_reserve(static_cast<int64_t>(n)));
        const StepRows step{.sequence = &s, .tokens = std::span(tokens).subspan(begin, n)};
        fake_append(s.cache().views(), builder.build({&step, 1}));
        s.commit_prefix(static_cast<int64_t>(n));
    }
}

Ints range(int32_t begin, int32_t end) {
    Ints x;
    for (int32_t i = begin; i < end; ++i) x.push_back(i);
    return x;
}

/// What the next token of s would see: feeds `probe` without keeping it.
void expect_content(SequenceState& s, Ints tokens, int32_t probe = 999) {
    ASSERT_EQ(s.length(), static_cast<int64_t>(tokens.size()));
    ASSERT_TRUE(s.try_reserve(1));
    BatchBuilder builder;
    const StepRows step{.sequence = &s, .tokens = {&probe, 1}};
    const Batch& batch = builder.build({&step, 1});
    fake_append(s.cache().views(), batch);
    tokens.push_back(probe);
    for (const KvView& view : s.cache().views()) {
        const size_t first = view.window > 0 && tokens.size() > static_cast<size_t>(view.window)
                                 ? tokens.size() - static_cast<size_t>(view.window)
                                 : 0;
        EXPECT_EQ(fake_read(view, batch, 0), Ints(tokens.begin() + static_cast<ptrdiff_t>(first), tokens.end()))
            << "window " << view.window;
    }
    s.commit_prefix(0);
}

TEST(sequence_state, holds_exactly_the_pages_of_its_tokens) {
    KvCache cache(kTwoKinds, options(10, 1));
    SequenceState s(cache);
    EXPECT_EQ(s.pages().size(), 0u);
    ASSERT_TRUE(s.try_reserve(9));
    EXPECT_EQ(s.pages().size(), 3u);
    EXPECT_EQ(s.reserved(), 9);
    s.commit_prefix(4);
    EXPECT_EQ(s.pages().size(), 1u);
    EXPECT_EQ(s.reserved(), 0);
    EXPECT_EQ(s.pages_needed(1), 1);
    EXPECT_EQ(cache.pool().free_count(), 9);
}

TEST(sequence_state, a_reservation_that_does_not_fit_changes_nothing) {
    KvCache cache(kTwoKinds, options(3, 2));
    SequenceState a(cache), b(cache);
    feed(a, range(0, 6));
    ASSERT_TRUE(b.try_reserve(4));
    EXPECT_FALSE(a.try_reserve(3));
    EXPECT_EQ(a.pages().size(), 2u);
    EXPECT_EQ(a.reserved(), 0);
    EXPECT_TRUE(a.try_reserve(2));
    a.commit_prefix(0);
    expect_content(a, range(0, 6));
}

TEST(sequence_state, commit_keeps_the_path_and_drops_the_rest) {
    KvCache cache(kTwoKinds, options(20, 1));
    SequenceState s(cache);
    feed(s, range(100, 107));
    ASSERT_TRUE(s.try_reserve(6));
    const Ints tokens{1, 2, 3, 4, 5, 6}, parents{-1, 0, 0, 2, 3, 1};
    const StepRows step{.sequence = &s, .tokens = tokens, .parents = parents};
    BatchBuilder builder;
    fake_append(cache.views(), builder.build({&step, 1}));
    s.commit(Ints{0, 2, 3, 4});
    Ints expected = range(100, 107);
    expected.insert(expected.end(), {1, 3, 4, 5});
    expect_content(s, expected);
    EXPECT_EQ(s.pages().size(), 3u);
}

TEST(sequence_state, truncate_frees_pages_and_the_rest_reads_on) {
    KvCache cache(kTwoKinds, options(40, 1));
    SequenceState s(cache);
    feed(s, range(0, 60));
    s.truncate(50);
    EXPECT_EQ(s.pages().size(), 13u);
    expect_content(s, range(0, 50));
    feed(s, range(50, 100));
    expect_content(s, range(0, 100));
    s.truncate(0);
    EXPECT_EQ(cache.pool().free_count(), 40);
    feed(s, range(7, 20));
    expect_content(s, range(7, 20));
}

TEST(sequence_state, truncate_refuses_what_the_ring_has_lost) {
    KvCache cache(kTwoKinds, options(100, 1));
    ASSERT_EQ(cache.view(1).ring_rows, 64);
    SequenceState s(cache);
    feed(s, range(0, 160));
    // A sequence of n tokens reads n - 4 .. n - 1; indices up to 159 were written, so 96 and later are still there.
    EXPECT_TRUE(s.can_truncate(100));
    EXPECT_FALSE(s.can_truncate(99));
    EXPECT_TRUE(s.can_truncate(0));
    EXPECT_THROW(s.truncate(99), Error);
    EXPECT_EQ(s.length(), 160);
    ASSERT_TRUE(s.try_reserve(1));  // might overwrite index 96
    s.commit_prefix(0);
    EXPECT_FALSE(s.can_truncate(100));
    s.truncate(101);
    expect_content(s, range(0, 101));
}

TEST(sequence_state, without_windows_any_length_is_reachable) {
    KvCache cache(std::vector{kTwoKinds[0]}, options(100, 1));
    SequenceState s(cache);
    feed(s, range(0, 200));
    s.truncate(3);
    expect_content(s, range(0, 3));
}

TEST(sequence_state, a_window_only_model_takes_no_pages) {
    KvCache cache(std::vector{kTwoKinds[1]}, options(0, 1));
    SequenceState s(cache);
    feed(s, range(0, 200));
    EXPECT_EQ(s.pages().size(), 0u);
    expect_content(s, range(0, 200));
}

TEST(sequence_state, fork_shares_pages_until_one_of_them_writes) {
    KvCache cache(kTwoKinds, options(20, 3));
    SequenceState a(cache);
    feed(a, range(0, 10));
    SequenceState b = a.fork();
    EXPECT_EQ(cache.pool().free_count(), 17);
    EXPECT_EQ(b.pages_needed(1), 1);
    feed(b, {50, 51, 52});
    EXPECT_EQ(a.pages()[1], b.pages()[1]);
    EXPECT_NE(a.pages()[2], b.pages()[2]);
    EXPECT_EQ(a.pages_needed(1), 0);  // its last page is its own again
    feed(a, {60});
    Ints left = range(0, 10), right = range(0, 10);
    left.push_back(60);
    right.insert(right.end(), {50, 51, 52});
    expect_content(a, left);
    expect_content(b, right);
}

TEST(sequence_state, fork_of_whole_pages_copies_nothing) {
    KvCache cache(kTwoKinds, options(20, 2));
    SequenceState a(cache);
    feed(a, range(0, 8));
    SequenceState b = a.fork();
    EXPECT_EQ(b.pages_needed(4), 1);
    feed(b, {1, 2});
    EXPECT_EQ(a.pages()[1], b.pages()[1]);
    expect_content(a, range(0, 8));
}

TEST(sequence_state, a_fork_may_be_shorter) {
    for (int64_t length = 20; length <= 30; ++length) {
        KvCache cache(kTwoKinds, options(100, 2));
        SequenceState a(cache);
        feed(a, range(0, 30));
        ASSERT_TRUE(a.can_truncate(length));
        SequenceState b = a.fork(length);
        EXPECT_EQ(b.length(), length);
        EXPECT_EQ(std::ssize(b.pages()), cache.pages_for(length));
        feed(b, {50, 51});
        Ints other = range(0, static_cast<int32_t>(length));
        other.insert(other.end(), {50, 51});
        expect_content(b, other);
        expect_content(a, range(0, 30));
    }
}

TEST(sequence_state, a_fork_cannot_go_back_beyond_what_it_copied) {
    KvCache cache(kTwoKinds, options(100, 2));
    SequenceState a(cache);
    feed(a, range(0, 30));
    SequenceState b = a.fork();
    EXPECT_TRUE(a.can_truncate(20));
    EXPECT_FALSE(b.can_truncate(20));
    EXPECT_TRUE(b.can_truncate(30));
    feed(b, range(30, 33));
    b.truncate(30);
    expect_content(b, range(0, 30));
}

TEST(sequence_state, without_a_free_slot_there_is_no_sequence) {
    KvCache cache(kTwoKinds, options(20, 1));
    SequenceState a(cache);
    EXPECT_THROW(SequenceState b(cache), Error);
    feed(a, range(0, 5));
    EXPECT_THROW(a.fork(), Error);
    EXPECT_EQ(cache.pool().free_count(), 18);
}

TEST(sequence_state, restore_goes_back_further_than_truncate_can) {
    KvCache cache(kTwoKinds, options(100, 1));
    SequenceState s(cache);
    feed(s, range(0, 10));
    const SavedState saved = s.save();
    feed(s, range(10, 200));
    EXPECT_FALSE(s.can_truncate(10));
    s.restore(saved);
    expect_content(s, range(0, 10));
    feed(s, range(300, 400));
    Ints expected = range(0, 10);
    for (const int32_t t : range(300, 400)) expected.push_back(t);
    expect_content(s, expected);
}

TEST(sequence_state, a_state_saved_over_another_is_the_new_one) {
    KvCache cache(kTwoKinds, options(100, 2));
    SequenceState a(cache), b(cache);
    feed(a, range(0, 40));
    feed(b, range(50, 53));
    SavedState saved = a.save();
    saved = b.save(std::move(saved));
    EXPECT_EQ(saved.length(), 3);
    EXPECT_EQ(saved.bytes(), b.save().bytes());
    saved = a.save(std::move(saved));
    EXPECT_EQ(saved.bytes(), a.save().bytes());
    feed(a, range(40, 60));
    a.restore(saved);
    expect_content(a, range(0, 40));
}

TEST(sequence_state, restore_into_an_empty_sequence_shares_the_pages) {
    KvCache cache(kTwoKinds, options(30, 2));
    SavedState saved;
    Ints pages;
    {
        SequenceState a(cache);
        feed(a, range(0, 14));
        saved = a.save();
        pages.assign(a.pages().begin(), a.pages().end());
        for (const int32_t page : pages) cache.pool().retain(page);
    }
    SequenceState b(cache);
    b.restore(saved, pages);
    expect_content(b, range(0, 14));
    feed(b, range(14, 40));
    expect_content(b, range(0, 40));
    SequenceState c(cache);
    c.restore(saved, pages);
    expect_content(c, range(0, 14));
    for (const int32_t page : pages) cache.pool().release(page);
}

TEST(sequence_state, restore_refuses_a_state_of_more_tokens_or_of_another_cache) {
    KvCache cache(kTwoKinds, options(30, 1));
    SequenceState s(cache);
    feed(s, range(0, 9));
    const SavedState saved = s.save();
    s.truncate(8);
    EXPECT_THROW(s.restore(saved), Error);  // longer than the sequence
    expect_content(s, range(0, 8));

    KvCache other(kTwoKinds, options(30, 1));
    SequenceState t(other);
    feed(t, range(0, 9));
    EXPECT_THROW(t.restore(saved), Error);
    expect_content(t, range(0, 9));
}

TEST(sequence_state, restore_refuses_a_wrong_number_of_pages) {
    KvCache cache(kTwoKinds, options(30, 2));
    SequenceState a(cache), b(cache);
    feed(a, range(0, 9));
    const SavedState saved = a.save();
    EXPECT_THROW(b.restore(saved, a.pages().first(2)), Error);
    EXPECT_EQ(b.length(), 0);
    EXPECT_EQ(cache.pool().refcount(a.pages()[0]), 1);
}

TEST(sequence_state, a_moved_sequence_leaves_nothing_behind) {
    KvCache cache(kTwoKinds, options(30, 2));
    {
        SequenceState a(cache);
        feed(a, range(0, 9));
        SequenceState b = std::move(a);
        expect_content(b, range(0, 9));
        SequenceState c(cache);
        feed(c, range(0, 3));
        c = std::move(b);
        expect_content(c, range(0, 9));
        EXPECT_EQ(cache.pool().free_count(), 27);
        EXPECT_EQ(cache.free_slots(), 1);
    }
    EXPECT_EQ(cache.pool().free_count(), 30);
    EXPECT_EQ(cache.free_slots(), 2);
}

}  // namespace
}  // namespace riptide
