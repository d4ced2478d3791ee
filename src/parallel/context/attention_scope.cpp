#include "parallel/context/attention_scope.h"

#include <cstdint>
#include <utility>

#include "parallel/context/sequence_tensors.h"

namespace accelerate::detail {

namespace {

// Thread-local because the dispatch key is included per thread.
thread_local const DividedSequence* current_sequence = nullptr;

}  // namespace

AttentionScope::AttentionScope(DividedSequence sequence)
    : sequence_(std::move(sequence)),
      enclosing_(std::exchange(current_sequence, &sequence_)),
      replaced_([this](const auto&, const AttentionArguments& arguments) {
        return attend(arguments);
      }) {}

AttentionScope::~AttentionScope() { current_sequence = enclosing_; }

const DividedSequence* divided_sequence() { return current_sequence; }

at::Tensor AttentionScope::attend(const AttentionArguments& arguments) const {
  const std::int64_t queries = arguments.query.size(-2);
  const bool crosses = arguments.key.size(-2) != queries &&
      queries == sequence_.shards.local_length();
  if (crosses) return attend_by_operator(arguments);
  const SequenceAttentionOptions options{
      .is_causal = arguments.is_causal,
      .attn_mask = arguments.attn_mask,
      .document_ids = sequence_.document_ids,
      .dropout_p = arguments.dropout_p,
      .scale = arguments.scale,
      .enable_gqa = arguments.enable_gqa,
      .rotation = sequence_.rotation};
  const auto attention =
      sequence_.exchange_heads ? &ulysses_attention : &ring_attention;
  return attention(
      cast_by_autocast(arguments.query),
      cast_by_autocast(arguments.key),
      cast_by_autocast(arguments.value),
      sequence_.group,
      sequence_.shards,
      options);
}

bool divides_sequence() {
  return current_sequence != nullptr && current_sequence->group.size() > 1;
}

}  // namespace accelerate::detail
