// PreTokenizer from the `pre_tokenizer` part of a Hugging Face tokenizer.json.
#include "base/error.h"
#include "text/json_fields.h"
#include "text/tokenizer/pretokenizer.h"

namespace riptide {
namespace {

SplitBehaviour behaviour_of(std::string_view name, std::string_view what) {
    if (name == "Isolated") return SplitBehaviour::isolated;
    if (name == "Removed") return SplitBehaviour::removed;
    if (name == "MergedWithPrevious") return SplitBehaviour::merged_with_previous;
    if (name == "MergedWithNext") return SplitBehaviour::merged_with_next;
    if (name == "Contiguous") return SplitBehaviour::contiguous;
    fail("{}: unknown behavior {:?}", what, name);
}

std::string escaped(std::string_view literal) {
    std::string out;
    for (const char c : literal) {
        if (std::string_view(R"(\^$.[]|()?*+{}-#&)").find(c) != std::string_view::npos) out.push_back('\\');
        out.push_back(c);
    }
    return out;
}

}  // namespace

PreTokenizer PreTokenizer::from_hf(const json::value& node, std::string_view what) {
    PreTokenizer out;
    if (node.is_null()) return out;
    RT_CHECK(node.is_object(), "{}: expected an object", what);
    out.add_hf(node.get_object(), what);
    return out;
}

void PreTokenizer::add_hf_split(const json::object& node, std::string_view what) {
    const json::object& pattern = field_object(node, "pattern", what);
    const bool is_regex = pattern.contains("Regex");
    const std::string_view text = field_string(pattern, is_regex ? "Regex" : "String", what);
    add(is_regex ? std::string(text) : escaped(text), behaviour_of(field_string(node, "behavior", what), what),
        field_bool_or(node, "invert", false, what), what);
}

void PreTokenizer::add_hf(const json::object& node, std::string_view what) {
    const std::string_view type = field_string(node, "type", what);
    if (type == "Sequence") {
        for (const json::value& child : field_array(node, "pretokenizers", what)) {
            RT_CHECK(child.is_object(), "{}: pretokenizers holds something that is no object", what);
            RT_CHECK(rules_.size() < 16, "{}: more than 16 rules", what);
            RT_CHECK(field_string(child.get_object(), "type", what) != "Sequence", "{}: a Sequence inside a Sequence",
                     what);
            add_hf(child.get_object(), what);
        }
    } else if (type == "Split") {
        add_hf_split(node, what);
    } else if (type == "Digits") {
        const bool individual = field_bool_or(node, "individual_digits", false, what);
        add(R"(\p{N})", individual ? SplitBehaviour::isolated : SplitBehaviour::contiguous, false, what);
    } else if (type == "ByteLevel") {
        RT_CHECK(!field_bool_or(node, "add_prefix_space", true, what),
                 "{}: ByteLevel with add_prefix_space is not supported (it changes the text)", what);
        if (!field_bool_or(node, "use_regex", true, what)) return;
        for (Rule& rule : from_ggml("gpt-2", what).rules_) rules_.push_back(std::move(rule));
    } else {
        fail("{}: type {:?} is not supported; supported are Sequence, Split, Digits, ByteLevel", what, type);
    }
}

}  // namespace riptide
