#include "engine/compression/kept_memory.h"

namespace riptide {

std::shared_ptr<const KeptContents> KeptMemory::find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->contents;
}

void KeptMemory::keep(const std::string& name, KeptContents contents) {
    size_t runs = 0;
    for (const KeptContent& content : contents) runs += 1 + content.kept.size();
    const std::lock_guard lock(mutex_);
    if (const auto found = by_name_.find(name); found != by_name_.end()) {
        runs_ -= found->second->runs;
        entries_.erase(found->second);
        by_name_.erase(found);
    }
    entries_.push_front({name, std::make_shared<const KeptContents>(std::move(contents)), runs});
    by_name_[name] = entries_.begin();
    runs_ += runs;
    while (entries_.size() > 1 && (entries_.size() > kMostPrompts || runs_ > kMostRuns)) {
        runs_ -= entries_.back().runs;
        by_name_.erase(entries_.back().name);
        entries_.pop_back();
    }
}

}  // namespace riptide
