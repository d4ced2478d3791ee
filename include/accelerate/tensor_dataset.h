#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

namespace detail {
/// Throws ConfigError if the numbers of rows differ.
ACCELERATE_API std::int64_t common_rows(std::span<const at::Tensor> tensors);
ACCELERATE_API at::Tensor take_rows(
    const at::Tensor& tensor,
    std::span<const std::int64_t> indices);
}  // namespace detail

/// Tensors with equal numbers of rows; sample i is row i of each. A batch is a
/// tuple of tensors, each made by one index_select, in its own memory.
template <std::size_t n>
class TensorDataset {
 public:
  /// Throws ConfigError if the numbers of rows differ.
  template <std::same_as<at::Tensor>... Tensors>
    requires(sizeof...(Tensors) == n && n > 0)
  explicit TensorDataset(Tensors... tensors)
      : tensors_{std::move(tensors)...}, size_(detail::common_rows(tensors_)) {}
  // Moving copies, which shares the tensors, so a moved-from dataset stays
  // valid.
  TensorDataset(const TensorDataset&) = default;
  TensorDataset& operator=(const TensorDataset&) = default;
  ~TensorDataset() = default;

  /// Number of samples: dimension 0 of the tensors.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// A tuple of the tensors' rows at `indices`, copied.
  [[nodiscard]] auto get_batch(std::span<const std::int64_t> indices) const {
    return std::apply(
        [&](const auto&... tensor) {
          return std::tuple{detail::take_rows(tensor, indices)...};
        },
        tensors_);
  }

 private:
  std::array<at::Tensor, n> tensors_;
  std::int64_t size_;
};
template <class... Tensors>
TensorDataset(Tensors...) -> TensorDataset<sizeof...(Tensors)>;

}  // namespace accelerate
