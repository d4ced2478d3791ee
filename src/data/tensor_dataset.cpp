#include <accelerate/data_loader.h>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

at::Tensor stack_rows(const std::vector<at::Tensor>& rows) { return at::stack(rows, 0); }

std::int64_t common_rows(std::span<const at::Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dim() == 0) {
      throw ConfigError(concat(
          "[data] tensor ", i, " of a TensorDataset has no dimension; dimension 0 counts samples"));
    }
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw ConfigError(concat(
          "[data] the tensors of a TensorDataset have ", tensors[0].size(0), " and ",
          tensors[i].size(0), " rows; give them equally many"));
    }
  }
  return tensors[0].size(0);
}

at::Tensor take_rows(const at::Tensor& tensor, std::span<const std::int64_t> indices) {
  // Borrows: index_select reads the indices before it returns.
  const at::Tensor index = at::from_blob(
      const_cast<std::int64_t*>(indices.data()), {static_cast<std::int64_t>(indices.size())},
      at::kLong);
  return tensor.index_select(0, tensor.is_cpu() ? index : index.to(tensor.device()));
}

}  // namespace accelerate::detail
