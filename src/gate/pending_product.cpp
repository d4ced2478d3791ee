#include "gate/pending_product.h"

#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>

#include "gate/first_of.h"
#include "gate/placeholder.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

PendingProduct::PendingProduct(at::Tensor product, LayerCompletion layer)
    : product_(std::move(product)), layer_(std::move(layer)) {}

at::Tensor PendingProduct::placeholder(
    at::Tensor product,
    LayerCompletion layer) {
  // make_shared needs a public constructor.
  const std::shared_ptr<PendingProduct> keeper(
      new PendingProduct(std::move(product), std::move(layer)));
  at::Tensor made = make_placeholder(
      keeper->product_.sizes(),
      keeper->product_.options(),
      {keeper, 0, keeper.get()},
      "[gate] the result of a layer with a hook has no memory before an "
      "operator of LibTorch has used it, since its bias may be added next");
  if (keeper->product_.requires_grad()) made.set_requires_grad(true);
  return made;
}

bool PendingProduct::adds_bias(GatedCall& call, const at::Tensor& own) const {
  const auto& name = call.operation().operator_name();
  const std::span<c10::IValue> arguments = call.arguments();
  return name.name == "aten::add_" && name.overload_name == "Tensor" &&
      arguments[0].toTensor().is_same(own) &&
      arguments[2].toScalar().equal(1) && layer_.is_bias(arguments[1]);
}

void PendingProduct::call(GatedCall& call) {
  // The placeholder, which holds this keeper, becomes an ordinary tensor.
  const std::shared_ptr<PendingProduct> self = shared_from_this();
  const std::span<c10::IValue> arguments = call.arguments();
  const auto found = first_of(
      c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()),
      [&](const c10::IValue& value) -> std::optional<at::Tensor> {
        if (find_watch(value, this) == nullptr) return std::nullopt;
        return value.toTensor();
      });
  const at::Tensor own = *found;
  if (adds_bias(call, own)) {
    arguments.front() = product_;
    layer_.add_bias(call);
    become(own, layer_.finish(product_));
    call.results().front() = own;
    return;
  }
  become(own, layer_.finish(product_));
  call.forget_keys();
  call.run();
}

}  // namespace accelerate::detail
