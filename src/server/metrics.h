// Counters of the server, in Prometheus' text format.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/model_pool.h"
#include "server/traces/traces.h"

namespace riptide::server {

/// Of one engine, at one time.
struct EngineFacts : EngineStats, EngineInfo {
    std::string label;  // model="..." of its samples, or none

    /// 0 to 1: pages that answers need now; for a model without pages, answers of those that may run. What only the
    /// prefix cache holds is free.
    double kv_usage() const;
};
EngineFacts engine_facts(const ModelLease& model, bool labelled);
/// One that stands for all of a server, to whoever takes it for one worker: sums of what routers ask for.
EngineFacts total_of(const std::vector<EngineFacts>& engines);

/// Thread-safe.
class Metrics {
  public:
    Metrics();
    /// A reply of `route` ("/v1/chat/completions"; a fixed set: each makes a time series).
    void replied(std::string_view route, int status);
    /// A stream or a reply that nobody waited for.
    void abandoned();
    /// One that the server could not make of what the engine said.
    void mistaken();
    /// An answer is complete.
    void answered(const Done& done);

    /// The whole page: of what is loaded (`engines`), and of all together under the names of vLLM, with one series each
    /// (`model`: what its label says).
    std::string page(bool ready, const std::vector<EngineFacts>& engines, int64_t connections,
                     const TraceCounts& traces, const std::string& model) const;

  private:
    struct Histogram {
        std::string name, help;
        std::vector<double> bounds;
        std::vector<std::string> words;  // of them, and +Inf
        std::vector<int64_t> counts;     // one more than bounds
        double sum = 0;
        void add(double value);
        /// `name`, `labels`: whole, and those of all its samples.
        void write(std::string& out, std::string_view name, std::string_view help, std::string_view labels) const;
    };

    mutable std::mutex mutex_;
    std::map<std::pair<std::string, int>, int64_t> replies_;
    int64_t abandoned_ = 0, mistaken_ = 0;
    std::map<std::string, int64_t> reasons_;
    Histogram first_token_, between_tokens_, queue_, prefill_, decode_, answer_, prompt_tokens_;

    void vllm_histograms(std::string& out, const std::string& labels) const;
};

}  // namespace riptide::server
