// What the interpreter opens and closes again: scopes and levels of evaluation. Used only by exec.cpp, eval.cpp
// and call.cpp.
#pragma once

#include "text/jinja/interpreter.h"

namespace riptide::jinja {

/// A scope inside `parent`, made the current one; the one before comes back when this goes.
class Interpreter::Enter {
  public:
    Enter(Interpreter& interpreter, Scope* parent) : interpreter_(interpreter), before_(interpreter.scope_) {
        auto& pool = interpreter.free_scopes_;
        if (pool.empty()) {
            scope_ = std::make_unique<Scope>();
        } else {
            scope_ = std::move(pool.back());
            pool.pop_back();
        }
        scope_->parent = parent;
        interpreter.scope_ = scope_.get();
    }
    ~Enter() {
        interpreter_.scope_ = before_;
        if (scope_->captured) {
            interpreter_.scopes_.push_back(std::move(scope_));
        } else {
            scope_->names.clear();
            interpreter_.free_scopes_.push_back(std::move(scope_));
        }
    }
    Enter(const Enter&) = delete;

  private:
    Interpreter& interpreter_;
    Scope* before_;
    std::unique_ptr<Scope> scope_;
};

class Interpreter::Depth {
  public:
    explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
        if (interpreter.depth_ >= interpreter.program_.limits.eval_depth) {
            fault("evaluation is nested more than {} deep", interpreter.program_.limits.eval_depth);
        }
        ++interpreter.depth_;
    }
    ~Depth() { --interpreter_.depth_; }
    Depth(const Depth&) = delete;

  private:
    Interpreter& interpreter_;
};

}  // namespace riptide::jinja
