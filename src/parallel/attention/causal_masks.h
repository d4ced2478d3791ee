#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "parallel/context/attention_scope.h"

namespace accelerate::detail {

/// Recognizes masks that are merely causal, for which a ring computes and sends
/// half.
class CausalMasks {
 public:
  /// Whether `mask` (this rank's queries x keys of the whole sequence, added to
  /// scores) lets every query attend to itself and earlier keys (0) and to
  /// nothing else (-inf), on all ranks. Collective for a new mask, which must
  /// be new on all ranks alike.
  bool is_causal(const at::Tensor& mask, const DividedSequence& sequence);

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::int64_t offset = 0;
    std::int64_t version = 0;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    bool is_causal = false;
  };

  std::mutex mutex_;
  /// The most recent masks.
  std::vector<Known> known_;
};

}  // namespace accelerate::detail
