#include <cmath>
#include <map>

#include <accelerate/error.h>
#include <accelerate/quantized_model.h>

#include "base/require.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

const std::map<std::string, c10::ScalarType>& float_dtypes() {
  static const std::map<std::string, c10::ScalarType> dtypes{
      {"fp32", c10::ScalarType::Float},
      {"fp16", c10::ScalarType::Half},
      {"bf16", c10::ScalarType::BFloat16}};
  return dtypes;
}

c10::ScalarType float_dtype(const char* field, const std::string& name) {
  const auto found = float_dtypes().find(name);
  if (found != float_dtypes().end()) return found->second;
  throw ConfigError(detail::format(
      "[big_model] {} must be fp32, fp16 or bf16, but is \"{}\"", field, name));
}

}  // namespace

std::vector<std::string> QuantizationOptions::check() const {
  if (load_in_8bit == load_in_4bit) {
    throw ConfigError(detail::format(
        "[big_model] exactly one of load_in_8bit and load_in_4bit must be set, "
        "but both are {}",
        load_in_8bit ? "true" : "false"));
  }
  if (!std::isfinite(llm_int8_threshold)) {
    throw ConfigError(
        "[big_model] llm_int8_threshold must be finite; 0 disables the "
        "threshold");
  }
  if (bnb_4bit_quant_type != "fp4" && bnb_4bit_quant_type != "nf4") {
    throw ConfigError(detail::format(
        "[big_model] bnb_4bit_quant_type must be fp4 or nf4, but is \"{}\"",
        bnb_4bit_quant_type));
  }
  detail::require_at_least(
      "big_model", "bnb_4bit_blocksize", bnb_4bit_blocksize, 1);
  static_cast<void>(compute_dtype());
  static_cast<void>(resolved_torch_dtype());
  if (llm_int8_quantize_inputs && !load_in_8bit) {
    throw ConfigError(
        "[big_model] llm_int8_quantize_inputs needs load_in_8bit");
  }
  std::vector<std::string> warnings;
  if (load_in_4bit && llm_int8_threshold != 6.0) {
    warnings.emplace_back(
        "llm_int8_threshold can only be used for model loaded in 8bit");
  }
  return warnings;
}

c10::ScalarType QuantizationOptions::compute_dtype() const {
  return float_dtype("bnb_4bit_compute_dtype", bnb_4bit_compute_dtype);
}

c10::ScalarType QuantizationOptions::resolved_torch_dtype() const {
  if (!torch_dtype.empty()) return float_dtype("torch_dtype", torch_dtype);
  return load_in_8bit ? c10::ScalarType::Half : compute_dtype();
}

}  // namespace accelerate
