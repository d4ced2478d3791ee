#pragma once

#include <optional>

#include <accelerate/attention.h>

#include "activations/replaced_attention.h"

namespace accelerate::detail {

/// The sequence whose shards this thread computes with.
struct DividedSequence {
  Group group;
  SequenceShards shards;
  /// Exchange heads (Ulysses) rather than keys and values.
  bool exchange_heads = false;
  KeyValueRotation rotation = KeyValueRotation::allgather;
  std::optional<at::Tensor> document_ids = std::nullopt;
};

/// While it lives, aten::scaled_dot_product_attention on this thread attends to
/// the whole sequence, with its own arguments: is_causal means the order of the
/// sequence. Attention of this rank's queries to keys of another number is
/// cross-attention to keys that every rank has, and stays as it is. Other
/// threads, and programs without such a scope, pay nothing. Destroyed on the
/// thread that made it, the innermost first.
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

/// The sequence of the innermost AttentionScope on this thread; null outside of
/// all.
const DividedSequence* divided_sequence();

/// Whether this thread computes, inside an AttentionScope, with the positions of
/// one rank among several.
bool divides_sequence();

}  // namespace accelerate::detail
