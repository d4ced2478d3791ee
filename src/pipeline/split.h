#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Divides layers into consecutive stages of at least one layer each, so that
/// the most expensive stage is as cheap as possible, and of the divisions that
/// are so, one whose stages are as equal as possible. Returns the index of each
/// stage's first layer. Costs are at least 0; there are at least as many as
/// stages.
std::vector<std::size_t> balanced_stages(
    std::span<const double> costs,
    int num_stages);

/// How a model is divided: `split_points` names the first layer of each stage
/// but the first; without names, the stages are balanced by `costs`, one per
/// layer. Returns the index of each stage's first layer. Throws ConfigError for
/// names of no layer, out of order or of the first layer, for another number of
/// names than stages need, for costs that are not one per layer or below 0, and
/// for fewer layers than stages.
std::vector<std::size_t> divide_layers(
    const std::vector<std::string>& layers,
    const std::vector<std::string>& split_points,
    const std::vector<double>& costs,
    int num_stages);

}  // namespace accelerate::detail
