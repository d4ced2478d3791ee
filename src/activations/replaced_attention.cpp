#include "activations/replaced_attention.h"

#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "gate/mode_keys.h"

namespace accelerate::detail {

namespace {

// Thread-local because the dispatch key is included per thread.
thread_local const ReplacedAttention* innermost = nullptr;

}  // namespace

at::Tensor attend_by_operator(const AttentionArguments& arguments) {
  return at::scaled_dot_product_attention(
      arguments.query,
      arguments.key,
      arguments.value,
      arguments.attn_mask,
      arguments.dropout_p,
      arguments.is_causal,
      arguments.scale,
      arguments.enable_gqa);
}

struct ReplacedAttentionKernel {
  static at::Tensor call(
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const std::optional<at::Tensor>& attn_mask,
      double dropout_p,
      bool is_causal,
      std::optional<double> scale,
      bool enable_gqa) {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
    const AttentionArguments arguments{
        query,
        key,
        value,
        attn_mask && attn_mask->defined() ? attn_mask : std::nullopt,
        dropout_p,
        is_causal,
        scale,
        enable_gqa};
    if (innermost == nullptr) return attend_by_operator(arguments);
    // For a recording, the result comes from outside its segment, and is kept.
    const c10::impl::ExcludeDispatchKeyGuard unrecorded(kRecordingKey);
    return innermost->attend_(*innermost, arguments);
  }
};

namespace {

// A process can have only one kernel per operator and dispatch key.
void register_kernel() {
  register_replacing_key();
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", kReplacingKey, __FILE__, __LINE__);
    made->impl("scaled_dot_product_attention", &ReplacedAttentionKernel::call);
    return made;
  }();
}

const ReplacedAttention* exchanged(const ReplacedAttention* attention) {
  register_kernel();
  return std::exchange(innermost, attention);
}

}  // namespace

at::Tensor cast_by_autocast(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device)
      ? at::autocast::cached_cast(
            at::autocast::get_autocast_dtype(device), tensor, device)
      : tensor;
}

ReplacedAttention::ReplacedAttention(Attend attend)
    : attend_(std::move(attend)),
      enclosing_(exchanged(this)),
      include_(kReplacingKey) {}

ReplacedAttention::~ReplacedAttention() { innermost = enclosing_; }

at::Tensor ReplacedAttention::enclosing(
    const AttentionArguments& arguments) const {
  return enclosing_ == nullptr ? attend_by_operator(arguments)
                               : enclosing_->attend_(*enclosing_, arguments);
}

}  // namespace accelerate::detail
