#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gate/gate.h"
#include "precision/fp8/float8_linear.h"

namespace accelerate::detail {

/// Watches the weights of linear layers (gate/watched_tensor.h), and computes
/// products with them in float8, whichever operators the module's code calls.
class Float8Keeper final : public GateKeeper {
 public:
  /// `only_in_forwards`: products outside begin_forward() and end_forward(), or
  /// in a forward begun with false, are left unchanged.
  explicit Float8Keeper(bool only_in_forwards)
      : only_in_forwards_(only_in_forwards) {}

  /// Adds a layer with a weight of these sizes; returns the watch's unit.
  std::size_t add(
      c10::intrusive_ptr<Float8Layer> layer,
      std::vector<std::int64_t> weight_sizes);

  [[nodiscard]] const Float8Layers& layers() const { return layers_; }

  void begin_forward(bool in_float8);
  void end_forward();
  void abandon_forward();

  void call(GatedCall& call) override;

 private:
  struct Product {
    std::size_t unit = 0;
    at::Tensor input;
    at::Tensor transposed_weight;
    at::Tensor bias = {};
  };

  /// A watched weight as an operand.
  struct Operand {
    std::size_t unit = 0;
    bool is_transposed = false;
  };

  [[nodiscard]] bool is_active() const;
  [[nodiscard]] std::optional<Operand> operand(const c10::IValue& value) const;
  [[nodiscard]] std::optional<Product> product_in(GatedCall& call) const;

  bool only_in_forwards_;
  Float8Layers layers_;
  std::vector<std::vector<std::int64_t>> weight_sizes_;
  // Read by backward threads, which recompute forwards.
  std::atomic<int> num_forwards_ = 0;
  std::atomic<bool> in_float8_ = true;
};

}  // namespace accelerate::detail
