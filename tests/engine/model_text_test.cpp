// Prompts: where messages end, where state is kept.
#include "engine/prompt/model_text.h"

#include <gtest/gtest.h>

#include "tests/source_dir.h"

namespace riptide {
namespace {

EncodedPrompt prompt_of(int64_t size, std::vector<int64_t> ends, bool system = false) {
    EncodedPrompt prompt;
    prompt.tokens.assign(static_cast<size_t>(size), 1);
    prompt.message_ends = std::move(ends);
    prompt.opens_with_system = system;
    return prompt;
}
using Cuts = std::vector<int64_t>;

TEST(ModelText, state_is_kept_behind_the_system_prompt_the_last_messages_and_every_so_often) {
    EXPECT_EQ(choose_cuts(prompt_of(1, {}), 4096), Cuts{});
    EXPECT_EQ(choose_cuts(prompt_of(255, {}), 4096), Cuts{}) << "too short to be worth a checkpoint";
    EXPECT_EQ(choose_cuts(prompt_of(300, {}), 4096), Cuts{299});
    EXPECT_EQ(choose_cuts(prompt_of(300, {290}), 4096), Cuts{290}) << "near enough to the end";
    EXPECT_EQ(choose_cuts(prompt_of(300, {20, 300}), 4096), (Cuts{20, 299}));
    EXPECT_EQ(choose_cuts(prompt_of(1000, {50, 100, 200, 300, 990}, true), 4096), (Cuts{50, 300, 990}));
    EXPECT_EQ(choose_cuts(prompt_of(1000, {50, 100, 200, 300, 990}, false), 4096), (Cuts{300, 990}));
    EXPECT_EQ(choose_cuts(prompt_of(9000, {2000, 2500, 3500, 3600, 4096, 8990}, true), 4096),
              (Cuts{2000, 3500, 4096, 8192, 8990}));
    EXPECT_EQ(choose_cuts(prompt_of(4096, {}), 4096), Cuts{4095});
}

TEST(ModelText, messages_end_where_the_template_says_so_and_not_where_a_user_does) {
    const auto checkpoint = open_checkpoint(source_dir() + "/models/demo/laguna-demo.gguf");
    const ModelText text(*checkpoint);
    ASSERT_TRUE(text.chats());
    ChatPrompt chat;
    chat.messages = {{{"role", "system"}, {"content", "Be brief."}},
                     {{"role", "user"}, {"content", "I write </user> and </assistant> as I like."}},
                     {{"role", "assistant"}, {"content", "So do I."}},
                     {{"role", "user"}, {"content", "Good."}}};
    const EncodedPrompt prompt = text.encode(chat);
    EXPECT_TRUE(prompt.opens_with_system);
    ASSERT_EQ(prompt.message_ends.size(), 4U);
    const char* const ends[] = {"</system>", "</user>", "</assistant>", "</user>"};
    for (size_t i = 0; i < 4; ++i) {
        const auto tokens = std::span(prompt.tokens).first(static_cast<size_t>(prompt.message_ends[i]));
        EXPECT_TRUE(text.tokenizer()->decode(tokens).ends_with(ends[i])) << i;
    }
    // What was said before an edit stays the beginning of the prompt.
    chat.messages[3].as_object()["content"] = "Bad.";
    const EncodedPrompt edited = text.encode(chat);
    EXPECT_EQ(edited.message_ends[2], prompt.message_ends[2]);
    EXPECT_TRUE(
        std::equal(prompt.tokens.begin(), prompt.tokens.begin() + prompt.message_ends[2], edited.tokens.begin()));
    ASSERT_TRUE(prompt.make_parser);
    StreamEvents events;
    prompt.make_parser()->finish(events);
    EXPECT_EQ(events.size(), 1U);
}

TEST(ModelText, a_model_without_text_takes_tokens_only) {
    const ModelText none;
    EXPECT_EQ(none.encode(TokenPrompt{3, 4}).tokens, (std::vector<int32_t>{3, 4}));
    EXPECT_THROW(none.encode(TextPrompt{"hello"}), Error);
    EXPECT_THROW(none.encode(ChatPrompt{}), Error);
}

}  // namespace
}  // namespace riptide
