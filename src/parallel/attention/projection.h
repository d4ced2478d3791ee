#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "gate/gate.h"
#include "parallel/attention/attention_layer.h"
#include "parallel/context/attention_scope.h"

namespace accelerate::detail {

/// This rank's part of a projection: queries, keys and values side by side, or
/// some of them.
struct ProjectedPart {
  std::shared_ptr<const AttentionLayer> layer;
  /// Positions x batch x (parts x columns of this rank's heads).
  at::Tensor own;
  /// How many of queries, keys and values are side by side.
  std::int64_t num_parts = 1;
  /// True if `own` has the columns of this rank's heads only.
  bool is_split = false;
  /// Number of positions that the module's code expects of queries, and of
  /// keys.
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;
  /// The sequence whose local positions keys and values are; unset if every
  /// rank has all.
  std::optional<DividedSequence> sequence = std::nullopt;
  /// Factor that queries are multiplied with.
  double scale = 1;
  /// Keys or values that follow those of the sequence, and that every rank has:
  /// 1 x batch x columns.
  std::vector<at::Tensor> extra = {};

  [[nodiscard]] ComputedHeads heads() const;
  [[nodiscard]] std::int64_t own_width() const;
};

/// Stands in for a projection in the code of a MultiheadAttention: a tensor
/// with the sizes of a single process, without memory (make_placeholder).
class Projection final : public GateKeeper,
                         public std::enable_shared_from_this<Projection> {
 public:
  /// Returns a placeholder with the sizes of queries (`is_query`), or of keys
  /// or values; the sizes of keys if all are side by side.
  static at::Tensor placeholder(ProjectedPart part, bool is_query);

  void call(GatedCall& call) override;

  /// The projection that a value stands for; null unless it is a placeholder of
  /// one.
  static const ProjectedPart* find(const c10::IValue& value);

 private:
  explicit Projection(ProjectedPart part) : part_(std::move(part)) {}

  [[nodiscard]] at::Tensor placeholder_of(
      at::IntArrayRef sizes,
      at::ScalarType dtype);
  void add_bias(GatedCall& call);
  void divide(GatedCall& call);
  void scale(GatedCall& call);
  void append(GatedCall& call);
  void make_contiguous(GatedCall& call);
  [[nodiscard]] bool attend(GatedCall& call);
  /// The tensor that a placeholder stands for.
  [[nodiscard]] at::Tensor made(const at::Tensor& view) const;

  ProjectedPart part_;
};

}  // namespace accelerate::detail
