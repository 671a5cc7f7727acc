// Time that somebody spends waiting.
#pragma once

#include <chrono>

namespace riptide {

/// Adds the seconds of its life to a sum.
class Waiting {
  public:
    explicit Waiting(double& sum) : sum_(sum) {}
    ~Waiting() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  private:
    double& sum_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace riptide
