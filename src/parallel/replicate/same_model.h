#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// Throws ConfigError on all ranks of `group`, saying where, if their models
/// differ in names, dtypes, shapes or trained parameters.
void require_same_model(
    const Group& group,
    const ParameterTable& table,
    const std::vector<at::Tensor>& buffers);

/// Gives all ranks of `group` the values of rank `from`, in few, large
/// messages.
void broadcast_all(
    const Group& group,
    const std::vector<at::Tensor>& tensors,
    int from = 0);

/// Rows by the axes that split them: rows in one entry have the same
/// replica_group.
using RowsByAxes = std::map<std::vector<Axis>, std::vector<const Parameter*>>;
RowsByAxes rows_by_axes(const ParameterTable& table);

/// Gives each row the values of the first rank of its replica_group.
void broadcast_rows(const Mesh& mesh, const RowsByAxes& rows);

}  // namespace accelerate::detail
