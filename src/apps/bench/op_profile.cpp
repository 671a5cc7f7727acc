#include "apps/bench/op_profile.h"

#include <algorithm>

namespace riptide::apps {

OpProfile::OpProfile(Context& context, Mode mode) : context_(context), mode_(mode) {
    if (mode == Mode::time && context.gpu != nullptr) {
        marks_.emplace(*context.gpu);
        context.gpu->on_launch = [this](const std::string& kernel) {
            if (running_.empty()) return;
            std::vector<std::string>& all = lines_[running_.back()].kernels;
            if (std::find(all.begin(), all.end(), kernel) == all.end()) all.push_back(kernel);
        };
    }
    context_.on_op = [this](const OpCost& cost) { see(cost); };
}

OpProfile::~OpProfile() {
    context_.on_op = nullptr;
    if (context_.gpu != nullptr) context_.gpu->on_launch = nullptr;
}

void OpProfile::start(int64_t position, int64_t sequences) {
    lines_.clear();
    position_ = position;
    sequences_ = sequences;
    steps_ = 0;
}

size_t OpProfile::line_of(const OpCost& cost) {
    const auto found = std::find_if(lines_.begin(), lines_.end(),
                                    [&](const Line& l) { return l.op == cost.name && l.shape == cost.shape; });
    if (found != lines_.end()) return static_cast<size_t>(found - lines_.begin());
    lines_.emplace_back().op = std::string(cost.name);
    lines_.back().shape = cost.shape;
    return lines_.size() - 1;
}

/// Rows at positions p .. p + m - 1 of each sequence see min(position + 1, window) keys each, p + m in all, or those of
/// the windows.
void OpProfile::add_attention(const OpCost& cost, Line& line) const {
    const int64_t m = cost.rows / sequences_, last = position_ + m;
    const int64_t window = cost.window > 0 ? cost.window : last;
    const auto sum_to = [&](int64_t n) {  // over rows 0 .. n - 1 of min(row + 1, window)
        const int64_t rising = std::min(n, window);
        return rising * (rising + 1) / 2 + (n - rising) * window;
    };
    const auto sequences = static_cast<double>(sequences_);
    line.flops += cost.flops_per_key * sequences * static_cast<double>(sum_to(last) - sum_to(position_));
    line.kv_bytes += sequences * static_cast<double>(cost.key_bytes * std::min(last, window - 1 + m));
}

void OpProfile::see(const OpCost& cost) {
    if (cost.name.empty()) return end_step();
    if (mode_ == Mode::time) {
        if (marks_ && running_.empty()) marks_->hold();
        if (marks_) marks_->add();
        else times_.push_back(std::chrono::steady_clock::now());
    }
    if (running_.empty()) rows_ = cost.rows;
    running_.push_back(line_of(cost));
    Line& line = lines_[running_.back()];
    ++line.calls;
    line.weight_bytes += cost.weight_bytes;
    line.kv_bytes += cost.state_bytes;
    line.flops += cost.flops;
    if (cost.key_bytes > 0) add_attention(cost, line);
}

void OpProfile::end_step() {
    if (running_.empty()) return;
    std::vector<double> seconds;
    if (marks_) {
        marks_->add();
        seconds = marks_->take();
    } else if (mode_ == Mode::time) {
        times_.push_back(std::chrono::steady_clock::now());
        for (size_t i = 1; i < times_.size(); ++i)
            seconds.push_back(std::chrono::duration<double>(times_[i] - times_[i - 1]).count());
        times_.clear();
    }
    for (size_t i = 0; i < seconds.size(); ++i) lines_[running_[i]].seconds += seconds[i];
    running_.clear();
    position_ += rows_ / sequences_;
    ++steps_;
}

OpProfile::Line OpProfile::total() const {
    Line sum;
    sum.op = "all ops";
    for (const Line& line : lines_) {
        sum.calls += line.calls;
        sum.seconds += line.seconds;
        sum.weight_bytes += line.weight_bytes;
        sum.kv_bytes += line.kv_bytes;
        sum.flops += line.flops;
    }
    return sum;
}

}  // namespace riptide::apps
