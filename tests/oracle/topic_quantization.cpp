#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accelerate/quantize.h>
#include <accelerate/quantized_model.h>

#include "base/text/encoding.h"
#include "big_model/quantize/block_codes.h"
#include "big_model/quantize/codebooks.h"
#include "big_model/quantize/quantized_product.h"
#include "oracle/departures.h"
#include "oracle/digests.h"
#include "oracle/oracle.h"
#include "params/model_modules.h"

namespace accelerate::oracle {

namespace topic_quantization {

namespace nn = torch::nn;

// Values by the formula of the recorded cases.
at::Tensor values_of(const Json& spec) {
  const auto shape = spec.at("shape").get<std::vector<std::int64_t>>();
  const auto scale = spec.at("scale").get<double>();
  auto state = spec.at("seed").get<std::uint64_t>();
  constexpr std::uint64_t kModulus = std::uint64_t{1} << 31U;
  const auto draw = [&] {
    state = (1103515245 * state + 12345) % kModulus;
    return static_cast<double>(state) / static_cast<double>(kModulus);
  };
  at::Tensor values = at::empty(shape, at::kFloat);
  auto* const out = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double first = draw();
    const double second = draw();
    out[i] = static_cast<float>((first + second + draw() - 1.5) * scale);
  }
  if (spec.contains("spikes")) {
    for (const Json& spike : spec.at("spikes"))
      out[spike.at(0).get<std::int64_t>()] = spike.at(1).get<float>();
  }
  return values.to(dtype_named(spec.at("dtype")));
}

std::string base64_of(const at::Tensor& tensor) {
  return detail::base64(
      {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
}

// Keeps every k-th element of a long tensor, as recorded.
Json thinned(const at::Tensor& tensor) {
  constexpr std::int64_t kMostElements = 256;
  const std::int64_t every = std::max<std::int64_t>(
      (tensor.numel() + kMostElements - 1) / kMostElements, 1);
  Json json = write_tensor(
      tensor.flatten().slice(0, 0, std::nullopt, every).contiguous());
  json["shape"] = tensor.sizes().vec();
  json["every"] = every;
  return json;
}

// Values from `first` to `last` in float32, bit for bit as PyTorch's linspace.
std::vector<float> evenly_spaced(float first, float last, int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const float step = (last - first) / static_cast<float>(count - 1);
  for (int i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = i < count / 2
        ? std::fma(step, static_cast<float>(i), first)
        : std::fma(-step, static_cast<float>(count - i - 1), last);
  }
  return values;
}

constexpr std::size_t kByteCodes = 256;

// Evenly spaced values from -1, or 0, to 1. `add_zero` drops one of the values
// of a signed map, so that zero is one of them.
std::vector<float> linear_map(bool is_signed, int total_bits, bool add_zero) {
  int count = 1 << total_bits;
  if (is_signed && (add_zero || total_bits < 8)) --count;
  std::vector<float> values =
      evenly_spaced(is_signed ? -1.0f : 0.0f, 1.0f, count);
  values.insert(
      values.begin() + count / 2,
      kByteCodes - static_cast<std::size_t>(count),
      0.0f);
  return values;
}

// A float with this many bits, divided by the largest.
std::vector<float>
fp8_map(bool is_signed, int exponent_bits, int precision_bits) {
  const int bias = 1 << (exponent_bits - 1);
  const int num_fractions = 1 << precision_bits;
  std::vector<float> values;
  for (int exponent = 0; exponent < 1 << exponent_bits; ++exponent) {
    for (int fraction = 0; fraction < num_fractions; ++fraction) {
      const double part = static_cast<double>(fraction) / num_fractions;
      // Larger exponents stand for smaller powers, as in bitsandbytes.
      const double value = exponent == 0
          ? std::ldexp(part, -bias)
          : std::ldexp(1 + part, bias + 1 - exponent);
      values.push_back(static_cast<float>(value));
      if (is_signed) values.push_back(static_cast<float>(-value));
    }
  }
  const float largest = *std::max_element(values.begin(), values.end());
  for (float& value : values) value /= largest;
  values.resize(std::max(values.size(), kByteCodes));
  std::sort(values.begin(), values.end());
  return values;
}

Json run_codebook(const Json& input) {
  const std::string name = input.at("name");
  const Json& args = input.at("args");
  if (name == "nf4") return {{"values", detail::nf4_codebook()}};
  if (name == "fp4") return {{"values", detail::fp4_codebook()}};
  const bool is_signed = args.at("signed");
  const int bits = args.at("total_bits");
  if (name == "dynamic") {
    return {
        {"values",
         detail::create_dynamic_map(
             {is_signed, args.at("max_exponent_bits"), bits})}};
  }
  if (name == "linear") {
    return {{"values", linear_map(is_signed, bits, args.at("add_zero"))}};
  }
  if (name == "fp8") {
    return {
        {"values",
         fp8_map(
             is_signed, args.at("exponent_bits"), args.at("precision_bits"))}};
  }
  throw NotBuilt(name);
}

QuantizationType type_named(const std::string& name) {
  if (name == "nf4") return QuantizationType::nf4;
  if (name == "fp4") return QuantizationType::fp4;
  throw NotBuilt(name);
}

void add_nested(Json& found, const detail::QuantizedParts& parts) {
  found["absmax"] = write_tensor(parts.absmax);
  if (!parts.nested_absmax.defined()) return;
  found["offset"] = parts.nested_offset;
  found["absmax_of_absmax"] = write_tensor(parts.nested_absmax);
  found["blocksize_of_absmax"] = 256;
}

Json run_quantize_4bit(const Json& input) {
  const QuantizedWeight weight(
      values_of(input.at("x")),
      {.type = type_named(input.at("quant_type")),
       .block_size = input.at("blocksize"),
       .double_quant = input.at("compress_statistics")});
  const at::Tensor& codes = weight.parts().codes;
  Json found{
      {"packed", base64_of(codes)},
      {"packed_shape", codes.sizes().vec()},
      {"dequantized", thinned(weight.dequantize())}};
  add_nested(found, weight.parts());
  return found;
}

std::span<const float> floats_of(const at::Tensor& tensor) {
  return {
      tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

Json run_quantize_blockwise(const Json& input) {
  const at::Tensor x = values_of(input.at("x"));
  const std::int64_t block_size = input.at("blocksize");
  const detail::ByteCodebook codebook = detail::create_dynamic_map();
  const at::Tensor values = x.to(at::kFloat);
  const auto blocks =
      detail::quantize_byte_blocks(floats_of(values), block_size, codebook);
  at::Tensor absmax = at::tensor(blocks.absmax);
  Json found{
      {"codes",
       detail::base64(
           {reinterpret_cast<const char*>(blocks.codes.data()),
            blocks.codes.size()})},
      {"absmax", write_tensor(absmax)}};
  if (input.at("nested").get<bool>()) {
    const float offset = absmax.mean().item<float>();
    const at::Tensor centered = absmax - offset;
    const auto nested =
        detail::quantize_byte_blocks(floats_of(centered), block_size, codebook);
    found["absmax"] = write_tensor(at::tensor(nested.codes, at::kByte));
    found["offset"] = offset;
    found["absmax_of_absmax"] = write_tensor(at::tensor(nested.absmax));
    found["blocksize_of_absmax"] = block_size;
    for (std::int64_t i = 0; i < absmax.numel(); ++i) {
      const auto block = static_cast<std::size_t>(i);
      absmax[i] = codebook[nested.codes[block]] *
              nested.absmax[block / static_cast<std::size_t>(block_size)] +
          offset;
    }
  }
  at::Tensor restored = at::empty_like(values);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    restored.mutable_data_ptr<float>()[i] =
        codebook[blocks.codes[static_cast<std::size_t>(i)]] *
        floats_of(absmax)[static_cast<std::size_t>(i / block_size)];
  }
  found["dequantized"] = thinned(restored.to(x.scalar_type()));
  return found;
}

Json run_int8_vectorwise_quant(const Json& input) {
  const detail::Int8Inputs found = detail::quantize_int8_inputs(
      values_of(input.at("x")), input.at("threshold"));
  Json columns;
  if (found.outlier_columns)
    columns = write_tensor(*found.outlier_columns).at("data");
  return {
      {"values", write_tensor(found.values)},
      {"row_absmax", write_tensor(found.absmax)},
      {"outlier_columns", std::move(columns)},
      {"dequantized",
       write_tensor(
           found.values.to(at::kFloat) * (found.absmax / 127).unsqueeze(1))}};
}

Json run_int8_mm_dequant(const Json& input) {
  const auto side = [&](const char* name) {
    return detail::quantize_int8_inputs(
        values_of(input.at(name)).to(at::kHalf), 0);
  };
  const auto a = side("a");
  const auto b = side("b");
  const at::Tensor product = detail::int8_matmul(a.values, b.values);
  at::Tensor output = detail::int8_mm_dequant(product, a.absmax, b.absmax);
  if (!input.at("bias").is_null()) output += values_of(input.at("bias"));
  return {
      {"product", write_tensor(product)},
      {"output", write_tensor(output.to(at::kHalf))}};
}

// An unmodified Linear, quantised in place.
Json run_linear(const Json& input, const QuantizationOptions& config) {
  const at::Tensor weight = values_of(input.at("weight"));
  const bool has_bias = !input.at("bias").is_null();
  nn::Sequential model(nn::Linear(
      nn::LinearOptions(weight.size(1), weight.size(0)).bias(has_bias)));
  auto& linear = *model->ptr<nn::LinearImpl>(0);
  const at::NoGradGuard no_grad;
  linear.weight.copy_(weight);
  if (has_bias) linear.bias.copy_(values_of(input.at("bias")));
  const QuantizedModel quantized = load_and_quantize_model(*model, config);
  const at::Tensor x = values_of(input.at("x"));
  const at::Tensor output = linear.forward(x);
  Json state = Json::array();
  for (const auto& [name, tensor] : quantized.state_dict()) {
    state.push_back(
        {name.substr(2), name_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  const detail::QuantizedParts& parts = quantized.weight("0").parts();
  Json found{
      {"state_dict", std::move(state)},
      {"forward", {{"output", write_tensor(output)}}},
      {"exact", write_tensor(linear.forward(x.to(at::kFloat)))}};
  if (config.load_in_4bit) {
    found["packed"] = base64_of(parts.codes);
  } else {
    found["values_fnv1a64"] = fnv1a64(
        {static_cast<const std::byte*>(parts.codes.const_data_ptr()),
         parts.codes.nbytes()});
    found["row_absmax"] = write_tensor(parts.absmax);
  }
  return found;
}

QuantizationOptions config_of(const Json& args) {
  QuantizationOptions config;
  const auto set = [&](const char* name, auto& field) {
    if (args.contains(name) && !args.at(name).is_null())
      field = args.at(name).get<std::decay_t<decltype(field)>>();
  };
  const auto set_list = [&](const char* name, auto& field) {
    if (args.contains(name) && !args.at(name).is_null())
      field = args.at(name).get<std::vector<std::string>>();
  };
  set("load_in_8bit", config.load_in_8bit);
  set("llm_int8_threshold", config.llm_int8_threshold);
  set("load_in_4bit", config.load_in_4bit);
  set("bnb_4bit_quant_type", config.bnb_4bit_quant_type);
  set("bnb_4bit_use_double_quant", config.bnb_4bit_use_double_quant);
  set("bnb_4bit_compute_dtype", config.bnb_4bit_compute_dtype);
  set("torch_dtype", config.torch_dtype);
  set_list("skip_modules", config.skip_modules);
  set_list("keep_in_fp32_modules", config.keep_in_fp32_modules);
  return config;
}

Json run_config(const Json& input) {
  const QuantizationOptions config = config_of(input.at("args"));
  const std::vector<std::string> warnings = config.check();
  const auto list = [](const auto& names) {
    return names ? Json(*names) : Json();
  };
  return {
      {"fields",
       {{"load_in_8bit", config.load_in_8bit},
        {"llm_int8_threshold", config.llm_int8_threshold},
        {"load_in_4bit", config.load_in_4bit},
        {"bnb_4bit_quant_type", config.bnb_4bit_quant_type},
        {"bnb_4bit_use_double_quant", config.bnb_4bit_use_double_quant},
        {"bnb_4bit_compute_dtype", name_of(config.compute_dtype())},
        {"torch_dtype", name_of(config.resolved_torch_dtype())},
        {"skip_modules", list(config.skip_modules)},
        {"keep_in_fp32_modules", list(config.keep_in_fp32_modules)},
        {"target_dtype", config.target_dtype()}}},
      {"warnings", warnings}};
}

/// A Linear that can take another one's weight.
struct SharingLinear : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  void share(const at::Tensor& other) {
    weight = other;
    parameters_["weight"] = other;
  }
};

/// A module of the recorded trees.
struct Tree : nn::Module {
  Tree(
      const Json& children,
      std::vector<std::shared_ptr<SharingLinear>>& linears) {
    for (const Json& child : children) add(child.at(0), child.at(1), linears);
  }

  void add(
      const std::string& name,
      const Json& node,
      std::vector<std::shared_ptr<SharingLinear>>& linears) {
    const std::string kind = node.at("class");
    if (kind == "Sequential") {
      register_module(
          name, std::make_shared<Tree>(node.at("children"), linears));
      return;
    }
    const std::int64_t in = node.at("in");
    if (kind == "LayerNorm") {
      register_module(name, nn::LayerNorm(nn::LayerNormOptions({in})));
      return;
    }
    const std::int64_t out = node.at("out");
    if (kind == "Embedding") {
      register_module(name, nn::Embedding(in, out));
      return;
    }
    if (kind != "Linear") throw NotBuilt(kind);
    linears.push_back(register_module(
        name,
        std::make_shared<SharingLinear>(
            nn::LinearOptions(in, out).bias(node.at("bias").get<bool>()))));
  }
};

// Groups of tied parameters, with members in the model's order.
std::vector<std::vector<std::string>> ties_in_order(const nn::Module& model) {
  auto groups = detail::tied_parameters(detail::module_tree(model));
  const WeightList weights = get_state_dict(model);
  const auto place = [&](const std::string& name) {
    return std::find_if(weights.begin(), weights.end(), [&](const auto& each) {
      return each.first == name;
    });
  };
  for (auto& group : groups) {
    std::sort(group.begin(), group.end(), [&](const auto& a, const auto& b) {
      return place(a) < place(b);
    });
  }
  return groups;
}

Json run_replace(const Json& input) {
  std::vector<std::shared_ptr<SharingLinear>> linears;
  Tree model(input.at("children"), linears);
  if (input.at("tie").get<bool>() && linears.size() > 1)
    linears.back()->share(linears.front()->weight);
  const Json& prefix = input.at("base_model_prefix");
  std::vector<std::string> keys = get_keys_to_not_convert(
      model, prefix.is_null() ? "" : prefix.get<std::string>());
  const std::vector<std::string> skipped = input.at("skip_modules").is_null()
      ? keys
      : input.at("skip_modules").get<std::vector<std::string>>();
  std::sort(keys.begin(), keys.end());
  return {
      {"tied", ties_in_order(model)},
      {"keys_to_not_convert", keys},
      {"replaced", modules_to_quantize(model, skipped)}};
}

bool any_block_size(const Json& input, const Json& found, Json& expected) {
  if (input.at("kind") != "quantize_4bit" || !expected.contains("error") ||
      !input.at("blocksize").is_number() || found.contains("error")) {
    return false;
  }
  const auto size = input.at("blocksize").get<std::int64_t>();
  const bool is_refused_by_size = size < 32 || size > 4096 ||
      !std::has_single_bit(static_cast<std::uint64_t>(size));
  if (is_refused_by_size) expected = found;
  return is_refused_by_size;
}

bool vectors_stay_vectors(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (input.at("kind") != "quantize_4bit" || !expected.contains("dequantized"))
    return false;
  const Json& shape = input.at("x").at("shape");
  Json& recorded = expected.at("dequantized").at("shape");
  if (shape.size() != 1 || recorded != Json{1, shape.at(0)}) return false;
  recorded = found.at("dequantized").at("shape");
  return true;
}

}  // namespace topic_quantization

Departures quantization_departures() {
  return Departures(
      {},
      {{"4-bit blocks of any size, also those that bitsandbytes refuses",
        topic_quantization::any_block_size},
       {"vectors are dequantised to vectors, not to matrices of one row",
        topic_quantization::vectors_stay_vectors}});
}

Json run_quantization(const Json& input) {
  using namespace topic_quantization;
  const std::string kind = input.at("kind");
  if (kind == "codebook") return run_codebook(input);
  if (kind == "quantize_4bit") return run_quantize_4bit(input);
  if (kind == "quantize_blockwise") return run_quantize_blockwise(input);
  if (kind == "int8_vectorwise_quant") return run_int8_vectorwise_quant(input);
  if (kind == "int8_mm_dequant") return run_int8_mm_dequant(input);
  if (kind == "linear_4bit") {
    return run_linear(
        input,
        {.load_in_4bit = true,
         .bnb_4bit_quant_type = input.at("quant_type"),
         .bnb_4bit_use_double_quant = input.at("compress_statistics"),
         .skip_modules = std::vector<std::string>{}});
  }
  if (kind == "linear_8bit") {
    return run_linear(
        input,
        {.load_in_8bit = true,
         .llm_int8_threshold = input.at("threshold"),
         .skip_modules = std::vector<std::string>{}});
  }
  if (kind == "bnb_config") return run_config(input);
  if (kind == "replace") return run_replace(input);
  throw NotBuilt(kind);
}

}  // namespace accelerate::oracle
