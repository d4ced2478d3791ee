#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <accelerate/device_map.h>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// A dtype by PyTorch's name, including those that only big models use.
at::ScalarType any_dtype(const std::string& name);

/// A tensor by its formula: {"shape", "dtype", "fill"}, or {"values"}.
at::Tensor described_tensor(const Json& description);

/// {"dtype", "shape", "data"}, with `with_digest` also "bytes" and "fnv1a64".
/// Complex numbers have no "data".
Json tensor_json(const at::Tensor& tensor, bool with_digest = false);

/// The FNV-1a digest of a tensor's bytes.
std::string digest_of(const at::Tensor& tensor);

/// A recorded module tree as a module of LibTorch.
class RecordedModel : public torch::nn::Module {
 public:
  explicit RecordedModel(const Json& module);

  /// Runs the tree in eval mode, by the recorded rule of its class.
  at::Tensor forward(const at::Tensor& x);
  /// A parameter or buffer below this module, by its dotted name.
  at::Tensor find(const std::string& name) const;
  /// Lets a parameter's name refer to another tensor.
  void replace(const std::string& name, const at::Tensor& tensor);
  /// Ties each group of names to the tensor of its first name.
  void tie(const Json& groups);
  /// Puts tensors on the meta device: "parameters", "all", or null.
  void empty(const Json& which);
  /// A module below this one; this one for null.
  RecordedModel& module(const Json& name);

 private:
  RecordedModel& owner_of(const std::string& name, std::string& last);
  at::Tensor run_layer(const at::Tensor& x);
  at::Tensor run_children(at::Tensor x);
  /// This module's own tensor of that name; undefined if there is none.
  at::Tensor own(const std::string& name) const;

  std::string class_;
  std::vector<std::pair<std::string, std::shared_ptr<RecordedModel>>> below_;
};

/// The input of a case: its "x", cast to the dtype of the model's first
/// floating parameter if it is floating.
at::Tensor recorded_input(const Json& input, const RecordedModel& model);

/// The model of a case: its "module", "tied" and "meta".
std::shared_ptr<RecordedModel> recorded_model(const Json& input);

/// Ordered pairs of names and devices.
DeviceMap device_map_of(const Json& pairs);

}  // namespace accelerate::oracle
