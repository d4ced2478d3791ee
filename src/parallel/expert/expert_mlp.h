#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/experts.h>
#include <accelerate/world.h>

namespace accelerate::detail {

/// Throws ConfigError for options that contradict each other.
void check_mlp(const ExpertMlpOptions& options);

at::Tensor activate(const at::Tensor& tensor, ExpertActivation activation);

/// Applies the experts from `first` on, one for each of `counts`, to the tokens
/// sorted by expert. `first` is an index into the module's tensors. The ranks
/// of `split` have slices of the intermediate size, whose results are summed.
at::Tensor compute_experts(
    const ExpertMlpImpl& mlp,
    const at::Tensor& tokens,
    const std::vector<std::int64_t>& counts,
    std::int64_t first,
    const Group& split);

}  // namespace accelerate::detail
