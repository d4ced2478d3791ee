#include "checkpoint/tensors/torch_value.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

TorchValue TorchValues::tensor(
    const std::string& name,
    const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  std::int64_t storage = 0;
  if (tensor.has_storage() && tensor.numel() > 0) {
    storage = storages_
                  .emplace(
                      Place{
                          memory_of(tensor),
                          tensor.sizes().vec(),
                          tensor.strides().vec(),
                          tensor.scalar_type()},
                      static_cast<std::int64_t>(storages_.size()) + 1)
                  .first->second;
  }
  return {TorchValue::Tensor{to_write(name, tensor), storage}};
}

TorchValue TorchValues::state(const std::string& name, const StateDict& state) {
  TorchValue::Dict dict;
  for (const auto& [key, item] : state.values()) {
    dict.add(
        {key}, value(name.empty() ? key : format("{}.{}", name, key), item));
  }
  return {std::move(dict)};
}

TorchValue TorchValues::value(
    const std::string& name,
    const StateDict::Value& given) {
  return std::visit(
      [&](const auto& inner) -> TorchValue {
        using T = std::decay_t<decltype(inner)>;
        if constexpr (std::is_same_v<T, at::Tensor>) {
          return tensor(name, inner);
        } else if constexpr (std::is_same_v<T, StateDict>) {
          return state(name, inner);
        } else if constexpr (std::is_same_v<T, std::vector<StateDict>>) {
          TorchValue::List list;
          for (std::size_t i = 0; i < inner.size(); ++i) {
            list.push_back(state(format("{}.{}", name, i), inner[i]));
          }
          return {std::move(list)};
        } else if constexpr (
            std::is_same_v<T, std::vector<std::int64_t>> ||
            std::is_same_v<T, std::vector<double>>) {
          TorchValue::List list;
          for (const auto each : inner) list.push_back({each});
          return {std::move(list)};
        } else {
          return {inner};
        }
      },
      given);
}

}  // namespace accelerate::detail
