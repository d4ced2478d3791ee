#include "gate/layer_products.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/RedispatchFunctions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/hash.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "gate/pending_product.h"

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

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

}  // namespace

// A product that was computed with the bias, and how to compute it without.
struct BiasedProduct {
  std::shared_ptr<LayerProduct> layer;
  at::Tensor input, transposed;
  std::uint32_t input_version = version_of(input);
  std::uint32_t weight_version = version_of(transposed);
  bool has_gradients = at::GradMode::is_enabled();
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  bool is_sum = false;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>
      placeholder{at::Tensor().getIntrusivePtr()};

  [[nodiscard]] at::Tensor without_bias(const at::Tensor& sum) const {
    const at::AutoGradMode as_before(has_gradients);
    const c10::impl::ForceDispatchKeyGuard as_in_the_forward(keys);
    const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
    if (input_version == version_of(input) &&
        weight_version == version_of(transposed)) {
      return at::matmul(input, transposed);
    }
    return at::sub(sum, layer->bias).to(sum.scalar_type());
  }
};

namespace {

at::Tensor placeholder_of(const std::shared_ptr<BiasedProduct>& product) {
  return PendingProduct::placeholder(
      at::linear(product->input, product->layer->weight, product->layer->bias),
      {// The kernel of add_ sees that first.
       .is_bias = [](const c10::IValue&) { return false; },
       .add_bias = [](GatedCall& call) { call.run(); },
       .finish =
           [product](const at::Tensor& sum) {
             if (product->is_sum) return sum;
             // A layer with both uses goes on, so that results do not depend
             // on what came before.
             if (product->layer->use == LayerProduct::Use::unknown)
               product->layer->use = LayerProduct::Use::keeps_product;
             return product->without_bias(sum);
           }});
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
    if (scope != nullptr && input.dim() > 2 &&
        !c10::impl::tls_is_dispatch_key_included(kRecordingKey)) {
      layer = scope->products_.find(other);
    }
    if (layer == nullptr || !are_alike(*layer) ||
        layer->use == LayerProduct::Use::keeps_product) {
      return at::redispatch::matmul(below(keys), input, other);
    }
    const auto biased = std::make_shared<BiasedProduct>(
        BiasedProduct{.layer = layer, .input = input, .transposed = other});
    at::Tensor result = placeholder_of(biased);
    biased->placeholder = result.getIntrusivePtr();
    scope->biased_ = biased;
    scope->last_ = result.unsafeGetTensorImpl();
    scope->layer_ = std::move(layer);
    return result;
  }

  static at::Tensor& add_(
      c10::DispatchKeySet keys,
      at::Tensor& self,
      const at::Tensor& other,
      const at::Scalar& alpha) {
    LayerProductScope* const scope = innermost_products;
    if (scope != nullptr && scope->last_ == self.unsafeGetTensorImpl() &&
        other.is_same(scope->layer_->bias) && alpha.equal(1)) {
      if (const auto biased = scope->biased_.lock()) {
        biased->is_sum = true;
        scope->layer_->use = LayerProduct::Use::adds_bias;
        if (PendingProduct::complete(self)) return self;
      }
    }
    const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
    return at::redispatch::add_(below(keys), self, other, alpha);
  }
};

namespace {

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

}  // namespace

LayerProducts::LayerProducts(const torch::nn::Module& module) {
  constexpr std::string_view kWeight = "weight", kBias = "bias";
  for (const auto& each : module.modules()) {
    const auto own = each->named_parameters(/*recurse=*/false);
    for (const auto& named : own) {
      if (!named.key().ends_with(kWeight)) continue;
      const std::string prefix =
          named.key().substr(0, named.key().size() - kWeight.size());
      const at::Tensor* const bias = own.find(prefix + std::string(kBias));
      if (bias != nullptr && is_pair(named.value(), *bias))
        layers_.push_back(
            std::make_shared<LayerProduct>(LayerProduct{named.value(), *bias}));
    }
  }
  has_work_ = !layers_.empty();
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
  const bool is_transpose = weight.has_storage() &&
      weight.storage().unsafeGetStorageImpl() ==
          transposed.storage().unsafeGetStorageImpl() &&
      weight.scalar_type() == transposed.scalar_type() && weight.dim() == 2 &&
      weight.is_contiguous() && transposed.size(0) == weight.size(1) &&
      transposed.size(1) == weight.size(0) &&
      transposed.strides() == at::IntArrayRef({1, weight.size(1)});
  return is_transpose ? found->second : nullptr;
}

LayerProducts::Layer LayerProducts::find(const at::Tensor& transposed) {
  if (transposed.dim() != 2 || !transposed.has_storage()) return nullptr;
  const std::lock_guard lock(index_mutex);
  Layer layer = look_up(transposed);
  if (layer == nullptr && !is_indexed_) {
    index_layers();
    layer = look_up(transposed);
  }
  has_found_ |= layer != nullptr;
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
  products_.is_indexed_ = false;
  products_.has_work_ = products_.has_found_;
  // The program may read the memory of what a forward returns without an
  // operator.
  const auto biased = biased_.lock();
  const auto last =
      biased ? biased->placeholder.lock() : at::Tensor().getIntrusivePtr();
  try {
    PendingProduct::complete(at::Tensor(last));
  } catch (const std::exception&) {
    // The tensor's first operator fails as well.
  }
}

}  // namespace accelerate::detail
