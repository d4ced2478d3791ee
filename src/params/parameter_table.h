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
  std::string name;   ///< as named_parameters() spells it
  at::Tensor tensor;  ///< what forward reads
  at::Tensor local;   ///< what the optimizer steps on; `tensor` itself if whole
  Layout layout;
  std::string policy = {};  ///< what strategies do with it, in words
};

/// The parameters of one model, in the order of named_parameters(), a tensor
/// that has several names once under its first. Strategies write rows; the
/// rest of the library reads them.
class ACCELERATE_API ParameterTable {
 public:
  ParameterTable() = default;
  /// Whole rows for all parameters of `module`.
  explicit ParameterTable(const torch::nn::Module& module);

  [[nodiscard]] const std::vector<Parameter>& rows() const { return rows_; }
  [[nodiscard]] std::vector<Parameter>& rows() { return rows_; }
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
  std::vector<Parameter> rows_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<const void*, std::size_t> by_tensor_;
  std::unordered_map<const void*, std::size_t> by_local_;
};

}  // namespace accelerate::detail
