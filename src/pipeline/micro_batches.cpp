#include "pipeline/micro_batches.h"

#include <optional>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

std::vector<std::int64_t> micro_batch_rows(std::int64_t rows, int count) {
  std::vector<std::int64_t> sizes(
      static_cast<std::size_t>(count), rows / count);
  for (std::int64_t i = 0; i < rows % count; ++i)
    ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<PipelineTensors> cut_micro_batches(
    const PipelineTensors& batch,
    const std::vector<std::int64_t>& rows) {
  std::vector<PipelineTensors> parts(rows.size());
  for (const at::Tensor& tensor : batch) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      parts[i].push_back(tensor.narrow(0, begin, rows[i]));
      begin += rows[i];
    }
  }
  return parts;
}

PipelineTensors join_micro_batches(const std::vector<PipelineTensors>& parts) {
  PipelineTensors whole;
  for (std::size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<at::Tensor> pieces;
    for (const PipelineTensors& part : parts) pieces.push_back(part[i]);
    whole.push_back(pieces[0].dim() == 0 ? at::stack(pieces) : at::cat(pieces));
  }
  return whole;
}

std::int64_t num_rows_of(
    const PipelineTensors& inputs,
    const PipelineTensors& targets) {
  std::optional<std::int64_t> rows;
  for (const PipelineTensors* tensors : {&inputs, &targets}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.dim() == 0) {
        throw ConfigError(
            "[pipeline] a batch has an undefined tensor or a number; give "
            "tensors with samples along dimension 0");
      }
      if (rows.value_or(tensor.size(0)) != tensor.size(0)) {
        throw ConfigError(format(
            "[pipeline] a batch has tensors of {} and of {} samples (dimension "
            "0); all are divided into micro-batches alike",
            *rows,
            tensor.size(0)));
      }
      rows = tensor.size(0);
    }
  }
  return rows.value_or(0);
}

}  // namespace accelerate::detail
