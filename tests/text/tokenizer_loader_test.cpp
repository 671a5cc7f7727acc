// Both file formats give the same tokenizer; malformed files are refused by name.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "tests/text/small_vocabulary.h"

namespace riptide {
namespace {

SmallVocabulary few_merges() {
    SmallVocabulary v;
    v.merges = {{"a", "b"}, {"ab", "c"}, {" ", "a"}};
    return v;
}

template <class Change>
std::string gguf_error(Change change) {
    json::object metadata = few_merges().gguf();
    change(metadata);
    try {
        Tokenizer::from_gguf(metadata, "bad.gguf");
    } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::data);
        EXPECT_EQ(std::string(e.what()).find("bad.gguf"), 0u) << e.what();
        EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
        return e.what();
    }
    return "no error";
}

template <class Change>
std::string hf_error(Change change) {
    json::object root = few_merges().hf();
    json::object config;
    change(root, config);
    try {
        const json::value wrapped = config;
        Tokenizer::from_hf(root, &wrapped, "bad.json");
    } catch (const Error& e) {
        EXPECT_EQ(std::string(e.what()).find("bad.json"), 0u) << e.what();
        return e.what();
    }
    return "no error";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(tokenizer_loader, gguf_and_hugging_face_give_the_same_tokenizer) {
    const SmallVocabulary v = few_merges();
    const Tokenizer gguf = v.tokenizer();
    for (const bool pairs : {false, true}) {
        const Tokenizer hf = Tokenizer::from_hf(v.hf(pairs), nullptr, "t.json");
        EXPECT_EQ(hf.fingerprint(), gguf.fingerprint());
        const std::string text = "abc ab\r\n<think> 12\u00A0x";
        for (const bool special : {false, true}) {
            const EncodeOptions options = {.add_special = special, .parse_special = special};
            EXPECT_EQ(hf.encode(text, options), gguf.encode(text, options));
        }
    }
}

TEST(tokenizer_loader, fingerprint_is_stable_and_sees_every_part) {
    const SmallVocabulary v = few_merges();
    const uint64_t base = v.tokenizer().fingerprint();
    EXPECT_EQ(base, v.tokenizer().fingerprint());
    EXPECT_EQ(base, 0xaef10539da539108u);  // files elsewhere may hold it: it never changes
    SmallVocabulary other = v;
    std::swap(other.merges[0], other.merges[2]);
    EXPECT_NE(other.tokenizer().fingerprint(), base);
    other = v;
    other.pre = "qwen2";
    EXPECT_NE(other.tokenizer().fingerprint(), base);
    other = v;
    other.specials[2].text = "<thinks>";
    EXPECT_NE(other.tokenizer().fingerprint(), base);
    other = v;
    other.specials[2].special = true;  // only the name of the kind differs: both are matched as a whole
    EXPECT_EQ(other.tokenizer().fingerprint(), base);
}

TEST(tokenizer_loader, unused_entries_are_padding) {
    json::object padded = few_merges().gguf();
    padded["tokenizer.ggml.tokens"].as_array().emplace_back("[PAD1]");
    padded["tokenizer.ggml.token_type"].as_array().emplace_back(5);
    const Tokenizer t = Tokenizer::from_gguf(padded, "t.gguf");
    EXPECT_EQ(t.fingerprint(), few_merges().tokenizer().fingerprint());
    EXPECT_EQ(t.vocab_size(), few_merges().tokenizer().vocab_size() + 1);
    for (const int32_t id : t.encode("[PAD1]", {.parse_special = true})) EXPECT_NE(id, t.vocab_size() - 1);
}

TEST(tokenizer_loader, config_names_special_tokens_and_has_the_last_word) {
    json::object root = few_merges().hf();
    const json::value config = {{"bos_token", "〈|EOS|〉"},
                                {"eos_token", {{"content", "〈|EOS|〉"}, {"lstrip", false}}},
                                {"unk_token", "〈|UNK|〉"},
                                {"added_tokens_decoder", {{"4", {{"content", "</assistant>"}, {"special", true}}}}}};
    const Tokenizer t = Tokenizer::from_hf(root, &config, "t.json");
    EXPECT_EQ(t.bos(), 1);
    EXPECT_EQ(t.eos(), 1);
    EXPECT_EQ(t.unk(), 0);
    EXPECT_TRUE(t.is_special(4));
    EXPECT_EQ(t.stop_ids(), (std::vector<int32_t>{1, 4}));
}

TEST(tokenizer_loader, nfc_normalizer_is_applied) {
    json::object root = few_merges().hf();
    root["normalizer"] = {{"type", "NFC"}};
    const Tokenizer t = Tokenizer::from_hf(root, nullptr, "t.json");
    EXPECT_EQ(t.decode(t.encode("e\u0301 <think>e\u0301", {.parse_special = true})), "\u00E9 <think>\u00E9");
}

TEST(tokenizer_loader, gguf_errors_name_the_entry) {
    using Object = json::object;
    const auto edit_token = [](std::size_t i, json::value value) {
        return [i, value](Object& m) { m["tokenizer.ggml.tokens"].as_array()[i] = value; };
    };
    const auto edit_merge = [](json::value value) {
        return [value](Object& m) { m["tokenizer.ggml.merges"].as_array()[1] = value; };
    };
    const auto set = [](const char* key, json::value value) { return [key, value](Object& m) { m[key] = value; }; };
    for (const char* key :
         {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
        EXPECT_HAS(gguf_error([&](Object& m) { m.erase(key); }), key);
        EXPECT_HAS(gguf_error(set(key, 7)), key);
    }
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.model", "llama")), "llama");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.pre", "nonsense")), "nonsense");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.tokens", json::array())), "token");
    EXPECT_HAS(gguf_error(edit_token(9, 5)), "entry 9");
    EXPECT_HAS(gguf_error(edit_token(100, "")), "token 100");
    EXPECT_HAS(gguf_error(edit_token(9, "a")), "tokens 9 and");
    EXPECT_HAS(gguf_error(edit_token(9, json::string(70000, 'x'))), "70000 bytes");
    EXPECT_HAS(gguf_error(edit_token(2, json::string(2000, 'x'))), "2000 bytes");
    EXPECT_HAS(gguf_error(edit_merge("ab")), "merge 1");
    EXPECT_HAS(gguf_error(edit_merge("a b c")), "merge 1");
    EXPECT_HAS(gguf_error(edit_merge(" a")), "merge 1");
    EXPECT_HAS(gguf_error(edit_merge("a ")), "merge 1");
    EXPECT_HAS(gguf_error(edit_merge("")), "merge 1");
    EXPECT_HAS(gguf_error(edit_merge(3)), "entry 1");
    EXPECT_HAS(gguf_error(edit_merge("a qq")), "\"qq\"");
    EXPECT_HAS(gguf_error(edit_merge("b a")), "\"ba\"");
    EXPECT_HAS(gguf_error(edit_merge("a b")), "twice");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.bos_token_id", 100000)), "bos_token_id");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.eos_token_id", -1)), "eos_token_id");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.eot_token_id", 0xFFFFFFFFFFFFFFFFu)), "eot_token_id");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.padding_token_id", "9")), "padding_token_id");
    EXPECT_HAS(gguf_error(set("tokenizer.ggml.add_bos_token", 1)), "add_bos_token");
    EXPECT_HAS(gguf_error([](Object& m) { m.erase("tokenizer.ggml.bos_token_id"); }), "bos_token_id is missing");
    EXPECT_HAS(gguf_error([](Object& m) { m["tokenizer.ggml.token_type"].as_array().pop_back(); }), "token_type");
    EXPECT_HAS(gguf_error([](Object& m) { m["tokenizer.ggml.token_type"].as_array()[7] = 6; }), "token 7 is 6");
    EXPECT_HAS(gguf_error([](Object& m) { m["tokenizer.ggml.token_type"].as_array()[7] = -1; }), "token_type");
}

TEST(tokenizer_loader, hugging_face_errors_name_the_entry) {
    using Object = json::object;
    const auto model = [](std::function<void(Object&)> change) {
        return [change](Object& root, Object&) { change(root["model"].as_object()); };
    };
    const auto set = [](const char* key, json::value value) {
        return [key, value](Object& root, Object&) { root[key] = value; };
    };
    EXPECT_HAS(hf_error([](Object& root, Object&) { root.erase("model"); }), "model");
    EXPECT_HAS(hf_error(model([](Object& m) { m["type"] = "Unigram"; })), "Unigram");
    EXPECT_HAS(hf_error(model([](Object& m) { m["byte_fallback"] = true; })), "byte_fallback");
    EXPECT_HAS(hf_error(model([](Object& m) { m["continuing_subword_prefix"] = "##"; })), "continuing_subword_prefix");
    EXPECT_HAS(hf_error(model([](Object& m) { m["vocab"].as_object()["zz"] = 3; })), "same id");
    EXPECT_HAS(hf_error(model([](Object& m) { m["vocab"].as_object()["zz"] = 1 << 20; })), "vocab");
    EXPECT_HAS(hf_error(model([](Object& m) { m["vocab"].as_object()["zz"] = -1; })), "vocab");
    EXPECT_HAS(hf_error(model([](Object& m) { m["vocab"].as_object()["zz"] = "1"; })), "zz");
    EXPECT_HAS(hf_error(model([](Object& m) { m["vocab"].as_object().erase("a"); })), "no token has id");
    EXPECT_HAS(hf_error(model([](Object& m) { m["merges"].as_array()[1] = json::array{"a", "b", "c"}; })), "merge 1");
    EXPECT_HAS(hf_error(model([](Object& m) { m["merges"].as_array()[1] = "a qq"; })), "qq");
    EXPECT_HAS(
        hf_error([](Object& root, Object&) { root["added_tokens"].as_array()[2].as_object()["content"] = "other"; }),
        "id 2");
    EXPECT_HAS(
        hf_error([](Object& root, Object&) { root["added_tokens"].as_array()[2].as_object()["single_word"] = true; }),
        "single_word");
    EXPECT_HAS(hf_error([](Object& root, Object&) { root["added_tokens"].as_array()[2] = 5; }), "added_tokens");
    EXPECT_HAS(hf_error(set("normalizer", {{"type", "Lowercase"}})), "Lowercase");
    EXPECT_HAS(hf_error(set("post_processor", {{"type", "BertProcessing"}})), "BertProcessing");
    EXPECT_HAS(hf_error(set("post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}})), "single");
    EXPECT_HAS(hf_error(set("pre_tokenizer", {{"type", "Whitespace"}})), "Whitespace");
    EXPECT_HAS(hf_error([](Object&, Object& config) { config["eos_token"] = "nobody"; }), "nobody");
    EXPECT_HAS(hf_error([](Object&, Object& config) {
                   config["added_tokens_decoder"] = {{"-1", json::object()}};
               }),
               "-1");
    EXPECT_HAS(hf_error([](Object&, Object& config) {
                   config["added_tokens_decoder"] = {{"99999999999999999999", json::object()}};
               }),
               "9999");
    EXPECT_THROW(Tokenizer::from_hf(json::value(3), nullptr, "t.json"), Error);
}

TEST(tokenizer_loader, a_missing_byte_is_the_unknown_token_or_an_error_when_it_comes) {
    json::object metadata = few_merges().gguf();
    metadata["tokenizer.ggml.tokens"].as_array()[5 + 'z'] = "zz";
    const Tokenizer without = Tokenizer::from_gguf(metadata, "t.gguf");
    EXPECT_NO_THROW(without.encode("abc"));
    EXPECT_THROW(without.encode("z"), Error);
    metadata["tokenizer.ggml.unknown_token_id"] = 0;
    EXPECT_EQ(Tokenizer::from_gguf(metadata, "t.gguf").encode("z"), std::vector<int32_t>{0});
}

}  // namespace
}  // namespace riptide

#undef EXPECT_HAS
