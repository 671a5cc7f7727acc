// What each op of a model's steps reads, computes and takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/context.h"

namespace riptide::apps {

/// Watches a context's steps from its construction to its destruction. Times are from the start of an op to the start
/// of the next: on a GPU between events in the stream, across which programmatic launches do not overlap.
class OpProfile {
  public:
    enum class Mode { count, time };
    OpProfile(Context& context, Mode mode);
    ~OpProfile();
    OpProfile(const OpProfile&) = delete;
    OpProfile& operator=(const OpProfile&) = delete;

    /// Forgets all. The next step has the same number of rows for each of some sequences, which hold `position` tokens.
    void start(int64_t position, int64_t sequences = 1);

    struct Line {
        std::string op, shape;
        int64_t calls = 0;
        double seconds = 0;
        double weight_bytes = 0, kv_bytes = 0, flops = 0;
        std::vector<std::string> kernels;  // on a GPU, if times are taken: in the order in which they first ran
        double bytes() const { return weight_bytes + kv_bytes; }
    };
    /// In the order in which they first came.
    const std::vector<Line>& lines() const { return lines_; }
    Line total() const;
    int64_t steps() const { return steps_; }

  private:
    void see(const OpCost& cost);
    void add_attention(const OpCost& cost, Line& line) const;
    void end_step();
    size_t line_of(const OpCost& cost);

    Context& context_;
    Mode mode_;
    std::optional<GpuMarks> marks_;
    std::vector<std::chrono::steady_clock::time_point> times_;
    std::vector<size_t> running_;  // the line of each op of the running step
    std::vector<Line> lines_;
    int64_t position_ = 0, sequences_ = 1, rows_ = 0, steps_ = 0;
};

}  // namespace riptide::apps
