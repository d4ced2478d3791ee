#include "pipeline/values.h"

#include <optional>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Whether each tensor of a value is present, according to its structure.
std::vector<bool> presence_in(const std::string& structure) {
  std::vector<bool> presence;
  for (std::size_t i = 0; i < structure.size(); ++i) {
    const char part = structure[i];
    if (part == 't' || part == 'n') presence.push_back(part == 't');
    if (part < '0' || part > '9') continue;
    // Skips a key.
    std::size_t size = 0;
    for (; structure[i] != ':'; ++i)
      size = 10 * size + static_cast<std::size_t>(structure[i] - '0');
    i += size;
  }
  return presence;
}

// Index of the first undefined tensor that should be present.
std::optional<std::size_t> find_undefined(const PipelineValue& value) {
  const std::vector<bool> presence = presence_in(value.structure);
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    if (presence[i] && !value.tensors[i].defined()) return i;
  }
  return std::nullopt;
}

}  // namespace

void require_tensors(const PipelineValue& value, const std::string& layer) {
  const auto undefined = find_undefined(value);
  if (!undefined) return;
  throw ConfigError(format(
      "[pipeline] layer \"{}\" returned an undefined tensor as value {}; "
      "return a tensor, or a std::optional without value",
      layer,
      *undefined));
}

std::vector<std::int64_t> micro_batch_rows(std::int64_t rows, int count) {
  std::vector<std::int64_t> sizes(
      static_cast<std::size_t>(count), rows / count);
  for (std::int64_t i = 0; i < rows % count; ++i)
    ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<PipelineValue> cut_micro_batches(
    const PipelineValue& batch,
    const std::vector<std::int64_t>& rows) {
  std::vector<PipelineValue> parts(rows.size());
  for (PipelineValue& part : parts) part.structure = batch.structure;
  for (const at::Tensor& tensor : batch.tensors) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      parts[i].tensors.push_back(
          tensor.defined() ? tensor.narrow(0, begin, rows[i]) : tensor);
      begin += rows[i];
    }
  }
  return parts;
}

PipelineValue join_micro_batches(const std::vector<PipelineValue>& parts) {
  PipelineValue whole{{}, parts[0].structure};
  for (const PipelineValue& part : parts) {
    if (part.structure == whole.structure) continue;
    throw ConfigError(
        "[pipeline] the last layer must nest values alike for all "
        "micro-batches, but does not, so they cannot be joined; leave out "
        "return_outputs and gather_outputs");
  }
  for (std::size_t i = 0; i < parts[0].tensors.size(); ++i) {
    std::vector<at::Tensor> pieces;
    for (const PipelineValue& part : parts) pieces.push_back(part.tensors[i]);
    const at::Tensor& first = pieces[0];
    whole.tensors.push_back(
        !first.defined()       ? first
            : first.dim() == 0 ? at::stack(pieces)
                               : at::cat(pieces));
  }
  return whole;
}

std::int64_t num_rows_of(
    const PipelineValue& inputs,
    const PipelineValue& targets) {
  std::optional<std::int64_t> rows;
  for (const PipelineValue* value : {&inputs, &targets}) {
    const bool has_undefined = find_undefined(*value).has_value();
    for (const at::Tensor& tensor : value->tensors) {
      if (has_undefined || (tensor.defined() && tensor.dim() == 0)) {
        throw ConfigError(
            "[pipeline] a batch must have tensors with samples along dimension "
            "0, but has an undefined tensor or a number");
      }
      if (!tensor.defined()) continue;
      if (rows.value_or(tensor.size(0)) != tensor.size(0)) {
        throw ConfigError(format(
            "[pipeline] all tensors of a batch must have the same number of "
            "samples (dimension 0), but have {} and {}",
            *rows,
            tensor.size(0)));
      }
      rows = tensor.size(0);
    }
  }
  return rows.value_or(0);
}

}  // namespace accelerate::detail
