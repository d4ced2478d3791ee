#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>

#include "parallel/shard_unit.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// What parameters that are split begin with: the values of rank 0. Where some
/// rank built its model without memory, each is sent its own rows only; where
/// rank 0 did too, there are none yet, and parts are zeros.
class FirstValues {
 public:
  /// All ranks of `data_group` (replicas and shards of `mesh`) at once.
  FirstValues(
      const Mesh& mesh,
      const Group& data_group,
      const ParameterTable& table);

  /// For a row that is not split, before broadcast().
  void make_whole(const Parameter& row);
  /// Rows that every rank has memory for.
  void broadcast(const ParameterTable& table) const;
  /// This rank's rows, as a view where it has memory for all of them; all ranks
  /// at once.
  [[nodiscard]] at::Tensor own_rows(
      const Parameter& row,
      const ShardedParameter& parameter) const;

 private:
  enum class Origin { rank_0_to_all, rank_0_to_parts, nowhere };

  void send_rows(const Parameter& row, const ShardedParameter& parameter) const;

  Mesh mesh_;
  Group data_group_;
  /// By name.
  std::map<std::string, Origin> origins_;
};

}  // namespace accelerate::detail
