#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

#include "gate/gate.h"

namespace accelerate::detail {

/// A parameter of which each rank keeps some rows. Rank r of R keeps those
/// from floor(n r / R) to floor(n (r + 1) / R) of n; there may be none.
struct ShardedParameter {
  std::string name;
  at::Tensor full;   ///< the module's own
  at::Tensor local;  ///< this rank's rows, on which the optimizer steps
  std::vector<std::int64_t> row_begins;  ///< one per rank, and the end
  std::unique_ptr<GatedTensor> gate;     ///< null: its memory stays
  /// Its gradients travel in it; unset: as they are.
  std::optional<at::ScalarType> reduce_dtype;
  std::int64_t version_when_opened = 0;

  /// The same among neighbours; and this rank's rows, in between.
  std::vector<std::int64_t> reshard_group_begins = {};
  at::Tensor kept_rows = {};

  /// The rows that `rank` keeps, of a tensor of the whole shape.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tensor, int rank) const;
  [[nodiscard]] at::ScalarType reduced_in() const {
    return reduce_dtype.value_or(whole.scalar_type());
  }
  /// Takes the gradient away from the full parameter, dense and in
  /// reduced_in(); undefined if it has none.
  [[nodiscard]] at::Tensor take_gradient() const;
  /// Adds `mean`, on the shard's device, to the shard's gradient, which may
  /// become that tensor.
  void add_gradient(const at::Tensor& mean) const;
};

/// Parameters that are gathered together, and what is known of them.
struct UnitShards {
  std::string name;
  /// Place among the units of its model.
  std::size_t number = 0;
  std::vector<ShardedParameter> parameters;
  /// Places in `parameters` of those that get gradients. Gradients are known by
  /// their place in this list.
  std::vector<std::size_t> trainable = {};

  [[nodiscard]] const ShardedParameter& trained(std::size_t place) const {
    return parameters[trainable[place]];
  }
};

/// Part number `part` of a tensor that is cut at `begins`.
at::Tensor rows_between(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& begins,
    int part);

/// Where `num_rows` rows are cut.
std::vector<std::int64_t> row_begins(std::int64_t num_rows, int num_ranks);

}  // namespace accelerate::detail
