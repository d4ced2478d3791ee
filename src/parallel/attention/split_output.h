#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "gate/gate.h"
#include "parallel/attention/attention_layer.h"

namespace accelerate::detail {

/// The outputs of this rank's heads, positions x batch x columns, behind a
/// placeholder with the sizes of all heads.
class SplitOutput final : public GateKeeper,
                          public std::enable_shared_from_this<SplitOutput> {
 public:
  /// `rows`: number of positions that the module's code expects.
  static at::Tensor placeholder(
      std::shared_ptr<const AttentionLayer> layer,
      at::Tensor own,
      std::int64_t rows);

  void call(GatedCall& call) override;

 private:
  SplitOutput(std::shared_ptr<const AttentionLayer> layer, at::Tensor own)
      : layer_(std::move(layer)), own_(std::move(own)) {}

  [[nodiscard]] at::Tensor placeholder_of(at::IntArrayRef sizes);
  [[nodiscard]] at::Tensor of_all_heads() const;

  std::shared_ptr<const AttentionLayer> layer_;
  at::Tensor own_;
};

}  // namespace accelerate::detail
