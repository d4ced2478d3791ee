#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "gate/gate.h"
#include "parallel/attention/attention_layer.h"
#include "parallel/context/attention_scope.h"

namespace accelerate::detail {

/// What this rank has of a projection: queries, keys and values side by side, or
/// some of them.
struct ProjectedPart {
  std::shared_ptr<const AttentionLayer> layer;
  /// Positions x batch x (parts x columns of this rank's heads).
  at::Tensor own;
  /// How many of queries, keys and values are side by side.
  std::int64_t num_parts = 1;
  /// `own` has the columns of this rank's heads only.
  bool is_split = false;
  /// Positions that the module's code expects of queries, and of keys.
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;
  /// The sequence of which keys and values are this rank's positions; unset if
  /// every rank has all.
  std::optional<DividedSequence> sequence = std::nullopt;
  /// Factor of queries.
  double scale = 1;
  /// Keys or values after those of the sequence, which every rank has: 1 x batch
  /// x columns.
  std::vector<at::Tensor> extra = {};

  [[nodiscard]] ComputedHeads heads() const;
  [[nodiscard]] std::int64_t own_width() const;
};

/// Whom the code of a MultiheadAttention calls operators on in place of a
/// projection: a tensor of the sizes that one process has, without memory
/// (make_placeholder).
class Projection final : public GateKeeper,
                         public std::enable_shared_from_this<Projection> {
 public:
  /// A placeholder with the sizes of queries (`is_query`), or of keys or values;
  /// with those of keys for all side by side.
  static at::Tensor placeholder(ProjectedPart part, bool is_query);

  void call(GatedCall& call) override;

  /// What a value stands for; null unless it is a placeholder of a projection.
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
  /// The tensor itself in place of a placeholder of it.
  [[nodiscard]] at::Tensor made(const at::Tensor& view) const;

  ProjectedPart part_;
};

}  // namespace accelerate::detail
