#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "gate/gate.h"
#include "gate/weight_product.h"
#include "parallel/tensor/shared_entrance.h"
#include "parallel/tensor/watched_split.h"

namespace accelerate::detail {

/// Watches split parameters (gate/watched_tensor.h): where a module multiplies
/// by one, or looks up embeddings in it, computes this rank's share, with the
/// collective before or after. C++ modules write products as `linear`, or as
/// `addmm` or `matmul` with the transposed weight.
class SplitKeeper final : public GateKeeper,
                          public std::enable_shared_from_this<SplitKeeper> {
 public:
  explicit SplitKeeper(Group group) : group_(std::move(group)) {}

  /// Returns the number of the parameter. The rows of one or two projections
  /// that attention takes have the numbers that follow.
  std::size_t add(WatchedSplit split);

  /// Inside a forward, an operator that would mistake a slice for the full
  /// parameter is an error. Outside, optimizers and checkpoints work on slices.
  void begin_forward();
  void end_forward();
  void abandon_forward();
  /// Drops the input that layers share, which keeps a tensor alive.
  void forget_input() { entrance_.forget(); }
  [[nodiscard]] bool is_in_forward() const { return num_forwards_ > 0; }

  /// Describes the last slice that a layer returned, for messages; empty if no
  /// layer returned one in this forward.
  [[nodiscard]] const std::string& last_slice() const { return last_slice_; }

  /// While the parameters are full (full_parameters()), operators on them run
  /// as in a single process.
  void set_full(bool is_full) { is_full_ = is_full; }

  void call(GatedCall& call) override;

 private:
  /// A call of a module that is not split.
  struct WholeCall {
    const WatchedSplit* weight = nullptr;
    std::size_t input_at = 0;
  };

  /// A product with a split matrix.
  struct Product {
    const WatchedSplit* weight = nullptr;
    WeightProduct factors;
  };

  /// The parameter that a value is or is a view of; null if neither.
  [[nodiscard]] const WatchedSplit* find(const c10::IValue& value) const;
  [[nodiscard]] std::optional<Product> product_in(GatedCall& call) const;
  void multiply(GatedCall& call, const Product& product);
  void follow_placement(bool takes_slice, bool returns_slice) const;
  /// Whether the model's code is running, including recomputation in a
  /// backward.
  [[nodiscard]] bool is_in_model() const;
  [[nodiscard]] at::Tensor multiply_locally(
      GatedCall& call,
      const Product& product,
      const at::Tensor& bias);
  void add_up(
      GatedCall& call,
      const WatchedSplit& weight,
      at::Tensor result,
      const at::Tensor& bias);
  [[nodiscard]] bool convolve(GatedCall& call);
  [[nodiscard]] std::optional<WholeCall> whole_call_in(GatedCall& call) const;
  [[nodiscard]] bool call_whole_module(GatedCall& call);
  void sum_gradients_of_arguments(GatedCall& call) const;
  [[nodiscard]] bool look_up(GatedCall& call);
  [[nodiscard]] bool gather_rows(GatedCall& call) const;
  [[nodiscard]] bool take_projections(GatedCall& call);
  void run_with_shared_gradients(GatedCall& call);
  void require_slice(GatedCall& call);
  void remember(const WatchedSplit& weight, const at::Tensor& output);

  Group group_;
  std::vector<WatchedSplit> splits_;
  std::atomic<int> num_forwards_{0};
  bool is_full_ = false;
  std::string last_slice_;
  SharedEntrance entrance_;
};

}  // namespace accelerate::detail
