// Forms that several ask for at the same time are compiled once.
#include <functional>
#include <future>
#include <set>

#include "engine/sampling/form_cache.h"
#include "tests/engine/engine_world.h"
#include "tests/text/small_vocabulary.h"

namespace riptide::testing {
namespace {

/// What the grammar of the dialect below does: a function of how often it has been asked for.
std::function<void(int)> making_a_form;
std::atomic<int> forms_made = 0;

Grammar make_a_form(const AnswerForm&, WorkBudget* work) {
    making_a_form(++forms_made);
    Grammar grammar(work);
    grammar.set_root(grammar.text("a"));
    return grammar;
}

class FormsAtOnce : public ::testing::Test {
  protected:
    FormsAtOnce() { forms_made = 0; }
    ~FormsAtOnce() override { making_a_form = nullptr; }

    static Dialect made_by_the_test() {
        Dialect out = dialects()[0];
        out.name = "made by the test";
        out.grammar = make_a_form;
        return out;
    }
    std::shared_ptr<Constraint> get(WorkBudget* work = nullptr) {
        return constrainer->get(tokenizer, dialect, {}, work);
    }
    /// Asks for the form in another thread.
    std::future<std::shared_ptr<Constraint>> ask(WorkBudget* work = nullptr) {
        return std::async(std::launch::async, [this, work] { return get(work); });
    }
    /// Waits for what it makes, until somebody who came later has waited for it in vain.
    void be_waited_for() {
        WorkBudget impatient;
        impatient.end_at(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
        std::async(std::launch::async, [&] { EXPECT_THROW(get(&impatient), WorkLate); }).wait();
        EXPECT_EQ(impatient.steps_spent(), 0);
    }

    const Tokenizer tokenizer = SmallVocabulary().tokenizer();
    const Dialect dialect = made_by_the_test();
    std::unique_ptr<Constrainer> constrainer = std::make_unique<Constrainer>();
};

TEST_F(FormsAtOnce, are_compiled_once) {
    std::vector<std::future<std::shared_ptr<Constraint>>> others;
    making_a_form = [&](int count) {
        if (count > 1) return;
        be_waited_for();
        for (int i = 0; i < 8; ++i) others.push_back(ask());
        be_waited_for();
    };
    const std::shared_ptr<Constraint> made = get();
    ASSERT_TRUE(made);
    for (auto& other : others) EXPECT_EQ(other.get(), made);
    EXPECT_EQ(get(), made);
    EXPECT_EQ(forms_made, 1);
}

TEST_F(FormsAtOnce, are_at_fault_for_all_who_wait) {
    constexpr int kOthers = 8;
    std::vector<std::future<std::shared_ptr<Constraint>>> others;
    making_a_form = [&](int count) {
        if (count == 1) {
            for (int i = 0; i < kOthers; ++i) others.push_back(ask());
            be_waited_for();
        }
        throw GrammarError("no such form");
    };
    EXPECT_THROW(get(), GrammarError);
    for (auto& other : others) EXPECT_THROW(other.get(), GrammarError);
    const int made = forms_made;
    EXPECT_LE(made, kOthers) << "only who asked when it was over made it again";
    EXPECT_THROW(get(), GrammarError) << "what is at fault is not kept";
    EXPECT_EQ(forms_made, made + 1);
}

TEST_F(FormsAtOnce, are_made_by_who_waits_where_the_first_is_stopped_or_late) {
    for (const bool late : {false, true}) {
        forms_made = 0;
        constrainer = std::make_unique<Constrainer>();
        std::stop_source gone;
        WorkBudget work(WorkBudget::kUnlimited, gone.get_token());
        if (late) work.end_at(std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
        std::vector<std::future<std::shared_ptr<Constraint>>> others;
        making_a_form = [&](int count) {
            if (count > 1) return;
            for (int i = 0; i < 4; ++i) others.push_back(ask());
            be_waited_for();
            if (!late) gone.request_stop();
            for (;;) work.look();
        };
        if (late) {
            EXPECT_THROW(get(&work), WorkLate);
        } else {
            EXPECT_THROW(get(&work), WorkStopped);
        }
        std::set<std::shared_ptr<Constraint>> made;
        for (auto& other : others) made.insert(other.get());
        EXPECT_EQ(made.size(), 1U);
        EXPECT_TRUE(*made.begin());
        EXPECT_EQ(forms_made, 2);
    }
}

TEST_F(FormsAtOnce, end_the_wait_of_who_has_gone) {
    making_a_form = [&](int count) {
        if (count > 1) return;
        std::stop_source gone;
        WorkBudget work(WorkBudget::kUnlimited, gone.get_token());
        auto other = ask(&work);
        be_waited_for();
        gone.request_stop();
        EXPECT_THROW(other.get(), WorkStopped);
    };
    EXPECT_TRUE(get());
    EXPECT_EQ(forms_made, 1);
}

}  // namespace
}  // namespace riptide::testing
