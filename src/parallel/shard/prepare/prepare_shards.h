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

namespace c10 {
class Error;
}
namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Returns the text of describe() for a sharded row whose parameter is in
/// `unit`.
std::string policy_of(
    const Parameter& row,
    const ShardedParameter& parameter,
    const std::string& unit);

/// Returns the errors for reading a sharded parameter that is not gathered.
UnavailableMessages sharded_messages(const std::string& parameter);

/// Throws ConfigError with the first line of `error`, without LibTorch's stack
/// trace, if it is such an error.
void explain_unavailable(const c10::Error& error);

/// Returns this rank's reshard group: the `count` consecutive ranks that share
/// parameters between a forward and its backward; an empty group for 0 and 1.
Group reshard_group_of(const Mesh& mesh, int count);

/// Gives `tensor` its own contiguous memory in `dtype`; the TensorImpl stays
/// the same, so the module sees the change.
void make_dense(const at::Tensor& tensor, at::ScalarType dtype);

/// Casts floating buffers of `module`, except those of the modules named
/// `full_precision`.
void cast_buffers(
    torch::nn::Module& module,
    at::ScalarType dtype,
    const std::vector<std::string>& full_precision);

/// Throws ConfigError if parameters were unfrozen or given other data since
/// they were sharded.
void require_unchanged(const std::vector<std::unique_ptr<ShardUnit>>& units);

}  // namespace accelerate::detail
