#pragma once

#include "gate/gate.h"

namespace accelerate::detail {

/// Watches the weights of a model spread over several devices: an operator runs
/// on the device of its first weight, and its other tensors are moved there.
class InputMover final : public GateKeeper {
 public:
  /// `owner` identifies the owner of the watches (TensorWatch).
  InputMover(const void* owner, std::size_t num_places)
      : owner_(owner), num_places_(num_places) {}
  void call(GatedCall& call) override;
  [[nodiscard]] std::size_t num_places() const override { return num_places_; }

 private:
  const void* owner_;
  std::size_t num_places_;
};

}  // namespace accelerate::detail
