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

/// What parameters begin with when a strategy splits them: the values of the
/// first rank of their `replica_group`, whose coordinates are 0 on all axes
/// that do not split the parameter yet. Where some rank built its model without
/// memory, each is sent its own box only; where the first rank did too, there
/// are no values yet, and boxes are zeros.
class InitialValues {
 public:
  /// All ranks that have the rows of `table` at once.
  InitialValues(const Mesh& mesh, const ParameterTable& table);

  /// For a row that stays as it is, before broadcast().
  void make_full(const Parameter& row);
  /// Rows that every rank has memory for.
  void broadcast(const ParameterTable& table) const;
  /// What this rank keeps of a row of which rank r along `axis` gets the
  /// indices of `dim` from begins[r] to begins[r + 1]. It is a view where this
  /// rank has memory for all of the row. The row's layout must not know of the
  /// split yet. All ranks at once.
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
