#include "parallel/replicate/trainable_rows.h"

namespace accelerate::detail {

ParameterKind kind_of(const at::Tensor& parameter) {
  return {parameter.scalar_type(), parameter.device(), parameter.numel()};
}

TrainableRows trainable_rows(
    const ParameterTable& table,
    bool (*is_chosen)(const Parameter& row)) {
  TrainableRows rows;
  for (const Parameter* row : table.trainable()) {
    if (!is_chosen(*row)) continue;
    rows.numbers.emplace(
        row->tensor.unsafeGetTensorImpl(), rows.tensors.size());
    rows.names.push_back(row->name);
    rows.tensors.push_back(row->tensor);
    rows.kinds.push_back(kind_of(row->tensor));
  }
  return rows;
}

}  // namespace accelerate::detail
