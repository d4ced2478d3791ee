#pragma once

#include <memory>
#include <optional>

#include <accelerate/parallel.h>
#include <accelerate/tensor_parallel.h>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// Tensor parallelism: each rank of the tensor axis keeps a slice of the
/// weights named by `plan`, or by infer_parallelize_plan() without one, and
/// computes with it when the module's own code multiplies by the weight
/// (gate/). (Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter
/// Language Models Using Model Parallelism", 2019.) Comes before all strategies
/// that divide what this one leaves. Ranks of the axis read the same batch;
/// parameters that stay full get equal gradients on all of them, so nothing is
/// averaged over this axis. `divides_sequences`: an inferred plan goes through
/// divide_sequences(). `whole_model`: see TechniqueOptions; the plan is also
/// checked for layers of other stages.
std::unique_ptr<Strategy> make_tensor(
    const Mesh& mesh,
    const std::optional<ParallelizePlan>& plan,
    bool divides_sequences = false,
    std::shared_ptr<const torch::nn::Module> whole_model = nullptr);

}  // namespace accelerate::detail
