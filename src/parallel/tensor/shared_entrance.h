#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/autograd/region_entrance.h"
#include "parallel/tensor/watched_split.h"

namespace accelerate::detail {

/// How the last input of a product entered the region. Layers that take the
/// same input, such as query, key and value projections, share the gathered
/// input, and the message of its gradient. Recomputed forwards run on backward
/// threads, so it has a mutex.
class SharedEntrance {
 public:
  [[nodiscard]] RegionEntrance
  of(const WatchedSplit& weight, const at::Tensor& input, const Group& group);
  /// Drops the input, which keeps a tensor alive.
  void forget();

 private:
  /// The input of a product, and how it was transformed.
  struct Input {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    std::int64_t version = 0;
    bool is_rowwise = false;
    TensorPlacement placement;
    bool grad_mode = true;
    bool autocast = false;

    bool operator==(const Input& other) const = default;
  };

  std::mutex mutex_;
  std::optional<Input> input_;
  std::optional<RegionEntrance> entrance_;
};

}  // namespace accelerate::detail
