#include <accelerate/tensor_dataset.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/SmallVector.h>

#include <accelerate/collate.h>
#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Throws ConfigError if shapes differ.
at::Tensor stack_rows(const std::vector<at::Tensor>& rows) {
  const auto num_undefined = std::ranges::count_if(
      rows, [](const auto& row) { return !row.defined(); });
  if (num_undefined == static_cast<std::ptrdiff_t>(rows.size())) return {};
  if (num_undefined > 0) {
    throw ConfigError(format(
        "[data] {} of {} samples of a batch lack a tensor that the others "
        "have, so they cannot be stacked; pass the loader a collate function",
        num_undefined,
        rows.size()));
  }
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].sizes() != rows[0].sizes()) {
      throw ConfigError(format(
          "[data] the samples of a batch have different shapes, {} first and "
          "{} at place {}, so they cannot be stacked; make them equal, or pass "
          "the loader a collate function such as PadCollate",
          rows[0].sizes(),
          rows[i].sizes(),
          i));
    }
  }
  return at::stack(rows, 0);
}

}  // namespace

void stack_samples(const std::vector<NestedParts>& samples) {
  const NestedParts& first = samples.front();
  for (const NestedParts& sample : samples) {
    if (sample.tensors.size() == first.tensors.size()) continue;
    throw ConfigError(format(
        "[data] the samples of a batch have different numbers of tensors, {} "
        "and {}, so they cannot be stacked; pass the loader a collate function",
        first.tensors.size(),
        sample.tensors.size()));
  }
  if (first.num_unvisited_bytes > 0 && samples.size() > 1) {
    throw ConfigError(format(
        "[data] samples have {} bytes of members that their visit_tensors() "
        "does not visit, of which stacking would keep only the first sample's; "
        "visit them, or pass the loader a collate function",
        first.num_unvisited_bytes));
  }
  require_same_parts(
      samples,
      /*compares_lists=*/true,
      "[data] the samples of a batch",
      "only tensors are stacked: make it a tensor, or pass the loader a "
      "collate function");
  for (std::size_t i = 0; i < first.tensors.size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const NestedParts& sample : samples)
      rows.push_back(*sample.tensors[i]);
    *first.tensors[i] = stack_rows(rows);
  }
}

std::int64_t common_rows(std::span<const at::Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dim() == 0) {
      throw ConfigError(format(
          "[data] tensor {} of a TensorDataset must have a dimension, which "
          "counts samples, but has none",
          i));
    }
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw ConfigError(format(
          "[data] the tensors of a TensorDataset must have equally many rows, "
          "but have {} and {}",
          tensors[0].size(0),
          tensors[i].size(0)));
    }
  }
  return tensors[0].size(0);
}

namespace {

// True for rows that a plain copy can handle: contiguous, and too few to need
// threads.
bool is_plain_copy(
    const at::Tensor& tensor,
    std::size_t num_rows,
    std::size_t row_bytes) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 18;
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
      tensor.is_contiguous() && !tensor.is_quantized() && !tensor.is_conj() &&
      !tensor.is_neg() && !tensor.requires_grad() &&
      num_rows * row_bytes <= kMostBytes;
}

}  // namespace

at::Tensor take_rows(
    const at::Tensor& tensor,
    std::span<const std::int64_t> indices) {
  const std::int64_t size = tensor.size(0);
  const auto row_bytes =
      size == 0 ? 0 : tensor.nbytes() / static_cast<std::size_t>(size);
  if (!is_plain_copy(tensor, indices.size(), row_bytes)) {
    // The tensor borrows the indices: index_select reads them before it
    // returns.
    const at::Tensor index = at::from_blob(
        const_cast<std::int64_t*>(indices.data()),
        {static_cast<std::int64_t>(indices.size())},
        at::kLong);
    return tensor.index_select(
        0, tensor.is_cpu() ? index : index.to(tensor.device()));
  }
  c10::SmallVector<std::int64_t, 5> sizes(
      tensor.sizes().begin(), tensor.sizes().end());
  sizes[0] = static_cast<std::int64_t>(indices.size());
  const at::Tensor rows = at::empty(sizes, tensor.options());
  const auto* const from =
      static_cast<const std::byte*>(tensor.const_data_ptr());
  auto* to = static_cast<std::byte*>(rows.mutable_data_ptr());
  for (const std::int64_t i : indices) {
    if (i < 0 || i >= size) {
      throw ConfigError(format(
          "[data] a TensorDataset has {} samples, but no sample {}", size, i));
    }
    if (row_bytes > 0)
      std::memcpy(
          to, from + static_cast<std::size_t>(i) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

}  // namespace accelerate::detail
