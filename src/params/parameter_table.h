#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "params/layout.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Makes a tensor with undefined contents.
using MakeTensor =
    std::function<at::Tensor(at::IntArrayRef, const at::TensorOptions&)>;

/// One parameter as seen by code outside the strategies.
struct Parameter {
  std::string name;   ///< as named_parameters() spells it, after the prefix
  at::Tensor tensor;  ///< what forward reads
  at::Tensor local;   ///< what the optimizer steps on, `tensor` or another
  Layout layout;
  std::string policy = {};  ///< what strategies do with it, for describe()
  /// Set by a strategy that averages the gradient over replicas itself, so that
  /// `replicate` leaves it alone.
  bool is_averaged_apart = false;
  /// Makes tensors of the state of the optimizer that steps on `local`, where
  /// that state lies; null: in memory.
  MakeTensor make_state = nullptr;
  /// Set if `tensor` may hold the weight's values after a cast to float8: holds
  /// the scale of that cast (an fp32 number), and is undefined while `tensor`
  /// has the weight's own values.
  std::shared_ptr<const at::Tensor> gathered_scale = nullptr;
};

/// The parameters of one model, in the order of named_parameters(); a tensor
/// with several names is one row, under its first name. Strategies write rows;
/// the rest of the library reads them.
class ParameterTable {
 public:
  ParameterTable() = default;
  /// Makes unsharded rows for all parameters of `module`. `prefix`, such as
  /// "stage_1.", is prepended to all names in checkpoints and optimizer state,
  /// for modules that are different parts of the model on different ranks under
  /// the same names. Tensors for which `leaves_out` is true get no row: their
  /// values are managed elsewhere (offloaded weights).
  explicit ParameterTable(
      const torch::nn::Module& module,
      std::string prefix = {},
      const std::function<bool(const at::Tensor& tensor)>& leaves_out =
          nullptr);

  [[nodiscard]] const std::vector<Parameter>& rows() const { return rows_; }
  [[nodiscard]] std::vector<Parameter>& rows() { return rows_; }
  /// The name in checkpoints of the module's parameter or buffer `key`.
  [[nodiscard]] std::string name_of(const std::string& key) const {
    return prefix_ + key;
  }
  /// The module's key of the tensor called `name` in checkpoints.
  [[nodiscard]] std::string key_of(const std::string& name) const {
    return name.substr(prefix_.size());
  }
  /// Null if no row has this name.
  [[nodiscard]] const Parameter* find(std::string_view name) const;
  /// Null if `tensor` is not a row's tensor.
  [[nodiscard]] const Parameter* find(const at::Tensor& tensor) const;

  /// Makes optimizers step on `local` instead of the row's tensor.
  void set_local(Parameter& row, at::Tensor local);
  /// The row whose `local` was set by set_local(); otherwise null.
  [[nodiscard]] const Parameter* find_local(const at::Tensor& local) const;

  /// Names of the parameters and buffers that were left out, including aliases.
  [[nodiscard]] const std::vector<std::string>& left_out() const {
    return left_out_;
  }
  [[nodiscard]] bool leaves_out(const at::Tensor& tensor) const {
    return left_out_tensors_.contains(tensor.unsafeGetTensorImpl());
  }

  /// Rows whose tensor requires a gradient.
  [[nodiscard]] std::vector<const Parameter*> trainable() const;

 private:
  std::string prefix_;
  std::vector<Parameter> rows_;
  std::vector<std::string> left_out_;
  std::unordered_set<const void*> left_out_tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<const void*, std::size_t> by_tensor_;
  std::unordered_map<const void*, std::size_t> by_local_;
};

}  // namespace accelerate::detail
