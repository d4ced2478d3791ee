#include "big_model/offload/weight_dtype.h"

#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

std::string dtype_name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

std::optional<c10::ScalarType> parse_torch_dtype(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype == c10::ScalarType::Undefined) continue;
    const auto [first, second] = c10::getDtypeNames(dtype);
    if (!name.empty() && (name == first || name == second)) return dtype;
  }
  return std::nullopt;
}

std::optional<safetensors::Dtype> weight_dtype(std::string_view name) {
  const auto dtype = parse_torch_dtype(name);
  return dtype ? file_dtype(*dtype) : std::nullopt;
}

}  // namespace accelerate::detail
