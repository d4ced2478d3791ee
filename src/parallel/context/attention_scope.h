#pragma once

#include <optional>

#include <accelerate/attention.h>

#include "activations/replaced_attention.h"

namespace accelerate::detail {

/// A sequence that is sharded over ranks.
struct DividedSequence {
  Group group;
  SequenceShards shards;
  /// True to exchange heads (Ulysses) rather than keys and values.
  bool exchange_heads = false;
  KeyValueRotation rotation = KeyValueRotation::allgather;
  std::optional<at::Tensor> document_ids = std::nullopt;
};

/// While alive, makes aten::scaled_dot_product_attention on this thread attend
/// to the whole sequence: is_causal refers to the order of the sequence. If
/// there are more or fewer keys than this rank's queries, it is cross-attention
/// to keys that every rank has, and stays as it is. Other threads, and programs
/// without such a scope, pay nothing. Must be destroyed on the thread that made
/// it, the innermost first.
class AttentionScope {
 public:
  explicit AttentionScope(DividedSequence sequence);
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;
  ~AttentionScope();

 private:
  [[nodiscard]] at::Tensor attend(const AttentionArguments& arguments) const;

  DividedSequence sequence_;
  const DividedSequence* enclosing_;
  ReplacedAttention replaced_;
};

/// The sequence of the innermost AttentionScope on this thread; null outside
/// any scope.
const DividedSequence* divided_sequence();

/// Whether this thread is inside an AttentionScope that divides the sequence
/// among several ranks.
bool divides_sequence();

}  // namespace accelerate::detail
