#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "gate/gate.h"
#include "parallel/attention/projection.h"

namespace accelerate::detail {

/// One call of a MultiheadAttention, from the product of queries and keys on.
/// Its code sees scores and weights with the sizes of a single process, without
/// memory. Their values are computed, for this rank's heads, only where needed:
/// never if a divided sequence is attended to in a ring or by exchanging heads;
/// for the weights that the module returns, once an operator reads them, on all
/// ranks alike.
class AttentionCall final : public GateKeeper,
                            public std::enable_shared_from_this<AttentionCall> {
 public:
  AttentionCall(const ProjectedPart& queries, const ProjectedPart& keys);

  /// The placeholder of the product: batch heads x queries x keys.
  [[nodiscard]] at::Tensor scores(std::int64_t batch, std::int64_t num_keys);

  void call(GatedCall& call) override;

 private:
  /// The result that a placeholder stands for; the module returns the last
  /// three.
  enum class Stage : std::size_t { scores, weights, summed, averaged };

  [[nodiscard]] at::Tensor
  placeholder(at::IntArrayRef sizes, Stage stage, at::ScalarType dtype);
  void call_on_scores(GatedCall& call);
  void call_on_weights(GatedCall& call, Stage stage);
  void take_mask(const at::Tensor& mask);
  void take_padding(const at::Tensor& mask);
  void drop(GatedCall& call);
  void attend(GatedCall& call);
  /// Whether a ring or an exchange of heads can attend, without weights.
  [[nodiscard]] bool can_exchange() const;
  [[nodiscard]] at::Tensor attend_by_exchange(
      const ProjectedPart& values) const;
  [[nodiscard]] at::Tensor weights_before_dropout() const;
  /// Weights as multiplied with values: batch x heads x queries x keys.
  [[nodiscard]] at::Tensor weights() const;
  /// The weights that the module returns.
  [[nodiscard]] at::Tensor returned(Stage stage) const;
  void read(GatedCall& call);

  ProjectedPart queries_;
  ProjectedPart keys_;
  std::int64_t batch_ = 1;
  std::int64_t num_keys_ = 0;
  /// Added to the scores, queries x keys; undefined without a mask.
  at::Tensor mask_;
  /// Keys that are not attended to, batch x keys; undefined without padding.
  at::Tensor padding_;
  bool exchanges_ = false;
  double dropout_p_ = 0;
  std::uint64_t seed_ = 0;
  double divisor_ = 1;
  /// The weights after dropout, unless they are exchanged: batch heads x
  /// queries x keys.
  at::Tensor weights_;
};

}  // namespace accelerate::detail
