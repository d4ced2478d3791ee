#include "gate/kept_casts.h"

#include <array>
#include <memory>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include "gate/gate_key.h"
#include "gate/layer_products.h"
#include "gate/mode_keys.h"
#include "gate/transpose_of.h"

namespace accelerate::detail {

namespace {

// Thread-local because the dispatch key is included per thread.
thread_local KeptCasts* innermost_casts = nullptr;

const void* place_of_memory(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                              : nullptr;
}

// Keepers see what operators do with their tensors.
bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
      tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
      !tensor.key_set().has(kGateKey) && !tensor.is_inference();
}

void run_with_kept_casts(
    const c10::OperatorHandle& operation,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
  const std::size_t num_arguments = operation.schema().arguments().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(num_arguments);
       value != stack->end();
       ++value) {
    if (!value->isTensor() || !value->toTensor().defined()) continue;
    at::Tensor cast = with_kept_cast(value->toTensor());
    if (!cast.is_same(value->toTensor())) *value = std::move(cast);
  }
  const auto below = keys &
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kReplacingKey);
  operation.redispatchBoxed(below, stack);
}

// Operators that autocast runs in lower precision on all devices. A process can
// have only one kernel per operator and dispatch key; matmul's serves
// LayerProductScope as well.
void register_cast_kernels() {
  register_product_kernels();
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", kReplacingKey, __FILE__, __LINE__);
    constexpr std::array kOperators{
        "linear",
        "mm",
        "addmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input"};
    for (const char* const name : kOperators) {
      made->impl(
          name,
          torch::CppFunction::makeFromBoxedFunction<&run_with_kept_casts>());
    }
    return made;
  }();
}

}  // namespace

KeptCasts::KeptCasts(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters())
    parameters_.push_back({.parameter = parameter});
}

void KeptCasts::index() {
  by_storage_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_plain(parameters_[i].parameter))
      by_storage_.emplace(place_of_memory(parameters_[i].parameter), i);
  }
}

KeptCasts::Kept* KeptCasts::find(const at::Tensor& used) {
  const auto found = by_storage_.find(place_of_memory(used));
  if (found == by_storage_.end()) return nullptr;
  Kept& kept = parameters_[found->second];
  const at::Tensor& parameter = kept.parameter;
  const bool is_known = is_plain(parameter) &&
      place_of_memory(parameter) == place_of_memory(used) &&
      (used.is_same(parameter) || is_transpose_of(used, parameter));
  return is_known ? &kept : nullptr;
}

bool KeptCasts::is_valid(const Kept& kept, at::ScalarType dtype) {
  if (!kept.cast.defined() || kept.cast.scalar_type() != dtype ||
      kept.version != kept.parameter._version() ||
      kept.memory != kept.parameter.const_data_ptr() ||
      (kept.cast.is_inference() && !c10::InferenceMode::is_enabled())) {
    return false;
  }
  return !at::GradMode::is_enabled() ||
      kept.cast.requires_grad() == kept.parameter.requires_grad();
}

at::Tensor KeptCasts::cast_of(const at::Tensor& used) {
  if (!is_plain(used)) return {};
  const at::DeviceType device = used.device().type();
  if (!at::autocast::is_autocast_enabled(device) ||
      !at::autocast::is_autocast_cache_enabled())
    return {};
  const std::lock_guard lock(mutex_);
  if (num_kept_ == 0) index();
  Kept* const kept = find(used);
  if (kept == nullptr) return {};
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  if (!is_valid(*kept, dtype)) {
    // To a recording the cast comes from outside, as the parameter does.
    const c10::impl::ExcludeDispatchKeyGuard unrecorded(kRecordingKey);
    num_kept_ += kept->cast.defined() ? 0 : 1;
    kept->cast = kept->parameter.to(dtype);
    kept->version = kept->parameter._version();
    kept->memory = kept->parameter.const_data_ptr();
  }
  return used.is_same(kept->parameter) ? kept->cast : kept->cast.t();
}

bool KeptCasts::is_empty() const {
  const std::lock_guard lock(mutex_);
  return num_kept_ == 0;
}

void KeptCasts::drop() {
  const std::lock_guard lock(mutex_);
  if (num_kept_ == 0) return;
  for (Kept& kept : parameters_) kept.cast.reset();
  num_kept_ = 0;
}

KeptCastScope::KeptCastScope(KeptCasts& casts)
    : enclosing_(std::exchange(innermost_casts, &casts)),
      include_(kReplacingKey) {
  register_cast_kernels();
}

KeptCastScope::~KeptCastScope() { innermost_casts = enclosing_; }

at::Tensor with_kept_cast(const at::Tensor& tensor) {
  if (innermost_casts == nullptr) return tensor;
  at::Tensor cast = innermost_casts->cast_of(tensor);
  return cast.defined() ? cast : tensor;
}

}  // namespace accelerate::detail
