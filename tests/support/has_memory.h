#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::testing {

/// Whether the tensor's values are there, without reading them: a gate would
/// bring them.
inline bool has_memory(const at::Tensor& tensor) {
  return tensor.storage()
             .unsafeGetStorageImpl()
             ->_mutable_data_ptr_no_checks()
             .get() != nullptr;
}

}  // namespace accelerate::testing
