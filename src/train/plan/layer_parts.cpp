#include "train/plan/layer_parts.h"

#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include <accelerate/experts.h>

#include "comm/autograd/region.h"

namespace accelerate::detail {

namespace {

using at::Tensor;

void backward(const Tensor& result, const std::vector<Tensor>& inputs) {
  torch::autograd::grad(
      {result},
      inputs,
      {at::ones_like(result)},
      /*retain_graph=*/false,
      /*create_graph=*/false,
      // Experts may get no token.
      /*allow_unused=*/true);
}

ExpertLayer expert_layer(const TransformerShape& shape, at::Device device) {
  ExpertLayer layer(ExpertLayerOptions{
      .hidden_size = shape.hidden_size,
      .num_experts = shape.num_experts,
      .router = {.top_k = shape.top_k},
      .mlp = ExpertMlpOptions{
          .intermediate_size = shape.expert_intermediate_size,
          .gated = shape.is_gated}});
  layer->to(device);
  return layer;
}

/// A layer with weights of its own.
class Layer {
 public:
  using Leaf = std::function<Tensor(const std::vector<std::int64_t>& sizes)>;

  Layer(
      const TransformerShape& shape,
      const Leaf& leaf,
      at::Device device,
      std::optional<Group> sums)
      : shape_(shape), sums_(std::move(sums)) {
    const std::int64_t hidden = shape.hidden_size;
    for (Tensor* norm : {&norm1_, &norm2_}) *norm = leaf({hidden});
    const std::int64_t heads = shape.num_heads * shape.head_size;
    const std::int64_t kv = shape.num_kv_heads * shape.head_size;
    q_ = leaf({heads, hidden});
    k_ = leaf({kv, hidden});
    v_ = leaf({kv, hidden});
    out_ = leaf({hidden, heads});
    if (shape.num_experts > 0) {
      experts_ = expert_layer(shape, device);
      return;
    }
    up_ = leaf({shape.intermediate_size, hidden});
    if (shape.is_gated) gate_ = leaf({shape.intermediate_size, hidden});
    down_ = leaf({hidden, shape.intermediate_size});
  }

  Tensor forward(const Tensor& x) {
    const Tensor normed =
        entered(at::layer_norm(x, {shape_.hidden_size}, norm1_));
    const auto heads = [&](const Tensor& weight) {
      return at::linear(normed, weight)
          .view({x.size(0), x.size(1), -1, shape_.head_size})
          .transpose(1, 2);
    };
    const std::int64_t shared = shape_.num_heads / shape_.num_kv_heads;
    const auto repeated = [&](const Tensor& weight) {
      return shared == 1 ? heads(weight)
                         : heads(weight).repeat_interleave(shared, 1);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(q_),
        repeated(k_),
        repeated(v_),
        {},
        /*dropout_p=*/0,
        /*is_causal=*/true);
    const Tensor y = x +
        summed(at::linear(
            mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}), out_));
    return y +
        summed(mlp(entered(at::layer_norm(y, {shape_.hidden_size}, norm2_))));
  }

  void add_parameters(std::vector<Tensor>& all) const {
    for (const Tensor& each :
         {norm1_, norm2_, q_, k_, v_, out_, up_, gate_, down_}) {
      if (each.defined()) all.push_back(each);
    }
    if (!experts_) return;
    const auto own = experts_->parameters();
    all.insert(all.end(), own.begin(), own.end());
  }

 private:
  [[nodiscard]] Tensor entered(const Tensor& x) const {
    return sums_ ? copy_to_region(x, *sums_) : x;
  }
  [[nodiscard]] Tensor summed(const Tensor& x) const {
    return sums_ ? reduce_from_region(x, *sums_) : x;
  }

  Tensor mlp(const Tensor& x) {
    if (experts_) return experts_(x);
    const Tensor up = at::linear(x, up_);
    return at::linear(
        gate_.defined() ? at::silu(at::linear(x, gate_)) * up : at::gelu(up),
        down_);
  }

  TransformerShape shape_;
  std::optional<Group> sums_;
  Tensor norm1_, norm2_, q_, k_, v_, out_, up_, gate_, down_;
  ExpertLayer experts_ = nullptr;
};

}  // namespace

Tensor LayerParts::leaf(const std::vector<std::int64_t>& sizes) const {
  return at::randn(sizes, options_).requires_grad_();
}

std::function<void()> LayerParts::product() const {
  const Tensor x = leaf({tokens(), shape_.hidden_size});
  const Tensor weight = leaf({shape_.intermediate_size, shape_.hidden_size});
  return [=] { backward(at::linear(x, weight), {x, weight}); };
}
double LayerParts::product_flops() const {
  return 6.0 * static_cast<double>(tokens()) *
      static_cast<double>(shape_.hidden_size) *
      static_cast<double>(shape_.intermediate_size);
}

std::function<void()> LayerParts::attention() const {
  const std::vector<std::int64_t> sizes{
      num_samples_, shape_.num_heads, length_, shape_.head_size};
  const Tensor q = leaf(sizes), k = leaf(sizes), v = leaf(sizes);
  return [=] {
    backward(
        at::scaled_dot_product_attention(
            q, k, v, {}, /*dropout_p=*/0, /*is_causal=*/true),
        {q, k, v});
  };
}

std::function<void()> LayerParts::rest() const {
  const Tensor x = leaf({tokens(), shape_.hidden_size});
  const Tensor inner = leaf({tokens(), shape_.intermediate_size});
  const Tensor weight = leaf({shape_.hidden_size});
  const Tensor bias = leaf({shape_.hidden_size});
  return [=, hidden = shape_.hidden_size] {
    Tensor y = x;
    for (int i = 0; i < 2; ++i) {
      y = y +
          at::layer_norm(y, {hidden}, weight, bias)
              .view({-1, 2, hidden / 2})
              .transpose(0, 1)
              .reshape({-1, hidden});
    }
    backward(y, {x, weight, bias});
    backward(at::gelu(inner), {inner});
  };
}

std::function<void()> LayerParts::loss(std::int64_t num_classes) const {
  const Tensor logits = leaf({tokens(), num_classes});
  const Tensor targets = at::randint(
      num_classes, {tokens()}, at::TensorOptions(options_).dtype(at::kLong));
  return [=] {
    torch::autograd::grad({at::cross_entropy_loss(logits, targets)}, {logits});
  };
}

// A router and its experts, all on this rank.
std::function<void()> LayerParts::experts() const {
  ExpertLayer layer = expert_layer(shape_, options_.device());
  const Tensor x = leaf({num_samples_, length_, shape_.hidden_size});
  std::vector<Tensor> inputs = layer->parameters();
  inputs.push_back(x);
  return [=]() mutable { backward(layer(x), inputs); };
}

std::function<void()> LayerParts::whole() const {
  return [product = product(), attention = attention(), rest = rest()] {
    // Queries, keys, values and results, and both matrices of the MLP.
    for (int i = 0; i < 6; ++i) product();
    attention();
    rest();
  };
}

std::vector<Tensor> LayerParts::parameters() const {
  const std::int64_t hidden = shape_.hidden_size;
  const std::int64_t inner = shape_.intermediate_size;
  std::vector<Tensor> found;
  const auto add = [&](std::vector<std::int64_t> sizes) {
    found.push_back(leaf(sizes));
    found.back().mutable_grad() = at::zeros(sizes, found.back().options());
  };
  for (int i = 0; i < 4; ++i) {
    add({hidden, hidden});
    add({hidden});
    add({hidden});
  }
  add({inner, hidden});
  add({inner});
  add({hidden, inner});
  add({hidden});
  return found;
}

std::function<void()> LayerParts::stack(
    int num_layers,
    const std::optional<Group>& sums) const {
  auto layers = std::make_shared<std::vector<Layer>>();
  const Tensor x = leaf({num_samples_, length_, shape_.hidden_size});
  std::vector<Tensor> inputs{x};
  for (int i = 0; i < num_layers; ++i) {
    layers->emplace_back(
        shape_,
        [this](const auto& sizes) { return leaf(sizes); },
        options_.device(),
        sums);
    layers->back().add_parameters(inputs);
  }
  return [=] {
    Tensor y = x;
    for (Layer& layer : *layers) y = layer.forward(y);
    backward(y, inputs);
  };
}

}  // namespace accelerate::detail
