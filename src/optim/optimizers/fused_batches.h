#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Tensors processed by one kernel call. Their step counts are equal, so one
/// 0-d tensor serves all.
struct Batch {
  at::ScalarType dtype;
  at::Device device;
  std::int64_t step;
  /// The divisor of gradients.
  std::optional<at::Tensor> divisor = std::nullopt;
  std::vector<at::Tensor> parameters = {}, gradients = {};
  std::vector<at::Tensor> first = {}, second = {}, largest = {};
  /// Counts `step` anew; set only if the step is recorded.
  std::function<double()> count = nullptr;
};

/// Gives kernels, which ignore strides, dense copies of the tensors that need
/// them, and writes results back to the user's tensors.
class DenseCopies {
 public:
  /// Returns `tensor` in the memory order of `parameter`.
  static at::Tensor input(
      const at::Tensor& tensor,
      const at::Tensor& parameter);
  /// Like input(), for a tensor that the kernel changes.
  at::Tensor output(const at::Tensor& tensor, const at::Tensor& parameter);
  /// Returns a copy if the parameter is a slice of a larger tensor.
  at::Tensor parameter(const at::Tensor& tensor);
  void write_back();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

/// Complex numbers as pairs of real ones; the tensor's own memory, unless it is
/// a gradient whose conjugation is still due.
at::Tensor as_real(const at::Tensor& tensor);

/// The parameters of a group, by dtype, device and step count.
class Batches {
 public:
  /// `first`, `second` and `largest` are the parameter's state; undefined if
  /// the optimizer does not have them.
  void add(
      const at::Tensor& parameter,
      std::int64_t step,
      const at::Tensor& first,
      const at::Tensor& second = {},
      const at::Tensor& largest = {},
      std::function<double()> count = nullptr);

  /// Calls the kernel once per batch, with one step count per parameter.
  /// `divisor` may be undefined.
  void run(
      const at::Tensor& divisor,
      const std::function<
          void(const Batch& batch, const std::vector<at::Tensor>& steps)>&
          kernel);

 private:
  Batch& batch_for(const at::Tensor& parameter, std::int64_t step);

  std::vector<Batch> batches_;
  DenseCopies dense_;
};

}  // namespace accelerate::detail
