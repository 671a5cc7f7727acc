// Laws: a schema of any words gives a constraint or GrammarError; what a walk through it ends with is JSON and valid;
// a value that is not valid is never taken, and one that is valid is, unless its members may come in several orders;
// and Riptide's own judgement of values is that of another judge. Input: choices, of which the schema is made, the
// walk, and values.
#include <optional>

#include "tests/fuzz/schema_maker.h"
#include "tests/text/crossing_vocabulary.h"
#include "tests/text/schema_judge.h"
#include "text/json/json_grammar.h"
#include "text/json/json_schema_cases.h"

namespace {

using namespace riptide;
using fuzz::ByteSource;
using fuzz::require;
using testing::SchemaJudge;

constexpr int kSteps = 150, kPatience = 40;

/// Of those that fit; in the end one that closes what is open, most likely.
int32_t choose(const std::vector<int32_t>& fitting, const TokenMask& mask, int step, ByteSource& bytes) {
    constexpr std::string_view kClosing = "\"]}0ntf:,ab";
    if (step < kPatience && !bytes.empty())
        return fitting[static_cast<std::size_t>(bytes.next(256) * 256 + bytes.next(256)) % fitting.size()];
    for (std::size_t i = 0; i < kClosing.size(); ++i) {
        const std::size_t at = (i + static_cast<std::size_t>(step)) % (i < 4 ? 4 : kClosing.size());
        const int32_t id = testing::crossing_tokenizer().id_of(kClosing.substr(at, 1));
        if (mask.has(id)) return id;
    }
    return fitting[0];
}

/// What has been said when it may end; nothing if that does not come.
std::optional<std::string> walk(Constraint& constraint, ByteSource& bytes, const std::string& schema) {
    ConstraintState state = constraint.start();
    std::string text;
    for (int step = 0; step < kSteps; ++step) {
        const auto mask = state.mask();
        std::vector<int32_t> fitting;
        for (int32_t id = 0; id < testing::crossing_tokenizer().vocab_size(); ++id)
            if (mask->has(id)) fitting.push_back(id);
        const bool can_end = state.can_end();
        require(mask->any == !fitting.empty(), "a mask that holds a token has any", schema);
        if (fitting.empty() && text.empty()) return std::nullopt;  // nothing is valid
        require(can_end || !fitting.empty(), "there is a way on or an end", schema + "\n" + text);
        if (can_end && (fitting.empty() || step >= kPatience || bytes.empty() || bytes.once_in(8))) return text;
        const int32_t token = choose(fitting, *mask, step, bytes);
        require(state.accept(token), "a token of the mask is accepted", schema + "\n" + text);
        text += testing::crossing_tokenizer().piece(token);
    }
    return std::nullopt;
}

/// Whether it can be written in one way only: no members that might come in another order.
bool has_one_order(const json::value& value) {
    const auto inside = [](const auto& list) { return std::all_of(list.begin(), list.end(), has_one_order); };
    if (value.is_array()) return inside(value.get_array());
    if (!value.is_object()) return true;
    return value.get_object().empty() ||
           (value.get_object().size() == 1 && has_one_order(value.get_object().begin()->value()));
}

/// Whether a double stands for each number's text alone, and the text is the plain one: at most 15 digits, no exponent,
/// no -0. (Sees numbers in strings too.)
bool has_plain_numbers(std::string_view text) {
    int digits = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] >= '0' && text[i] <= '9') ++digits;
        else if (text[i] != '.') digits = 0;
        if (digits > 15 || text.substr(i).starts_with("e-") || text.substr(i).starts_with("e+")) return false;
        if (text.substr(i).starts_with("-0") && !text.substr(i).starts_with("-0.")) return false;
    }
    return true;
}

/// Another value somewhere in it.
void change(json::value& value, ByteSource& bytes, fuzz::ValueMaker& values) {
    json::array* array = value.if_array();
    json::object* object = value.if_object();
    const std::size_t size = array != nullptr ? array->size() : object != nullptr ? object->size() : 0;
    if (size == 0 || bytes.once_in(4)) {
        value = values.value(2);
    } else if (bytes.once_in(4)) {
        if (array != nullptr) array->push_back(values.value(2));
        else (*object)[values.name()] = values.value(2);
    } else {
        const auto at = static_cast<std::ptrdiff_t>(bytes.next(256)) % static_cast<std::ptrdiff_t>(size);
        change(array != nullptr ? *(array->begin() + at) : (object->begin() + at)->value(), bytes, values);
    }
}

class Laws {
  public:
    explicit Laws(const json::value& schema)
        : schema_(schema), text_(json::serialize(schema)), judge_(schema), document_(schema), cases_(document_, false) {
        try {
            Grammar grammar;
            grammar.set_root(add_json_schema(grammar, schema));
            constraint_ = Constraint::compile(grammar, testing::crossing_trie());
        } catch (const GrammarError& error) {  // it cannot be held
            nothing_ = std::string_view(error.what()) == "nothing can match";
        }
    }

    void check_walk(ByteSource& bytes, fuzz::ValueMaker& values) {
        if (constraint_ == nullptr) return;
        const std::optional<std::string> text = walk(*constraint_, bytes, text_);
        if (!text) return;
        json::value value;
        try {
            value = parse_json(*text, "an answer", 1000);  // numbers as the nearest doubles
        } catch (const Error& error) {
            require(false, "what is let through is JSON", text_ + "\n" + *text + "\n" + error.what());
        }
        require(judge_.valid(value), "what is let through is valid", text_ + "\n" + *text);
        for (int i = 0; i < 3; ++i) {
            if (has_plain_numbers(json_text(value))) check_value(value);
            change(value, bytes, values);
        }
    }

    void check_value(const json::value& value) {
        const std::string text = json_text(value);
        const bool valid = judge_.valid(value);
        agree(value);
        require(!nothing_ || !valid, "something can match", text_ + "\n" + text);
        if (constraint_ == nullptr || (valid && !has_one_order(value))) return;
        const std::string what = valid ? "what is valid is let through" : "what is not valid is not let through";
        require(testing::takes(constraint_, text) == valid, what, text_ + "\n" + text);
    }

  private:
    void agree(const json::value& value) {
        bool ours = false;
        try {
            ours = cases_.valid(value, {&schema_, false});
        } catch (const GrammarError&) {  // it cannot be told
            return;
        }
        require(ours == judge_.valid(value), "both judges agree", text_ + "\n" + json_text(value));
    }

    const json::value& schema_;
    const std::string text_;
    const SchemaJudge judge_;
    const SchemaDocument document_;
    SchemaCases cases_;
    std::shared_ptr<Constraint> constraint_;
    bool nothing_ = false;  // is valid, as Riptide says
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    ByteSource bytes(data, size);
    const json::value schema = fuzz::SchemaMaker(bytes).document();
    try {
        Laws laws(schema);
        fuzz::ValueMaker values(bytes);
        for (int i = 0; i < 4; ++i) laws.check_value(values.value());
        for (int i = 0; i < 2; ++i) laws.check_walk(bytes, values);
    } catch (const Error&) {  // too ambiguous; or references that go on and on
    }
    return 0;
}
