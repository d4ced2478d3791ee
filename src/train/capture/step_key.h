#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/nested_parts.h>

namespace accelerate::detail {

struct Session;

/// The dependencies of a recorded step, which may be replayed while none of
/// them has changed.
struct StepKey {
  /// Which kernels run: shapes, modes, the place in a window.
  std::vector<std::uint64_t> kind = {};
  /// Where parameters, buffers and the optimizers' state lie.
  std::vector<std::uint64_t> places = {};
  /// Where gradients lie.
  std::vector<std::uint64_t> gradients = {};

  bool operator==(const StepKey&) const = default;
};

/// The key of a step that begins now, with these inputs, and begins this number
/// of micro-steps. `parameters`: those of parameters_of().
[[nodiscard]] StepKey key_of_step(
    const Session& session,
    const NestedParts& inputs,
    const std::vector<at::Tensor>& parameters,
    int num_micro_steps);

}  // namespace accelerate::detail
