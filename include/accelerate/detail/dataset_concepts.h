#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include <ATen/core/Generator.h>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

/// Detects the capabilities of a dataset from its members, as documented at
/// DataLoader.
namespace accelerate::detail {

template <class D>
concept BatchRandomDataset = requires(
    D& dataset,
    std::span<const std::int64_t> indices,
    at::Generator& generator) { dataset.get_batch(indices, generator); };
template <class D>
concept BatchDataset = BatchRandomDataset<D> ||
    requires(D& dataset, std::span<const std::int64_t> indices) {
      dataset.get_batch(indices);
    };

template <class D>
concept RandomDataset = requires(D& dataset, at::Generator& generator) {
  dataset.get(std::int64_t{}, generator);
};

template <class D>
concept StreamDataset = requires(D& dataset) {
  { static_cast<bool>(dataset.next()) };
  *dataset.next();
};

template <class D>
concept ReadableDataset = StreamDataset<D> || BatchDataset<D> ||
    RandomDataset<D> || requires(D& dataset) { dataset.get(std::int64_t{}); };

/// Whether D is a dataset. If not, compiling fails with a message that says
/// what is missing.
template <class D>
consteval bool must_be_dataset() {
  static_assert(
      ReadableDataset<D>,
      "a dataset needs size() and get(index), or size() and "
      "get_batch(indices), or next() for a stream: see DataLoader in "
      "accelerate/data_loader.h");
  return ReadableDataset<D>;
}

/// Whether a collate function accepts samples. If not, compiling fails with a
/// message that says what to do.
template <class Collate, class Samples>
consteval bool must_collate() {
  constexpr bool can = requires(Collate& collate, Samples samples) {
    collate(static_cast<Samples&&>(samples));
  };
  static_assert(
      can,
      "the loader cannot make a batch of these samples: define visit_tensors() "
      "for their type (accelerate/nested.h), or give the DataLoader a collate "
      "function as its third argument");
  return can;
}

template <class D>
concept SizedDataset = requires(const D& dataset) { dataset.size(); };

template <class D>
concept RestorableDataset =
    requires(D& dataset, const D& constant, const StateDict& state) {
      { constant.state_dict() } -> std::same_as<StateDict>;
      dataset.load_state_dict(state);
    };

template <class D>
std::int64_t size_of(const D& dataset) {
  const auto size = dataset.size();
  if constexpr (requires { *size; }) {
    return static_cast<std::int64_t>(*size);  // torch::data datasets
  } else {
    return static_cast<std::int64_t>(size);
  }
}

/// Whether the dataset says that it holds only one rank's shard.
template <class D>
bool says_is_sharded(const D& dataset) {
  if constexpr (requires {
                  { dataset.is_sharded() } -> std::convertible_to<bool>;
                }) {
    return dataset.is_sharded();
  } else {
    return false;
  }
}

/// `generator()` returns the at::Generator& for the sample, or batch; it is
/// called only for datasets that take one.
template <class D, class Generator>
auto get_sample(D& dataset, std::int64_t index, Generator&& generator) {
  if constexpr (RandomDataset<D>) {
    return dataset.get(index, generator());
  } else {
    return dataset.get(index);
  }
}

template <class D, class Generator>
auto get_samples(
    D& dataset,
    std::span<const std::int64_t> indices,
    Generator&& generator) {
  if constexpr (BatchRandomDataset<D>) {
    return dataset.get_batch(indices, generator());
  } else {
    return dataset.get_batch(indices);
  }
}

}  // namespace accelerate::detail
