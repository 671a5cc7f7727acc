#include "apps/convert/tensor_rules.h"

#include "base/error.h"
#include "quant/codec.h"
#include "text/utf8.h"

namespace riptide::apps {

TensorRules::TensorRules(std::span<const std::string> rules) {
    for (const std::string& rule : rules) {
        const size_t equals = rule.rfind('=');
        RT_CHECK(equals != std::string::npos && equals > 0, ErrorKind::usage, "--tensor {}: expected REGEX=TYPE", rule);
        const std::string name = rule.substr(equals + 1);
        const std::optional<DType> type = dtype_from_name(name);
        RT_CHECK(type && can_quantize(*type), ErrorKind::usage,
                 "--tensor {}: there is no quantiser for {}: expected one of {}", rule, name, quantize_names());
        RT_CHECK(dtype_info(*type).gguf_type >= 0, ErrorKind::usage,
                 "--tensor {}: GGUF has no type {}: expected another, such as q8_0", rule, name);
        try {
            rules_.push_back({rule, Regex(rule.substr(0, equals), "--tensor " + rule), *type});
        } catch (const Error& error) {
            fail(ErrorKind::usage, "{}", error.what());
        }
    }
}

std::optional<DType> TensorRules::find(std::string_view name) {
    Regex::Match match;
    if (utf8_valid_prefix(name) < name.size()) return std::nullopt;
    for (Rule& rule : rules_) {
        if (!rule.pattern.find(name, 0, scratch_, match)) continue;
        rule.used = true;
        return rule.type;
    }
    return std::nullopt;
}

void TensorRules::check_all_used() const {
    for (const Rule& rule : rules_)
        RT_CHECK(rule.used, ErrorKind::usage,
                 "--tensor {}: expected a pattern of some matrix's name that no rule before it takes", rule.text);
}

}  // namespace riptide::apps
