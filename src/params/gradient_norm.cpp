#include "params/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/memory_parts.h"

namespace accelerate::detail {

namespace {

// Norm of a list, with one kernel per dtype and device, each in at least single
// precision, so that half-precision sums do not overflow. That of complex
// numbers is the real norm of their absolute values.
at::Tensor list_norm(const std::vector<at::Tensor>& gradients, double p) {
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>>
      alike;
  for (const at::Tensor& gradient : gradients) {
    alike[{gradient.device().type(), gradient.scalar_type()}].push_back(
        gradient);
  }
  std::vector<at::Tensor> norms;
  for (const auto& [kind, list] : alike) {
    const at::ScalarType wide =
        at::isReducedFloatingType(kind.second) ? at::kFloat : kind.second;
    for (const auto& part : memory_parts(list)) {
      for (const at::Tensor& norm : at::_foreach_norm(part, p, wide))
        norms.push_back(norm.to(gradients[0].device()));
    }
  }
  at::ScalarType common = norms[0].scalar_type();
  for (const at::Tensor& norm : norms)
    common = at::promote_types(common, norm.scalar_type());
  for (at::Tensor& norm : norms) norm = norm.to(common);
  return at::stack(norms).norm(p);
}

// Rows that are split over the same axes.
struct SameSplit {
  std::vector<at::Tensor> gradients;
  /// Dtype of the norm, from the parameters, which all ranks have.
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  /// The layout of one of the rows.
  const Layout* layout = nullptr;

  void add(const Parameter& row) {
    layout = &row.layout;
    dtype =
        at::promote_types(dtype, c10::toRealValueType(row.local.scalar_type()));
    device = row.local.device();
    // The infinity norm of an empty tensor is an error in LibTorch.
    at::Tensor gradient = row.local.grad();
    if (!gradient.defined()) return;
    if (gradient.is_sparse()) gradient = gradient.coalesce().values();
    if (gradient.numel() > 0) gradients.push_back(gradient);
  }
};

}  // namespace

at::Tensor gradient_norm(
    std::span<const PlacedParameter> rows,
    double norm_type) {
  if (!(norm_type > 0)) {
    throw ConfigError(format(
        "[params] the type of a gradient norm must be above 0, or infinity, "
        "but is {}",
        norm_type));
  }
  const at::NoGradGuard no_grad;
  // Meshes in order of occurrence, which is the same on all ranks.
  std::vector<const Mesh*> meshes;
  std::map<std::pair<std::ptrdiff_t, std::vector<Axis>>, SameSplit> by_split;
  // Every rank must take part in every group's sum, even without gradients.
  for (const PlacedParameter& placed : rows) {
    const auto& axes = placed.row->layout.split_axes;
    std::ptrdiff_t number = -1;  // unsharded: on any mesh
    if (!axes.empty()) {
      const auto known = std::ranges::find_if(meshes, [&](const Mesh* mesh) {
        return mesh->impl() == placed.mesh->impl();
      });
      number = known - meshes.begin();
      if (known == meshes.end()) meshes.push_back(placed.mesh);
    }
    by_split[{number, axes}].add(*placed.row);
  }
  const bool is_infinite = std::isinf(norm_type);
  at::Tensor total;
  for (const auto& [split, group] : by_split) {
    const auto& [number, axes] = split;
    at::Tensor norm = group.gradients.empty()
        ? at::zeros({}, at::TensorOptions().device(group.device))
        : list_norm(group.gradients, norm_type);
    norm = norm.to(group.dtype);
    if (!axes.empty()) {
      if (!is_infinite) norm = norm.pow(norm_type);
      const Mesh mesh = placement_mesh(
          *group.layout, *meshes[static_cast<std::size_t>(number)]);
      for (const Axis axis : axes) {
        mesh.group(axis).all_reduce(
            norm, is_infinite ? ReduceOp::max : ReduceOp::sum);
      }
      if (!is_infinite) norm = norm.pow(1.0 / norm_type);
    }
    if (!total.defined()) {
      total = norm;
    } else if (is_infinite) {
      total = at::maximum(total, norm.to(total.device()));
    } else {
      total = (total.pow(norm_type) + norm.to(total.device()).pow(norm_type))
                  .pow(1.0 / norm_type);
    }
  }
  return total.defined() ? total : at::zeros({});
}

}  // namespace accelerate::detail
