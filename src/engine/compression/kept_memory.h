// What was kept of the messages of conversations, so that the next turn keeps the same.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/tokenizer/token_map.h"

namespace riptide {

/// What was kept of a message's content. All runs count tokens of the whole prompt, before anything is dropped.
struct KeptContent {
    TokenRun content;
    std::vector<TokenRun> kept;  // ascending, disjoint, inside
};
using KeptContents = std::vector<KeptContent>;

/// By the name of a prompt's beginning (a hash of all its tokens and of whoever may know of it): the contents in it on
/// which was decided. What was used longest ago goes first. Thread-safe.
class KeptMemory {
  public:
    static constexpr size_t kMostPrompts = 4096, kMostRuns = size_t{1} << 21;  // 32 MiB of runs

    /// Null if nothing is known.
    std::shared_ptr<const KeptContents> find(const std::string& name);
    void keep(const std::string& name, KeptContents contents);

  private:
    struct Entry {
        std::string name;
        std::shared_ptr<const KeptContents> contents;
        size_t runs = 0;
    };
    std::mutex mutex_;
    std::list<Entry> entries_;  // the last used first
    std::map<std::string, std::list<Entry>::iterator> by_name_;
    size_t runs_ = 0;
};

}  // namespace riptide
