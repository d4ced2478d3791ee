#pragma once

#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

namespace detail {
/// Stacks corresponding tensors of all samples into the first. Throws
/// ConfigError for samples that differ in anything but the values of tensors.
ACCELERATE_API void stack_samples(const std::vector<NestedParts>& samples);
}  // namespace detail

/// Collates samples into a batch of the same form: corresponding tensors are
/// stacked along a new dimension 0. Everything else must be the same in all
/// samples, and is taken from the first. Throws ConfigError, with the place, if
/// shapes, keys, numbers, strings or lists differ.
struct DefaultCollate {
  /// Returns the batch of at least one sample.
  template <NestedTensors Sample>
  Sample operator()(std::vector<Sample> samples) const {
    std::vector<detail::NestedParts> parts;
    parts.reserve(samples.size());
    for (Sample& sample : samples) parts.push_back(detail::parts_of(sample));
    detail::stack_samples(parts);
    return std::move(samples.front());
  }
};

}  // namespace accelerate
