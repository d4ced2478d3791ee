#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "precision/fp8/scaled_tensor.h"

namespace accelerate::detail {

/// The gradients of some parameters in float8 (e4m3), each with a scale of its
/// own. A gradient is cast and accumulated here as soon as a backward has
/// computed it, and the parameter keeps none.
class ScaledGradients {
 public:
  /// `group`: the ranks with replicas of the parameters. Gradients are sent in
  /// messages of about `message_bytes`.
  ScaledGradients(
      std::vector<at::Tensor> parameters,
      Group group,
      std::int64_t message_bytes);
  ~ScaledGradients();
  ScaledGradients(const ScaledGradients&) = delete;
  ScaledGradients& operator=(const ScaledGradients&) = delete;

  /// From now on, averages among the ranks of `group`.
  void average_among(Group group) { group_ = std::move(group); }
  /// Gives all ranks the mean of their gradients. Ranks agree on the smallest
  /// of their scales; each adds up its shard of all ranks' codes in fp32, in
  /// rank order, and casts the mean with that scale: a quarter of the bytes of
  /// an fp32 all-reduce. A rank without a gradient contributes zeros; if no
  /// rank has one, none is set. Collective.
  void average();
  /// Gives the parameters their gradients back, in their own dtype.
  void restore();
  /// Drops the gradient of `parameter`, if it is here.
  void drop(const at::Tensor& parameter);
  /// Number of bytes of all gradients here.
  [[nodiscard]] std::int64_t nbytes() const;

 private:
  class Hook;
  struct Entry {
    at::Tensor parameter;
    ScaledTensor gradient = {};
  };
  using Message = std::vector<Entry*>;

  void hook(std::size_t index);
  void take(std::size_t index);
  /// The smallest scales of all ranks: infinity where no rank has a gradient.
  [[nodiscard]] at::Tensor agree_on_scales() const;
  void average(const Message& message) const;

  std::vector<Entry> entries_;
  Group group_;
  std::int64_t message_bytes_;
  // Locked by backward threads.
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::size_t> index_of_;
  std::vector<std::function<void()>> unhook_;
};

}  // namespace accelerate::detail
