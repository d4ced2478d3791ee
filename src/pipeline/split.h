#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Divides layers into consecutive stages of at least one layer each, so that
/// the most expensive stage is as cheap as possible and, among such divisions,
/// the stages are as equal as possible. Returns the index of each stage's first
/// layer. Costs must not be negative, nor fewer than the stages.
std::vector<std::size_t> balanced_stages(
    std::span<const double> costs,
    int num_stages);

/// Throws ConfigError unless so many split points make so many stages.
void require_num_points(std::size_t num_points, int num_stages);

/// Divides a model: `split_points` names the first layer of each stage but the
/// first; without names, the stages are balanced by `costs`, one per layer.
/// Returns the index of each stage's first layer. Throws ConfigError for names
/// that are unknown, out of order or the first layer's, for too few or too many
/// names, for costs that are negative or not one per layer, and for fewer
/// layers than stages.
std::vector<std::size_t> divide_layers(
    const std::vector<std::string>& layers,
    const std::vector<std::string>& split_points,
    const std::vector<double>& costs,
    int num_stages);

}  // namespace accelerate::detail
