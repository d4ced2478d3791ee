#include <accelerate/offload.h>

#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/log.h>
#include <accelerate/module_tensors.h>
#include <accelerate/weights.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace {

// A tensor with a keeper has memory only while an operator runs.
at::Tensor value_on(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  if (detail::keeper_of(tensor) == nullptr) return tensor.detach().to(device);
  return tensor.to(
      tensor.options().device(device).requires_grad(false),
      /*non_blocking=*/false,
      /*copy=*/true);
}

}  // namespace

WeightList get_state_dict_offloaded_model(const torch::nn::Module& model) {
  WeightList values;
  std::vector<std::string> lost;
  for (const auto& [name, tensor] : get_state_dict(model)) {
    if (tensor.is_meta()) {
      lost.push_back(name);
    } else {
      values.emplace_back(name, value_on(tensor, c10::kCPU));
    }
  }
  if (!lost.empty()) {
    Logger().log(
        LogLevel::warning,
        "big_model",
        detail::format(
            "the state dict lacks {}, which are on the meta device",
            detail::name_list(lost)));
  }
  return values;
}

WeightList get_state_dict_from_offload(
    const torch::nn::Module& module,
    const std::string& module_name,
    WeightList state_dict,
    c10::Device device_to_put_offload) {
  const auto dot = module_name.rfind('.');
  const std::string prefix =
      dot == std::string::npos ? "" : module_name.substr(0, dot + 1);
  for (const auto& [key, tensor] : get_state_dict(module)) {
    for (auto& [name, value] : state_dict) {
      if (name != prefix + key) continue;
      value = detail::keeper_of(tensor) == nullptr
          ? tensor.detach()
          : value_on(tensor, device_to_put_offload);
    }
  }
  return state_dict;
}

}  // namespace accelerate
