#include <accelerate/tensor_dataset.h>

#include <sstream>
#include <string>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/collate.h>
#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

void throw_ragged(std::size_t first, std::size_t other) {
  throw ConfigError(concat(
      "[data] the samples of a batch have different numbers of tensors, ", first, " and ", other,
      ", so they cannot be stacked; give the loader a collate function"));
}

at::Tensor stack_rows(const std::vector<at::Tensor>& rows) {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].sizes() != rows[0].sizes()) {
      throw ConfigError(concat(
          "[data] the samples of a batch have different shapes, ", shape_text(rows[0]), " first and ",
          shape_text(rows[i]), " at place ", i,
          ", so they cannot be stacked; make them equal, or give the loader a collate function such "
          "as PadCollate"));
    }
  }
  return at::stack(rows, 0);
}

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
