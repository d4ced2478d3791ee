#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <accelerate/export.h>
#include <accelerate/parallel.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// The values of parameters when a strategy shards them: those of the first
/// rank of their `replica_group`, whose coordinates are 0 on all axes that do
/// not split the parameter yet. If some rank built its model without memory,
/// each rank is sent only its own box; if the first rank did as well, there are
/// no values yet, and boxes are zeros.
class InitialValues {
 public:
  /// Collective among the ranks that hold the rows of `table`.
  InitialValues(const Mesh& mesh, const ParameterTable& table);

  /// Allocates memory on every rank for a row that stays unsharded; call before
  /// broadcast().
  void make_full(const Parameter& row);
  /// Broadcasts the rows for which every rank has memory.
  void broadcast(const ParameterTable& table) const;
  /// Returns this rank's box of a row, where rank r along `axis` gets indices
  /// begins[r] to begins[r + 1] of `dim`. A view if this rank has memory for
  /// the full row. The row's layout must not include the split yet. Collective.
  [[nodiscard]] at::Tensor own_box(
      const Parameter& row,
      Axis axis,
      std::int64_t dim,
      const std::vector<std::int64_t>& begins) const;
  /// The part along dimension 0 of this rank, where rank r gets the rows in
  /// ranges[r], one range after another; a copy.
  [[nodiscard]] at::Tensor own_rows(
      const Parameter& row,
      Axis axis,
      const std::vector<std::vector<IndexRange>>& ranges) const;

 private:
  /// `box_of` extracts a rank's box from the full tensor; `place` is its place
  /// along the axis.
  [[nodiscard]] at::Tensor box_of_rank(
      const Parameter& row,
      Axis axis,
      c10::function_ref<at::Tensor(const at::Tensor& full, int place)> box_of)
      const;

  enum class Origin { rank_0_to_all, rank_0_to_shards, nowhere };

  Mesh mesh_;
  /// Origins by name.
  std::map<std::string, Origin> origins_;
};

}  // namespace accelerate::detail
