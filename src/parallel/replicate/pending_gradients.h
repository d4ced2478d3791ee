#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Gradients of backward passes that were not averaged over the ranks: the
/// earlier micro-steps of a window.
class PendingGradients {
 public:
  /// Called before and after a backward that is not averaged, with the same
  /// parameters, which outlive the object.
  void begin_backward(const std::vector<at::Tensor>& parameters);
  void end_backward(const std::vector<at::Tensor>& parameters);
  /// Called after a backward of whose beginning nobody knew: every gradient
  /// that a parameter has may come from it.
  void add_backward(const std::vector<at::Tensor>& parameters);
  /// Called if the parameters are others from here on.
  void take(const std::vector<at::Tensor>& parameters);
  /// Called when all gradients have been averaged, or used.
  void clear();

  /// Whether there was such a backward: the same on all ranks, though it may
  /// have reached this model only on some of them.
  [[nodiscard]] bool had_backward() const { return had_backward_; }
  [[nodiscard]] bool any() const { return !changed_.empty(); }
  /// Whether parameter number `index` got a gradient.
  [[nodiscard]] bool contains(std::size_t index) const {
    return any() && changed_[index];
  }

 private:
  /// A gradient's identity, and the number of times it was written to.
  using State = std::pair<const void*, std::int64_t>;
  static State state_of(const at::Tensor& parameter);

  bool had_backward_ = false;
  std::vector<State> before_;
  /// One entry per parameter; empty if none has changed.
  std::vector<bool> changed_;
};

}  // namespace accelerate::detail
