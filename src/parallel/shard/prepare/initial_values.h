#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/parallel.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// The values that parameters have when a strategy shards them: those of the
/// first rank of their `replica_group`, whose coordinates are 0 on all axes
/// that do not split the parameter yet. If some rank built its model without
/// memory, each rank is sent its own box only; if the first rank did too, there
/// are no values yet, and boxes are zeros.
class InitialValues {
 public:
  /// Collective among the ranks that have the rows of `table`.
  InitialValues(const Mesh& mesh, const ParameterTable& table);

  /// Gives a row that stays unsharded memory on every rank; to be called before
  /// broadcast().
  void make_full(const Parameter& row);
  /// Broadcasts the rows that every rank has memory for.
  void broadcast(const ParameterTable& table) const;
  /// This rank's box of a row of which rank r along `axis` gets the indices
  /// begins[r] to begins[r + 1] of `dim`. A view, if this rank has memory for
  /// the full row. The row's layout must not include the split yet. Collective.
  [[nodiscard]] at::Tensor own_box(
      const Parameter& row,
      Axis axis,
      std::int64_t dim,
      const std::vector<std::int64_t>& begins) const;

 private:
  enum class Origin { rank_0_to_all, rank_0_to_shards, nowhere };

  Mesh mesh_;
  /// By name.
  std::map<std::string, Origin> origins_;
};

}  // namespace accelerate::detail
