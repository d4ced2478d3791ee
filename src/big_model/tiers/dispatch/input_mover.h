#pragma once

#include "gate/gate.h"

namespace accelerate::detail {

/// Watches weights of a model that is spread over several devices: an operator
/// runs where its first weight is, and its other tensors follow.
class InputMover final : public GateKeeper {
 public:
  /// `owner`: that of the watches (TensorWatch).
  InputMover(const void* owner, std::size_t num_places)
      : owner_(owner), num_places_(num_places) {}
  void call(GatedCall& call) override;
  [[nodiscard]] std::size_t num_places() const override { return num_places_; }

 private:
  const void* owner_;
  std::size_t num_places_;
};

}  // namespace accelerate::detail
