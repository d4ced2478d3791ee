#include "gate/layer_products.h"

#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/RedispatchFunctions.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/hash.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "gate/kept_casts.h"
#include "gate/mode_keys.h"
#include "gate/transpose_of.h"

namespace accelerate::detail {

namespace {

// Several threads may run forwards of a model without gradients.
std::mutex index_mutex;

// Thread-local because the dispatch key is included per thread.
thread_local LayerProductScope* innermost_products = nullptr;

std::size_t place_of(const at::Tensor& tensor) {
  return c10::hash_combine(
      reinterpret_cast<std::size_t>(tensor.storage().unsafeGetStorageImpl()),
      static_cast<std::size_t>(tensor.storage_offset()));
}

bool is_pair(const at::Tensor& weight, const at::Tensor& bias) {
  return weight.defined() && bias.defined() && weight.dim() == 2 &&
      bias.dim() == 1 && bias.size(0) == weight.size(0);
}

bool are_alike(const LayerProduct& layer) {
  return layer.weight.scalar_type() == layer.bias.scalar_type() &&
      layer.weight.device() == layer.bias.device();
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys &
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kReplacingKey);
}

}  // namespace

struct LayerProductKernels {
  static at::Tensor matmul(
      c10::DispatchKeySet keys,
      const at::Tensor& input,
      const at::Tensor& other) {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
    LayerProductScope* const scope = innermost_products;
    std::shared_ptr<LayerProduct> layer;
    if (scope != nullptr && input.dim() > 2)
      layer = scope->products_.find(other);
    if (layer == nullptr || !are_alike(*layer) ||
        layer->use == LayerProduct::Use::keeps_product) {
      return at::redispatch::matmul(
          below(keys), with_kept_cast(input), with_kept_cast(other));
    }
    scope->bias_ = layer->bias;
    const at::Tensor result =
        BiasedProduct::placeholder(std::move(layer), input, other);
    scope->last_ = result.getIntrusivePtr();
    return result;
  }

  static at::Tensor& add_(
      c10::DispatchKeySet keys,
      at::Tensor& self,
      const at::Tensor& other,
      const at::Scalar& alpha) {
    LayerProductScope* const scope = innermost_products;
    const bool adds_bias = scope != nullptr &&
        scope->last_._unsafe_get_target() == self.unsafeGetTensorImpl() &&
        other.is_same(scope->bias_) && alpha.equal(1);
    if (adds_bias && BiasedProduct::settle(self, adds_bias)) return self;
    const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
    return at::redispatch::add_(below(keys), self, other, alpha);
  }
};

// A process can have only one kernel per operator and dispatch key.
void register_product_kernels() {
  register_replacing_key();
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", kReplacingKey, __FILE__, __LINE__);
    made->impl("matmul", &LayerProductKernels::matmul);
    made->impl("add_.Tensor", &LayerProductKernels::add_);
    return made;
  }();
}

LayerProducts::LayerProducts(const torch::nn::Module& module) {
  constexpr std::string_view kWeight = "weight", kBias = "bias";
  for (const auto& each : module.modules()) {
    const auto own = each->named_parameters(/*recurse=*/false);
    for (const auto& named : own) {
      if (!named.key().ends_with(kWeight)) continue;
      const std::string prefix =
          named.key().substr(0, named.key().size() - kWeight.size());
      const at::Tensor* const bias = own.find(prefix + std::string(kBias));
      if (bias == nullptr || !is_pair(named.value(), *bias)) continue;
      const Layer& layer = layers_.emplace_back(new LayerProduct);
      layer->weight = named.value();
      layer->bias = *bias;
    }
  }
}

void LayerProducts::index_layers() {
  is_indexed_ = true;
  std::vector<std::size_t> places;
  places.reserve(layers_.size());
  for (const Layer& layer : layers_)
    places.push_back(layer->weight.has_storage() ? place_of(layer->weight) : 0);
  if (places == places_) return;
  places_ = std::move(places);
  by_place_.clear();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    by_place_.emplace(places_[i], layers_[i]);
}

LayerProducts::Layer LayerProducts::look_up(
    const at::Tensor& transposed) const {
  const auto found = by_place_.find(place_of(transposed));
  if (found == by_place_.end()) return nullptr;
  const at::Tensor& weight = found->second->weight;
  const bool is_known =
      weight.is_contiguous() && is_transpose_of(transposed, weight);
  return is_known ? found->second : nullptr;
}

LayerProducts::Layer LayerProducts::find(const at::Tensor& transposed) {
  if (transposed.dim() != 2 || !transposed.has_storage()) return nullptr;
  const std::lock_guard lock(index_mutex);
  Layer layer = look_up(transposed);
  if (layer == nullptr && !is_indexed_) {
    index_layers();
    layer = look_up(transposed);
  }
  if (layer != nullptr) found_ = Found::layers;
  return layer;
}

LayerProductScope::LayerProductScope(LayerProducts& products)
    : products_(products),
      enclosing_(std::exchange(innermost_products, this)),
      include_(kReplacingKey) {
  register_product_kernels();
}

LayerProductScope::~LayerProductScope() {
  innermost_products = enclosing_;
  {
    const std::lock_guard lock(index_mutex);
    products_.is_indexed_ = false;
  }
  LayerProducts::Found unknown = LayerProducts::Found::unknown;
  products_.found_.compare_exchange_strong(unknown, LayerProducts::Found::none);
  // The program may read the memory of what a forward returns without an
  // operator.
  const at::Tensor last(last_.lock());
  try {
    if (last.defined()) BiasedProduct::settle(last, /*adds_bias=*/false);
  } catch (const std::exception&) {
    // The tensor's first operator fails as well.
  }
}

}  // namespace accelerate::detail
