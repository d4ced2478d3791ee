// Names and contents of a quantised weight's tensors, as bitsandbytes saves
// them.
#include <algorithm>
#include <string_view>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/quantize/quantized_weight.h"

namespace accelerate {

namespace {

using detail::format;
using detail::QuantizedParts;
using Json = nlohmann::json;
using NamedTensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kStatePrefix = "weight.quant_state.bitsandbytes__";
// bitsandbytes' number for the only format that it reads, rows.
constexpr int kRowFormat = 0;

const std::vector<std::pair<std::string, c10::ScalarType>>& state_dtypes() {
  static const std::vector<std::pair<std::string, c10::ScalarType>> names{
      {"float32", at::kFloat},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16}};
  return names;
}

std::string state_name_of(c10::ScalarType dtype) {
  for (const auto& [name, known] : state_dtypes()) {
    if (known == dtype) return name;
  }
  throw InternalError(
      "[big_model] a quantised weight cannot be converted to such a dtype");
}

// Written as Python's json.dumps does, so that files are equal byte for byte.
std::string state_text(const QuantizedWeight& weight) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : weight.sizes())
    sizes.push_back(std::to_string(size));
  std::string text = format(
      "{{\"quant_type\": \"{}\", \"blocksize\": {}, \"dtype\": \"{}\", "
      "\"shape\": [{}]",
      detail::name_of(weight.type()),
      weight.block_size(),
      state_name_of(weight.dtype()),
      detail::join(sizes, ", "));
  if (weight.is_double_quantized()) {
    text += format(
        ", \"nested_blocksize\": {}, \"nested_dtype\": \"float32\", "
        "\"nested_offset\": {}",
        detail::kNestedBlockSize,
        Json(weight.parts().nested_offset).dump());
  }
  return text + "}";
}

at::Tensor tensor_of(std::string_view text) {
  at::Tensor bytes = at::empty(
      {static_cast<std::int64_t>(text.size())},
      at::TensorOptions().dtype(at::kByte));
  std::ranges::copy(text, bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

[[noreturn]] void throw_unfit(const std::string& what) {
  throw CheckpointError(format(
      "[big_model] the tensors are not a quantised weight of bitsandbytes: {}",
      what));
}

at::Tensor require_tensor(
    const NamedTensors& tensors,
    const std::string& name,
    c10::ScalarType dtype,
    std::int64_t count) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw_unfit(format("{} is missing", name));
  const at::Tensor& tensor = found->second;
  if (tensor.scalar_type() != dtype) {
    throw_unfit(format(
        "{} is {}, not {}",
        name,
        detail::torch_name_of(tensor.scalar_type()),
        detail::torch_name_of(dtype)));
  }
  if (tensor.numel() != count) {
    throw_unfit(
        format("{} has {} elements, not {}", name, tensor.numel(), count));
  }
  return tensor.contiguous();
}

Json parsed_state(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.to(at::kCPU).contiguous();
  const auto* const text = static_cast<const char*>(bytes.const_data_ptr());
  Json state = Json::parse(
      text, text + bytes.nbytes(), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) throw_unfit("its quant_state is not a JSON object");
  return state;
}

template <class Value>
Value state_value(const Json& state, const char* key) {
  try {
    return state.at(key).get<Value>();
  } catch (const Json::exception&) {
    throw_unfit(format("quant_state has no usable \"{}\"", key));
  }
}

/// The contents of a 4-bit weight's JSON.
struct FourBitState {
  QuantizationType type = QuantizationType::nf4;
  std::int64_t block_size = 0;
  c10::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;
  std::int64_t count = 1;
  std::int64_t num_blocks = 0;
};

FourBitState four_bit_state(const Json& json, const std::string& type) {
  FourBitState state;
  if (type != "nf4" && type != "fp4")
    throw_unfit(format("\"{}\" is neither nf4 nor fp4", type));
  state.type = type == "nf4" ? QuantizationType::nf4 : QuantizationType::fp4;
  state.block_size = state_value<std::int64_t>(json, "blocksize");
  state.sizes = state_value<std::vector<std::int64_t>>(json, "shape");
  if (state.block_size < 1 || state.sizes.empty() ||
      std::ranges::any_of(state.sizes, [](auto size) { return size < 0; })) {
    throw_unfit("its blocksize or shape is impossible");
  }
  const auto dtype = state_value<std::string>(json, "dtype");
  const auto& dtypes = state_dtypes();
  const auto known = std::ranges::find_if(
      dtypes, [&](const auto& entry) { return entry.first == dtype; });
  if (known == dtypes.end())
    throw_unfit(format("its dtype \"{}\" is not a 16- or 32-bit float", dtype));
  state.dtype = known->second;
  for (const std::int64_t size : state.sizes) {
    if (__builtin_mul_overflow(state.count, size, &state.count))
      throw_unfit("its shape is impossible");
  }
  state.num_blocks =
      state.count / state.block_size + (state.count % state.block_size != 0);
  return state;
}

QuantizedParts four_bit_parts(
    const NamedTensors& tensors,
    const FourBitState& state,
    const Json& json) {
  QuantizedParts parts;
  const auto weight = tensors.find("weight");
  if (weight == tensors.end()) throw_unfit("weight is missing");
  // Programs may store the bytes in a tensor of another dtype.
  parts.codes = weight->second.contiguous().view(-1).view(at::kByte);
  if (parts.codes.numel() < (state.count + 1) / 2)
    throw_unfit("weight has too few bytes for its shape");
  parts.codes = parts.codes.slice(0, 0, (state.count + 1) / 2).unsqueeze(1);
  parts.code_values =
      require_tensor(tensors, "weight.quant_map", at::kFloat, 16);
  const bool is_nested = tensors.contains("weight.nested_absmax");
  parts.absmax = require_tensor(
      tensors,
      "weight.absmax",
      is_nested ? at::kByte : at::kFloat,
      state.num_blocks);
  if (!is_nested) return parts;
  if (state_value<std::int64_t>(json, "nested_blocksize") !=
      detail::kNestedBlockSize) {
    throw_unfit("its nested_blocksize is not 256");
  }
  parts.nested_absmax = require_tensor(
      tensors,
      "weight.nested_absmax",
      at::kFloat,
      (state.num_blocks + detail::kNestedBlockSize - 1) /
          detail::kNestedBlockSize);
  parts.nested_code_values =
      require_tensor(tensors, "weight.nested_quant_map", at::kFloat, 256);
  parts.nested_offset = state_value<double>(json, "nested_offset");
  return parts;
}

}  // namespace

WeightList QuantizedWeight::tensors() const {
  if (type_ == QuantizationType::int8) {
    return {
        {"weight", parts_.codes},
        {"SCB", parts_.absmax},
        {"weight_format",
         at::full({}, kRowFormat, at::TensorOptions().dtype(at::kByte))}};
  }
  WeightList list{
      {"weight", parts_.codes},
      {"weight.absmax", parts_.absmax},
      {"weight.quant_map", parts_.code_values}};
  if (is_double_quantized()) {
    list.emplace_back("weight.nested_absmax", parts_.nested_absmax);
    list.emplace_back("weight.nested_quant_map", parts_.nested_code_values);
  }
  list.emplace_back(
      std::string(kStatePrefix) + detail::name_of(type_),
      tensor_of(state_text(*this)));
  return list;
}

QuantizedWeight QuantizedWeight::from_tensors(const NamedTensors& tensors) {
  QuantizedWeight weight;
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(kStatePrefix)) continue;
    const Json json = parsed_state(tensor);
    const FourBitState state =
        four_bit_state(json, name.substr(kStatePrefix.size()));
    weight.type_ = state.type;
    weight.sizes_ = state.sizes;
    weight.dtype_ = state.dtype;
    weight.block_size_ = state.block_size;
    weight.parts_ = four_bit_parts(tensors, state, json);
    return weight;
  }
  const auto codes = tensors.find("weight");
  if (codes == tensors.end() || codes->second.scalar_type() != at::kChar ||
      codes->second.dim() != 2) {
    throw_unfit("there is neither a quant_state nor a matrix of int8");
  }
  const auto layout = tensors.find("weight_format");
  if (layout != tensors.end() &&
      layout->second.to(at::kInt).item<int>() != kRowFormat) {
    throw_unfit("its weight_format is not that of rows");
  }
  weight.type_ = QuantizationType::int8;
  weight.sizes_ = codes->second.sizes().vec();
  weight.dtype_ = at::kHalf;
  weight.parts_.codes = codes->second.contiguous();
  weight.parts_.absmax =
      require_tensor(tensors, "SCB", at::kFloat, weight.sizes_.front());
  return weight;
}

}  // namespace accelerate
