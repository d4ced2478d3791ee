#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "format/torch/torch_writer.h"

namespace accelerate::detail {

/// Converts states for torch.save. Tensors that share the same elements are
/// written once.
class TorchValues {
 public:
  TorchValue tensor(const std::string& name, const at::Tensor& tensor);
  TorchValue state(const std::string& name, const StateDict& state);

 private:
  TorchValue value(const std::string& name, const StateDict::Value& value);

  using Place = std::tuple<
      const void*,
      std::vector<std::int64_t>,
      std::vector<std::int64_t>,
      c10::ScalarType>;
  std::map<Place, std::int64_t> storages_;
};

}  // namespace accelerate::detail
