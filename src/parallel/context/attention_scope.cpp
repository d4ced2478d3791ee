#include "parallel/context/attention_scope.h"

#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "activations/replaced_operator.h"
#include "parallel/context/sequence_tensors.h"

namespace accelerate::detail {

namespace {

// Thread-local because the dispatch key is included per thread.
thread_local const DividedSequence* current_sequence = nullptr;

// Autocast comes after the key, so its cast has not happened yet.
at::Tensor as_autocast(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device)
      ? at::autocast::cached_cast(
            at::autocast::get_autocast_dtype(device), tensor, device)
      : tensor;
}

at::Tensor attend_to_sequence(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kReplacingKey);
  const std::int64_t queries = query.size(-2);
  const bool crosses = current_sequence != nullptr && key.size(-2) != queries &&
      queries == current_sequence->shards.local_length();
  if (current_sequence == nullptr || crosses) {
    return at::scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  }
  const DividedSequence& sequence = *current_sequence;
  SequenceAttentionOptions options{
      .is_causal = is_causal,
      .attn_mask = attn_mask && attn_mask->defined() ? attn_mask : std::nullopt,
      .document_ids = sequence.document_ids,
      .dropout_p = dropout_p,
      .scale = scale,
      .enable_gqa = enable_gqa,
      .rotation = sequence.rotation};
  const auto attention =
      sequence.exchange_heads ? &ulysses_attention : &ring_attention;
  return attention(
      as_autocast(query),
      as_autocast(key),
      as_autocast(value),
      sequence.group,
      sequence.shards,
      options);
}

// A process can have one kernel per operator and dispatch key.
void register_attention() {
  static const auto libraries = [] {
    auto others = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kReplacingKey, __FILE__, __LINE__);
    others->fallback(torch::CppFunction::makeFallthrough());
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", kReplacingKey, __FILE__, __LINE__);
    made->impl("scaled_dot_product_attention", &attend_to_sequence);
    return std::pair(std::move(others), std::move(made));
  }();
}

const DividedSequence* exchanged(const DividedSequence* sequence) {
  register_attention();
  return std::exchange(current_sequence, sequence);
}

}  // namespace

AttentionScope::AttentionScope(DividedSequence sequence)
    : sequence_(std::move(sequence)),
      enclosing_(exchanged(&sequence_)),
      include_(kReplacingKey) {}

AttentionScope::~AttentionScope() { current_sequence = enclosing_; }

const DividedSequence* divided_sequence() { return current_sequence; }

bool divides_sequence() {
  return current_sequence != nullptr && current_sequence->group.size() > 1;
}

}  // namespace accelerate::detail
