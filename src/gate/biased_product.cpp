#include "gate/biased_product.h"

#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "gate/first_of.h"
#include "gate/gate_entry.h"
#include "gate/gate_key.h"
#include "gate/kept_casts.h"
#include "gate/mode_keys.h"
#include "gate/placeholder.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

}  // namespace

BiasedProduct::BiasedProduct(
    std::shared_ptr<LayerProduct> layer,
    const at::Tensor& input,
    const at::Tensor& transposed)
    : layer_(std::move(layer)),
      input_(input),
      transposed_(transposed),
      sum_(at::linear(
          input,
          with_kept_cast(layer_->weight),
          with_kept_cast(layer_->bias))),
      input_version_(version_of(input)),
      weight_version_(version_of(transposed)),
      has_gradients_(at::GradMode::is_enabled()),
      keys_(c10::impl::tls_local_dispatch_key_set()) {}

at::Tensor BiasedProduct::placeholder(
    std::shared_ptr<LayerProduct> layer,
    const at::Tensor& input,
    const at::Tensor& transposed) {
  // make_shared needs a public constructor.
  const std::shared_ptr<BiasedProduct> keeper(
      new BiasedProduct(std::move(layer), input, transposed));
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(kRecordingKey);
  at::Tensor made = make_placeholder(
      keeper->sum_.sizes(),
      keeper->sum_.options(),
      {keeper, 0, keeper.get()},
      "[gate] the product of a linear layer has no memory before an operator "
      "of LibTorch has used it, since its bias may be added next");
  if (keeper->sum_.requires_grad()) made.set_requires_grad(true);
  return made;
}

at::Tensor BiasedProduct::without_bias() const {
  const at::AutoGradMode as_before(has_gradients_);
  const c10::impl::ForceDispatchKeyGuard as_in_the_forward(keys_);
  if (input_version_ == version_of(input_) &&
      weight_version_ == version_of(transposed_)) {
    return at::matmul(input_, transposed_);
  }
  return at::sub(sum_, layer_->bias).to(sum_.scalar_type());
}

bool BiasedProduct::settle(const at::Tensor& tensor, bool adds_bias) {
  if (!tensor.key_set().has(kGateKey)) return false;
  const GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr || entry->watches.empty()) return false;
  const auto self =
      std::dynamic_pointer_cast<BiasedProduct>(entry->watches.front().keeper);
  if (self == nullptr) return false;
  if (adds_bias) {
    self->layer_->use = LayerProduct::Use::adds_bias;
    become(tensor, self->sum_);
    return true;
  }
  // A layer with both uses keeps its first one, so that results do not depend
  // on what came before.
  LayerProduct::Use unknown = LayerProduct::Use::unknown;
  self->layer_->use.compare_exchange_strong(
      unknown, LayerProduct::Use::keeps_product);
  become(tensor, self->without_bias());
  return true;
}

void BiasedProduct::call(GatedCall& call) {
  const auto arguments = call.arguments();
  const auto own = first_of(
      c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()),
      [&](const c10::IValue& value) -> std::optional<at::Tensor> {
        if (find_watch(value, this) == nullptr) return std::nullopt;
        return value.toTensor();
      });
  // The placeholder holds this keeper.
  const std::shared_ptr<BiasedProduct> self = shared_from_this();
  settle(*own, /*adds_bias=*/false);
  call.forget_keys();
  call.run();
}

}  // namespace accelerate::detail
