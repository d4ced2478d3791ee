#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "gate/gate.h"
#include "parallel/shard/shard_unit.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What describe() says of a row that was cut, whose parameter is in `unit`.
std::string policy_of(
    const Parameter& row,
    const ShardedParameter& parameter,
    const std::string& unit);

/// The errors of a sharded parameter that is not full.
UnavailableMessages sharded_messages(const std::string& parameter);

/// The group of this rank's neighbours, which are `count` ranks that share
/// parameters between a forward and its backward; an empty group for 0 and 1.
Group reshard_group_of(const Mesh& mesh, int count);

/// Gives `tensor` memory of its own, in order and in `dtype`; the TensorImpl
/// stays, so that the module sees it.
void make_dense(const at::Tensor& tensor, at::ScalarType dtype);

/// Casts floating buffers of `module` but for those of the modules named
/// `full_precision`.
void cast_buffers(
    torch::nn::Module& module,
    at::ScalarType dtype,
    const std::vector<std::string>& full_precision);

/// ConfigError if parameters were unfrozen or given other data since they were
/// cut.
void require_unchanged(const std::vector<std::unique_ptr<ShardUnit>>& units);

}  // namespace accelerate::detail
