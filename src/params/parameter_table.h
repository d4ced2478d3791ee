#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "params/layout.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// One parameter as everybody outside the strategies knows it.
struct Parameter {
  std::string name;   ///< as named_parameters() spells it, after the prefix
  at::Tensor tensor;  ///< what forward reads
  at::Tensor local;   ///< what the optimizer steps on; `tensor` itself if whole
  Layout layout;
  std::string policy = {};  ///< what strategies do with it, in words
};

/// The parameters of one model, in the order of named_parameters(), a tensor
/// that has several names once under its first. Strategies write rows; the
/// rest of the library reads them.
class ParameterTable {
 public:
  ParameterTable() = default;
  /// Whole rows for all parameters of `module`. `prefix`, "stage_1." say, comes
  /// before all names, where other ranks' modules, which are other parts of the
  /// model, have the same: checkpoints and optimizer state know tensors by it.
  explicit ParameterTable(
      const torch::nn::Module& module,
      std::string prefix = {});

  [[nodiscard]] const std::vector<Parameter>& rows() const { return rows_; }
  [[nodiscard]] std::vector<Parameter>& rows() { return rows_; }
  /// What checkpoints call the tensor that the module calls `key`, be it a
  /// parameter or a buffer.
  [[nodiscard]] std::string name_of(const std::string& key) const {
    return prefix_ + key;
  }
  /// What the module calls the tensor that is called `name` here.
  [[nodiscard]] std::string key_of(const std::string& name) const {
    return name.substr(prefix_.size());
  }
  /// Null if there is none of that name.
  [[nodiscard]] const Parameter* find(std::string_view name) const;
  /// Null if `tensor` is no row's tensor.
  [[nodiscard]] const Parameter* find(const at::Tensor& tensor) const;

  /// Makes optimizers step on `local` instead of the row's tensor.
  void set_local(Parameter& row, at::Tensor local);
  /// The row that an optimizer steps on by `local`, where that is not the row's
  /// tensor; else null.
  [[nodiscard]] const Parameter* find_local(const at::Tensor& local) const;

  /// Rows whose tensor requires a gradient.
  [[nodiscard]] std::vector<const Parameter*> trainable() const;

 private:
  std::string prefix_;
  std::vector<Parameter> rows_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<const void*, std::size_t> by_tensor_;
  std::unordered_map<const void*, std::size_t> by_local_;
};

}  // namespace accelerate::detail
