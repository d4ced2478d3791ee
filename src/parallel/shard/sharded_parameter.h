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
#include "parallel/precise_view.h"

namespace accelerate::detail {

class DiskShards;

/// The ranks from which a unit's full parameters are gathered: all ranks of the
/// shard group, or those of the reshard group, which keep a replica among
/// themselves (ShardedParameter::kept_rows) from a forward to its backward.
enum class ShardSource { all_ranks, reshard_group };

/// A parameter of which each rank keeps some rows. Rank r of R keeps rows
/// floor(n r / R) to floor(n (r + 1) / R) of n; there may be none.
struct ShardedParameter {
  std::string name;
  at::Tensor full;   ///< the module's tensor
  at::Tensor local;  ///< this rank's rows, on which the optimizer steps
  std::vector<std::int64_t> row_begins;  ///< one per rank, and the end
  std::unique_ptr<GatedTensor> gate;     ///< null: `full` keeps its memory
  /// Dtype in which gradients are reduced; unset: their own.
  std::optional<at::ScalarType> reduce_dtype;
  std::int64_t version_when_opened = 0;
  /// Where there is no gate: the memory of `full` once the model is prepared.
  const void* memory = nullptr;

  /// Like row_begins, for the ranks of the reshard group; and the rows that
  /// this rank keeps between forward and backward.
  std::vector<std::int64_t> reshard_group_begins = {};
  at::Tensor kept_rows = {};

  /// A copy of `local` in the dtype of `full`, so that gathers need not read
  /// a shard that lies in a file and has more digits; undefined if there is
  /// none.
  at::Tensor rows = {};
  /// What of the shard lies in files; null: nothing.
  const DiskShards* disk = nullptr;

  /// Set for a weight that is gathered in float8; see GatheredScales.
  std::shared_ptr<const at::Tensor> gathered_scale = nullptr;
  /// True if `full` was gathered in float8, so its values are rounded.
  bool is_rounded = false;

  /// Set while the unit is open, if the shard has another dtype than `full`.
  std::unique_ptr<PreciseView> precise = nullptr;

  /// True for an expert of other ranks: empty on all ranks of this shard group.
  bool is_elsewhere = false;

  /// Returns the rows that `rank` keeps, out of a tensor of the full shape.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tensor, int rank) const;
  /// The first row of each rank of the source's group, and the end.
  [[nodiscard]] const std::vector<std::int64_t>& begins_in(
      ShardSource source) const {
    return source == ShardSource::reshard_group ? reshard_group_begins
                                                : row_begins;
  }
  /// The rows that this rank contributes to a gather in `dtype`.
  [[nodiscard]] const at::Tensor& own_rows_in(
      ShardSource source,
      at::ScalarType dtype) const {
    if (source == ShardSource::reshard_group) return kept_rows;
    const bool are_rounded =
        rows.defined() && rows.scalar_type() == dtype && !travels_in_float8();
    return are_rounded ? rows : local;
  }
  /// Whether the parameter shares messages with others of its unit.
  [[nodiscard]] bool is_small() const;
  /// Whether `full`, unless it shows `precise`, is a rounded copy.
  [[nodiscard]] bool is_rounded_copy() const {
    return precise != nullptr || local.scalar_type() != full.scalar_type();
  }
  /// False if the program has replaced the memory of `full` since prepare().
  [[nodiscard]] bool is_in_place() const;
  /// Whether a gather that starts now would be in float8.
  [[nodiscard]] bool travels_in_float8() const {
    return gathered_scale != nullptr && gathered_scale->defined();
  }
  [[nodiscard]] at::ScalarType reduced_in() const {
    return reduce_dtype.value_or(full.scalar_type());
  }
  /// Moves the gradient out of the full parameter, dense and in reduced_in();
  /// undefined if it has none.
  [[nodiscard]] at::Tensor take_gradient() const;
  /// Adds `mean`, on the shard's device, to the shard's gradient; may keep
  /// `mean` as that gradient.
  void add_gradient(const at::Tensor& mean) const;
};

/// Parameters that are gathered together.
struct UnitShards {
  std::string name;
  /// Place among the units of its traffic.
  std::size_t number = 0;
  std::vector<ShardedParameter> parameters;
  /// Places in `parameters` of those that get gradients. A gradient is
  /// identified by its place in this list.
  std::vector<std::size_t> trainable = {};

  /// Elements of this rank's shards.
  [[nodiscard]] std::int64_t num_elements() const;
  [[nodiscard]] const ShardedParameter& trained(std::size_t place) const {
    return parameters[trainable[place]];
  }
};

/// Returns the rows from begins[rank] to begins[rank + 1].
at::Tensor rows_between(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& begins,
    int rank);

/// Returns the first row of each rank, out of `num_rows` rows, and the end.
std::vector<std::int64_t> row_begins(std::int64_t num_rows, int num_ranks);

}  // namespace accelerate::detail
