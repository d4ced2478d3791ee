#include "checkpoint/tensors/tensor_tree.h"

#include <variant>

#include "base/text/text.h"

namespace accelerate::detail {

StateDict extract_tensors(
    const StateDict& state,
    const std::string& prefix,
    std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  StateDict bare;
  for (const auto& [key, value] : state.values()) {
    const std::string name = format("{}/{}", prefix, key);
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      tensors.emplace_back(name, *tensor);
      bare.set(key, StateDict{{kTensorKey, name}});
    } else if (const auto* inner = std::get_if<StateDict>(&value)) {
      bare.set(key, extract_tensors(*inner, name, tensors));
    } else {
      bare.set(key, value);
    }
  }
  return bare;
}

StateDict insert_tensors(
    const StateDict& state,
    const std::function<at::Tensor(const std::string& name)>& tensor_of) {
  StateDict filled;
  for (const auto& [key, value] : state.values()) {
    const auto* inner = std::get_if<StateDict>(&value);
    if (inner == nullptr) {
      filled.set(key, value);
    } else if (inner->contains(kTensorKey)) {
      filled.set(key, tensor_of(inner->get<std::string>(kTensorKey)));
    } else {
      filled.set(key, insert_tensors(*inner, tensor_of));
    }
  }
  return filled;
}

std::vector<std::string> tensor_names(const StateDict& state) {
  std::vector<std::string> names;
  static_cast<void>(insert_tensors(state, [&](const std::string& name) {
    names.push_back(name);
    return at::Tensor();
  }));
  return names;
}

}  // namespace accelerate::detail
