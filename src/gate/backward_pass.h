#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace accelerate::detail {

/// Whether this thread computes a backward that is not itself differentiated,
/// and recomputes no forward.
inline bool runs_backward() {
  return torch::autograd::get_current_graph_task_id() != -1 &&
      !at::GradMode::is_enabled();
}

}  // namespace accelerate::detail
