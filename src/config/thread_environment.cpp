#include "config/thread_environment.h"

#include <utility>

namespace accelerate::detail {

namespace {

thread_local const ThreadEnvironment* innermost = nullptr;

}  // namespace

ThreadEnvironment::ThreadEnvironment(
    std::map<std::string, std::string> variables)
    : variables_(std::move(variables)), outer_(innermost) {
  if (outer_ != nullptr)
    variables_.insert(outer_->variables_.begin(), outer_->variables_.end());
  innermost = this;
}

ThreadEnvironment::~ThreadEnvironment() { innermost = outer_; }

const std::map<std::string, std::string>*
ThreadEnvironment::variables_of_thread() {
  return innermost == nullptr ? nullptr : &innermost->variables_;
}

}  // namespace accelerate::detail
