#include "adapters/layer_adapter.h"

#include <cmath>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/init.h>

#include "adapters/expression.h"

namespace accelerate::detail {

namespace {

template <class Value>
Value value_for(
    const std::map<std::string, Value>& patterns,
    const std::string& layer,
    Value otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (matches_expression(layer, "(.*\\.)?(" + pattern + ")")) return value;
  }
  return otherwise;
}

struct Matrices {
  std::vector<std::int64_t> a, b;
};

Matrices sizes_of(const LayerFacts& layer, std::int64_t rank) {
  const at::IntArrayRef weight = layer.weight.sizes();
  switch (layer.kind) {
    case LayerKind::linear:
      return {{rank, weight[1]}, {weight[0], rank}};
    case LayerKind::transposed_linear:
    case LayerKind::embedding:
      return {{rank, weight[0]}, {weight[1], rank}};
    case LayerKind::convolution:
      break;
  }
  std::vector<std::int64_t> a = weight.vec();
  std::vector<std::int64_t> b(weight.size(), 1);
  a[0] = rank;
  a[1] = weight[1] * layer.groups;
  b[0] = weight[0];
  b[1] = rank / layer.groups;
  return {std::move(a), std::move(b)};
}

void fill_as_layer(const at::Tensor& weight) {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
}

void initialise(
    const at::Tensor& a,
    const at::Tensor& b,
    LayerKind kind,
    AdapterInit init) {
  if (kind == LayerKind::embedding) {
    a.normal_();
    b.normal_();
    if (init == AdapterInit::random) return;
    a.zero_();
    b.normal_();
    return;
  }
  fill_as_layer(a);
  fill_as_layer(b);
  if (init == AdapterInit::random) return;
  if (init == AdapterInit::gaussian) {
    a.normal_(0, 1 / static_cast<double>(a.size(0)));
  } else {
    fill_as_layer(a);
  }
  b.zero_();
}

at::ScalarType dtype_for(const at::Tensor& weight, bool widens) {
  const at::ScalarType dtype = weight.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (!at::isFloatingType(dtype) || at::elementSize(dtype) < 2 ||
      (is_half && widens)) {
    return at::kFloat;
  }
  return dtype;
}

}  // namespace

std::int64_t rank_for(const AdapterOptions& options, const std::string& layer) {
  return value_for(options.rank_pattern, layer, options.rank);
}

double scaling_for(const AdapterOptions& options, const std::string& layer) {
  const double alpha = value_for(options.alpha_pattern, layer, options.alpha);
  const auto rank = static_cast<double>(rank_for(options, layer));
  return alpha / (options.use_rslora ? std::sqrt(rank) : rank);
}

LayerAdapter make_adapter(
    const LayerFacts& layer,
    const AdapterOptions& options,
    const std::string& name) {
  const at::NoGradGuard no_grad;
  const Matrices sizes = sizes_of(layer, rank_for(options, name));
  const at::TensorOptions on_host = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor a = at::empty(sizes.a, on_host);
  const at::Tensor b = at::empty(sizes.b, on_host);
  initialise(a, b, layer.kind, options.init);
  // A weight without memory gets it later, on a device that is not known yet.
  const at::Device device =
      layer.weight.is_meta() ? at::Device(at::kCPU) : layer.weight.device();
  const at::ScalarType dtype =
      dtype_for(layer.weight, options.autocast_adapter_dtype);
  LayerAdapter adapter{
      .a = a.to(device, dtype),
      .b = b.to(device, dtype),
      .scaling = scaling_for(options, name),
      .dropout = options.dropout};
  if (options.use_dora) {
    const at::Tensor product =
        adapter_product(adapter, layer.kind, layer.weight.sizes());
    adapter.magnitude = weight_norms(
        at::add(layer.weight, product * adapter.scaling), layer.kind);
  }
  return adapter;
}

at::Tensor adapter_product(
    const LayerAdapter& adapter,
    LayerKind kind,
    at::IntArrayRef weight_sizes) {
  switch (kind) {
    case LayerKind::linear:
      return at::mm(adapter.b, adapter.a);
    case LayerKind::transposed_linear:
    case LayerKind::embedding:
      return at::mm(adapter.b, adapter.a).t();
    case LayerKind::convolution:
      break;
  }
  const std::int64_t rank = adapter.a.size(0);
  return at::mm(adapter.b.reshape({-1, rank}), adapter.a.reshape({rank, -1}))
      .reshape(weight_sizes);
}

at::Tensor weight_norms(const at::Tensor& weight, LayerKind kind) {
  switch (kind) {
    case LayerKind::linear:
      return at::linalg_vector_norm(weight, 2, {1});
    case LayerKind::transposed_linear:
    case LayerKind::embedding:
      return at::linalg_vector_norm(weight, 2, {0});
    case LayerKind::convolution:
      break;
  }
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 1; dim < weight.dim(); ++dim) dims.push_back(dim);
  return at::linalg_vector_norm(weight, 2, dims, /*keepdim=*/true)
      .transpose(0, 1)
      .contiguous();
}

at::Tensor as_weight_factor(
    const at::Tensor& factor,
    LayerKind kind,
    at::IntArrayRef weight_sizes) {
  if (kind == LayerKind::transposed_linear || kind == LayerKind::embedding)
    return factor.view({1, -1});
  std::vector<std::int64_t> sizes(weight_sizes.size(), 1);
  sizes[0] = -1;
  return factor.reshape(sizes);
}

}  // namespace accelerate::detail
