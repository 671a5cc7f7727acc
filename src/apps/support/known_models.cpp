#include "apps/support/known_models.h"

#include <string_view>

#include "base/json.h"

extern "C" const char riptide_known_models_begin[];
extern "C" const char riptide_known_models_end[];

namespace riptide::apps {

namespace {

std::string text_or_none(const json::value& value) { return value.is_null() ? "" : std::string(value.as_string()); }

}  // namespace

KnownModels known_models() {
    const std::string_view text(riptide_known_models_begin,
                                static_cast<std::size_t>(riptide_known_models_end - riptide_known_models_begin));
    const json::value parsed = parse_json(text, "models/known.json");
    KnownModels out{text_or_none(parsed.at("checked")), text_or_none(parsed.at("how")), {}};
    for (const json::value& entry : parsed.at("models").as_array()) {
        KnownModel model{text_or_none(entry.at("alias")), text_or_none(entry.at("name")),    0,
                         text_or_none(entry.at("shape")), text_or_none(entry.at("drafter")), ""};
        if (!entry.at("gigabytes").is_null()) model.gigabytes = entry.at("gigabytes").to_number<double>();
        for (const json::value& field : entry.at("unverified").as_array())
            model.unverified += (model.unverified.empty() ? "" : ", ") + std::string(field.as_string());
        out.models.push_back(std::move(model));
    }
    return out;
}

}  // namespace riptide::apps
