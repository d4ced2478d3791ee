#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::detail {

/// What is the same in every call of an operator.
struct OperatorFacts {
  /// It returns tensors, or changes some.
  bool leaves_trace = false;
  bool is_random = false;
  std::vector<bool> changes_argument;
};

/// Found once by each thread.
const OperatorFacts& facts_of(const c10::OperatorHandle& operation);

}  // namespace accelerate::detail
