#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::detail {

/// Facts about an operator that are the same in every call.
struct OperatorFacts {
  /// True if the operator returns or changes tensors.
  bool leaves_trace = false;
  bool is_random = false;
  std::vector<bool> changes_argument;
};

/// Facts are cached per thread.
const OperatorFacts& facts_of(const c10::OperatorHandle& operation);

}  // namespace accelerate::detail
