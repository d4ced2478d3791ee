#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::testing {

/// True if the tensor has memory. Does not read the values: reading passes
/// through the gate, which fills them in.
inline bool has_memory(const at::Tensor& tensor) {
  return tensor.storage()
             .unsafeGetStorageImpl()
             ->_mutable_data_ptr_no_checks()
             .get() != nullptr;
}

}  // namespace accelerate::testing
