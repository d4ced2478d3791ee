#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/detail/nested_parts.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/step_options.h>
#include <accelerate/world.h>

namespace accelerate::detail {

// Accelerator's functions on samples, whose ranks are those of
// `mesh().batch_group()`. `remainder`: number of samples of the round that are
// not repetitions; 0 if all are.

[[noreturn]] ACCELERATE_API void refuse_gather_object();
ACCELERATE_API void keep_first_rows(
    const NestedParts& parts,
    std::int64_t rows);

template <class T>
T gather_samples(const T& value, const Group& group, std::int64_t remainder) {
  static_assert(
      NestedTensors<T>,
      "gather_for_metrics() takes tensors, or a std::vector with one object "
      "for each sample");
  T all = accelerate::gather(value, group);
  if constexpr (NestedTensors<T>) {
    if (remainder > 0) keep_first_rows(parts_of(all), remainder);
  }
  return all;
}

template <class T>
std::vector<T> gather_samples(
    const std::vector<T>& values,
    const Group& group,
    std::int64_t remainder,
    const GatherForMetricsOptions& options) {
  if constexpr (NestedTensors<std::vector<T>>) {
    if (!options.use_gather_object)
      return gather_samples(values, group, remainder);
  }
  if constexpr (NestedTensors<std::vector<T>> && !Transferable<T>) {
    refuse_gather_object();
  } else {
    std::vector<T> all = accelerate::gather_object(values, group);
    if (remainder > 0 && static_cast<std::int64_t>(all.size()) > remainder)
      all.erase(all.begin() + remainder, all.end());
    return all;
  }
}

template <class T>
T split_samples(const T& items, const Group& group, bool apply_padding) {
  constexpr bool can_split = requires {
    accelerate::split_between_processes(items, group, apply_padding);
  };
  static_assert(
      can_split,
      "split_between_processes() splits a std::vector, a tensor, or a map of "
      "these; put the items into a std::vector");
  if constexpr (can_split) {
    return accelerate::split_between_processes(items, group, apply_padding);
  } else {
    return items;
  }
}

}  // namespace accelerate::detail
