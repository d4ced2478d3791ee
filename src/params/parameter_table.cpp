#include "params/parameter_table.h"

#include <utility>

#include <torch/nn/module.h>

namespace accelerate::detail {

ParameterTable::ParameterTable(
    const torch::nn::Module& module,
    std::string prefix,
    const std::function<bool(const at::Tensor& tensor)>& leaves_out)
    : prefix_(std::move(prefix)) {
  const auto leave_out = [&](const std::string& key, const at::Tensor& tensor) {
    if (!leaves_out || !leaves_out(tensor)) return false;
    left_out_.push_back(name_of(key));
    left_out_tensors_.insert(tensor.unsafeGetTensorImpl());
    return true;
  };
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    if (item.value().defined()) leave_out(item.key(), item.value());
  }
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || leave_out(item.key(), tensor)) continue;
    const auto [entry, is_new] =
        by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), rows_.size());
    // A tied tensor is one row, found under each of its names.
    by_name_.emplace(name_of(item.key()), entry->second);
    if (is_new) {
      rows_.push_back(
          {name_of(item.key()),
           tensor,
           tensor,
           Layout::unsharded(tensor.sizes().vec())});
    }
  }
}

const Parameter* ParameterTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &rows_[found->second];
}

const Parameter* ParameterTable::find(const at::Tensor& tensor) const {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : &rows_[found->second];
}

void ParameterTable::set_local(Parameter& row, at::Tensor local) {
  by_local_[local.unsafeGetTensorImpl()] =
      static_cast<std::size_t>(&row - rows_.data());
  row.local = std::move(local);
}

const Parameter* ParameterTable::find_local(const at::Tensor& local) const {
  const auto found = by_local_.find(local.unsafeGetTensorImpl());
  return found == by_local_.end() ? nullptr : &rows_[found->second];
}

std::vector<const Parameter*> ParameterTable::trainable() const {
  std::vector<const Parameter*> out;
  for (const Parameter& row : rows_) {
    if (row.tensor.requires_grad()) out.push_back(&row);
  }
  return out;
}

}  // namespace accelerate::detail
