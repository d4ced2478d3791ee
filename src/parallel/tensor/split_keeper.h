#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "gate/gate.h"
#include "parallel/tensor/split_layers.h"

namespace accelerate::detail {

/// A parameter behind the gate, of which this rank has a slice.
struct WatchedSplit {
  SplitParameter split;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> local_shape;
  /// Where the slices of all ranks begin, and the end.
  std::vector<std::int64_t> begins;

  [[nodiscard]] std::vector<std::int64_t> sizes() const;
};

/// Watches split parameters (gate/watched_tensor.h): where a module multiplies
/// by one, or looks up embeddings, it does this rank's share, with the
/// collective that comes before or after. C++ modules write products as
/// `linear`, as `addmm` or `matmul` with the transposed weight.
class SplitKeeper final : public GateKeeper {
 public:
  explicit SplitKeeper(Group group) : group_(std::move(group)) {}

  /// Returns the number of the parameter.
  std::size_t add(WatchedSplit split);

  /// Inside a forward, an operator that would take a slice for the full
  /// parameter is an error. Outside, optimizers and checkpoints work on slices.
  void begin_forward();
  void end_forward();
  void abandon_forward();
  [[nodiscard]] bool is_in_forward() const { return num_forwards_ > 0; }

  /// What the last layer that returned a slice returned, for messages; empty if
  /// there was none in this forward.
  [[nodiscard]] const std::string& last_slice() const { return last_slice_; }

  void call(GatedCall& call) override;

 private:
  /// A matrix that a tensor is multiplied by.
  struct Product {
    const WatchedSplit* weight = nullptr;
    std::size_t input_at = 0;
    at::Tensor transposed;
    at::Tensor bias = {};
  };

  [[nodiscard]] const WatchedSplit* find(const c10::IValue& value) const;
  [[nodiscard]] bool is_transposed(const c10::IValue& value) const;
  [[nodiscard]] std::optional<Product> product_in(GatedCall& call) const;
  void multiply(GatedCall& call, const Product& product);
  [[nodiscard]] at::Tensor own_heads(
      const at::Tensor& rows,
      const WatchedSplit& parameter,
      const SplitProduct& product) const;
  /// Whether the model's code runs, also for a second time in a backward.
  [[nodiscard]] bool is_in_model() const;
  void take_heads_of_biases(GatedCall& call) const;
  [[nodiscard]] at::Tensor multiply_by_heads(
      const at::Tensor& input,
      const Product& product) const;
  [[nodiscard]] at::Tensor input_of(
      const WatchedSplit& weight,
      const at::Tensor& input) const;
  [[nodiscard]] at::Tensor output_of(
      const WatchedSplit& weight,
      const at::Tensor& partial) const;
  [[nodiscard]] bool look_up(GatedCall& call);
  [[nodiscard]] at::Tensor look_up_vocabulary(
      GatedCall& call,
      const WatchedSplit& table) const;
  [[nodiscard]] bool gather_rows(GatedCall& call) const;
  void share_gradients(GatedCall& call) const;
  void require_slice(GatedCall& call);
  void remember(const WatchedSplit& weight, const at::Tensor& output);

  Group group_;
  std::vector<WatchedSplit> splits_;
  std::atomic<int> num_forwards_{0};
  std::string last_slice_;
};

}  // namespace accelerate::detail
