#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "parallel/strategy.h"
#include "params/parameter_table.h"
#include "train/plan/step_trace.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Computes a loss of `num_samples` samples.
using LossOfSamples = std::function<at::Tensor(std::int64_t num_samples)>;

/// The precision of a recorded step.
struct RecordedPrecision {
  std::optional<c10::ScalarType> autocast = std::nullopt;
  /// Parameters are cast beforehand, except those that keep their precision.
  bool casts_parameters = false;
};

/// Runs forward and backward of `loss_of` with 2 and 4 samples (4 and 8, or 8
/// and 16, if kernels work differently on fewer) and returns the memory events
/// for any number of samples. If kernels take large scratch memory, and it is
/// cheap, also runs with more samples, up to `most_samples`, since such memory
/// often grows less from some number on. Restores the module: parameters,
/// gradients, hooks on them, buffers and the CPU generator. `recomputation` can
/// be null. Throws ConfigError if the loss is not a scalar with a graph, or if
/// the two runs differ in more than sizes.
StepTrace record_step(
    torch::nn::Module& module,
    const ParameterTable& table,
    const PlannedModel& planned,
    const LossOfSamples& loss_of,
    const RecordedPrecision& precision,
    Strategy* recomputation,
    std::int64_t most_samples = 0);

}  // namespace accelerate::detail
