#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>

namespace accelerate {

namespace detail {
/// Stacks tensors of equal shape; throws ConfigError if shapes differ.
ACCELERATE_API at::Tensor stack_rows(const std::vector<at::Tensor>& rows);
/// Throws ConfigError for samples with these different numbers of tensors.
[[noreturn]] ACCELERATE_API void throw_ragged(
    std::size_t first,
    std::size_t other);
}  // namespace detail

/// Collates samples into a batch of the same form: corresponding tensors are
/// stacked along a new dimension 0; everything else is taken from the first
/// sample. Throws ConfigError if shapes differ.
struct DefaultCollate {
  template <NestedTensors Sample>
  Sample operator()(std::vector<Sample> samples) const {
    std::vector<std::vector<at::Tensor>> columns(
        tensors_of(samples.front()).size());
    for (const Sample& sample : samples) {
      const std::vector<at::Tensor> tensors = tensors_of(sample);
      if (tensors.size() != columns.size())
        detail::throw_ragged(columns.size(), tensors.size());
      for (std::size_t i = 0; i < tensors.size(); ++i)
        columns[i].push_back(tensors[i]);
    }
    Sample batch = std::move(samples.front());
    std::size_t next = 0;
    visit_tensors(batch, [&](at::Tensor& tensor) {
      tensor = detail::stack_rows(columns[next++]);
    });
    return batch;
  }
};

}  // namespace accelerate
