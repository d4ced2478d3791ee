#include "parallel/shard/prepare/prepare_shards.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/gate_entry.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

std::string policy_of(
    const Parameter& row,
    const ShardedParameter& parameter,
    const std::string& unit) {
  const at::ScalarType computed = row.tensor.scalar_type();
  const bool is_on_host = row.local.is_cpu() && !row.tensor.is_cpu();
  return format(
      "in the unit of {}, rows {} to {}{}{}{}, computed in {}, reduced in {}",
      unit,
      row.layout.offset[0],
      row.layout.offset[0] + row.layout.extent[0],
      is_behind_operators(row.local) ? " kept in a file in "
          : is_on_host               ? " kept on the host in "
                                     : " kept here in ",
      c10::toString(row.local.scalar_type()),
      parameter.gathered_scale ? ", gathered in float8" : "",
      c10::toString(computed),
      c10::toString(parameter.reduce_dtype.value_or(computed)));
}

namespace {

constexpr std::string_view kNotGathered = "is sharded and not gathered here";

}  // namespace

void explain_unavailable(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (text.find(kNotGathered) == std::string::npos) return;
  throw ConfigError(format(
      "[parallel] {}", std::string_view(text).substr(0, text.find('\n'))));
}

UnavailableMessages sharded_messages(const std::string& parameter) {
  return {
      format(
          "parameter \"{}\" {}; read or change it in the prepared model's "
          "forward, or while Model::full_parameters() lives",
          parameter,
          kNotGathered),
      format(
          "parameter \"{}\" was sharded by an Accelerator that has been "
          "destroyed; build the model again, or gather it before "
          "(full_parameters)",
          parameter)};
}

Group reshard_group_of(const Mesh& mesh, int count) {
  if (count <= 1) return {};
  const Group& group = mesh.group(Axis::shard);
  const int first = group.rank() / count * count;
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) {
    ranks.push_back(group.world_ranks()[static_cast<std::size_t>(first + i)]);
  }
  return mesh.world().new_group(ranks);
}

void make_dense(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_contiguous() && tensor.scalar_type() == dtype &&
      tensor.storage().nbytes() == tensor.nbytes()) {
    return;
  }
  std::vector<TensorWatch> watches = take_watches(tensor);
  const at::Tensor dense =
      tensor.detach().to(dtype, false, /*copy=*/true).contiguous();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(dense.getIntrusivePtr());
  for (TensorWatch& watch : watches) watch_tensor(tensor, std::move(watch));
}

void cast_buffers(
    torch::nn::Module& module,
    at::ScalarType dtype,
    const std::vector<std::string>& full_precision) {
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    const std::string owner =
        item.key().substr(0, item.key().find_last_of('.'));
    if (buffer.defined() && buffer.is_floating_point() &&
        std::find(full_precision.begin(), full_precision.end(), owner) ==
            full_precision.end()) {
      make_dense(buffer, dtype);
    }
  }
}

void require_unchanged(const std::vector<std::unique_ptr<ShardUnit>>& units) {
  for (const auto& unit : units) {
    for (const ShardedParameter& parameter : unit->parameters()) {
      if (parameter.full.requires_grad() && !parameter.local.requires_grad()) {
        throw ConfigError(format(
            "[parallel] parameter \"{}\" was frozen when it was prepared, but "
            "no longer is, so its gradients would not be reduced; unfreeze it "
            "before prepare(), or prepare the model anew",
            parameter.name));
      }
      if (parameter.is_in_place()) continue;
      throw ConfigError(format(
          "[parallel] the data of parameter \"{}\" was replaced after "
          "prepare() (by Module::to or set_data), so its shards are no longer "
          "known; do that before prepare()",
          parameter.name));
    }
  }
}

}  // namespace accelerate::detail
