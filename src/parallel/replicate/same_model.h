#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// Throws ConfigError, on all ranks of `group`, saying where models differ in
/// names, types, shapes or what is trained.
void require_same_model(
    const Group& group,
    const ParameterTable& table,
    const std::vector<at::Tensor>& buffers);

/// Gives all ranks of `group` the values of rank `from`, in few messages.
void broadcast_all(
    const Group& group,
    const std::vector<at::Tensor>& tensors,
    int from = 0);

/// Rows by the axes that split them: those of one entry are on the same ranks.
using RowsByAxes = std::map<std::vector<Axis>, std::vector<const Parameter*>>;
RowsByAxes rows_by_axes(const ParameterTable& table);

/// Gives each row the values of the first rank of its replica_group.
void broadcast_rows(const Mesh& mesh, const RowsByAxes& rows);

}  // namespace accelerate::detail
