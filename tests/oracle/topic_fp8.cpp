#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accelerate/fp8.h>

#include "base/text/text.h"
#include "engines/fp8_recipe.h"
#include "gate/watched_tensor.h"
#include "oracle/departures.h"
#include "oracle/oracle.h"
#include "precision/fp8/float8_keeper.h"
#include "precision/fp8/float8_layer.h"
#include "precision/fp8/float8_matrix.h"
#include "precision/fp8/float8_rules.h"

namespace accelerate::oracle {

namespace topic_fp8 {

namespace nn = torch::nn;
using detail::Float8Matrix;

at::ScalarType float8_named(const std::string& name) {
  if (name == "float8_e4m3fn") return at::kFloat8_e4m3fn;
  if (name == "float8_e5m2") return at::kFloat8_e5m2;
  if (name == "float8_e4m3fnuz") return at::kFloat8_e4m3fnuz;
  if (name == "float8_e5m2fnuz") return at::kFloat8_e5m2fnuz;
  throw NotBuilt(name);
}

// Values by the formula of the recorded cases.
at::Tensor values_of(
    const std::vector<std::int64_t>& shape,
    std::int64_t seed,
    double scale,
    at::ScalarType dtype) {
  at::Tensor values = at::empty(shape, at::kDouble);
  auto* const out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const auto step = static_cast<double>((7 * i + 13 * seed) % 31 - 15);
    out[i] = scale * step / 16;
  }
  return values.to(at::kFloat).to(dtype);
}

std::string hex_of(const at::Tensor& tensor) {
  constexpr const char* kDigits = "0123456789abcdef";
  const at::Tensor bytes = tensor.contiguous().view(at::kByte).view(-1);
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    const std::uint8_t byte = bytes.const_data_ptr<std::uint8_t>()[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Numbers in the recorded form: the shortest decimal that parses to the same
// fp32.
Json data_of(const at::Tensor& tensor) {
  Json data = write_tensor(tensor.to(at::kFloat)).at("data");
  for (Json& value : data) {
    if (!value.is_number()) continue;
    char text[32];
    const auto end = std::to_chars(text, text + 31, value.get<float>()).ptr;
    *end = 0;
    value = std::strtod(text, nullptr);
  }
  return data;
}

Json run_table(const Json& input) {
  const at::ScalarType dtype = float8_named(input.at("type"));
  const at::Tensor codes = at::arange(256, at::kInt).to(at::kByte);
  return {
      {"values", data_of(codes.view(dtype))},
      {"max", detail::largest_value(detail::float8_format(dtype))}};
}

Json run_cast(const Json& input) {
  const at::ScalarType dtype = float8_named(input.at("to"));
  // Goes through fp32, since the sign of a NaN depends on it.
  const at::Tensor source = read_tensor({{"dtype", "float32"},
                                         {"shape", {input.at("data").size()}},
                                         {"data", input.at("data")}})
                                .to(dtype_named(input.at("from")));
  const at::Tensor plain = source.to(dtype);
  const at::Tensor saturated =
      detail::cast_with_scale(
          source.unsqueeze(0), dtype, at::ones({}, at::kFloat))
          .values;
  return {
      {"source", data_of(source)},
      {"bytes", hex_of(plain)},
      {"values", data_of(plain)},
      {"saturated_bytes", hex_of(saturated)},
      {"saturated_values", data_of(saturated)}};
}

Json run_amax_to_scale(const Json& input) {
  const auto type = detail::float8_format(float8_named(input.at("to")));
  const at::Tensor amaxes = read_tensor(
      {{"dtype", "float32"},
       {"shape", {input.at("amax").size()}},
       {"data", input.at("amax")}});
  std::vector<float> scales;
  for (std::int64_t i = 0; i < amaxes.numel(); ++i) {
    scales.push_back(detail::scale_of_amax(
        amaxes[i].item<double>(), type, input.at("power_of_2")));
  }
  return {{"scales", data_of(at::tensor(scales))}};
}

Json run_dynamic_scaling(const Json& input) {
  const at::Tensor values = values_of(
      input.at("shape"),
      input.at("seed"),
      input.at("scale"),
      dtype_named(input.at("from")));
  detail::DynamicCast cast;
  cast.dtype = float8_named(input.at("to"));
  cast.power_of_2 = input.at("power_of_2");
  if (input.at("granularity") == "axiswise")
    cast.granularity = detail::Float8Granularity::axiswise;
  const std::int64_t dim = input.at("dim");
  const Float8Matrix found = detail::cast_dynamically(values, cast, dim);
  const Float8Matrix also = detail::cast_by_operators(values, cast, dim);
  if (hex_of(found.values) != hex_of(also.values) ||
      !at::equal(found.scale, also.scale)) {
    return {{"error", "kernels and operators differ"}};
  }
  return {
      {"scale", write_tensor(found.scale)},
      {"bytes", hex_of(found.values)},
      {"restored", write_tensor(found.dequantize())}};
}

AORecipeKwargs recipe_named(const std::string& name) {
  Float8LinearConfig config;
  if (name == "rounded") {
    config.round_scales_to_power_of_2 = true;
  } else if (name == "e5m2_input") {
    config.input_dtype = Float8Type::e5m2;
  } else {
    config = Float8LinearConfig::from_recipe_name(name);
  }
  return {config};
}

Json run_float8_linear(const Json& input) {
  const at::ScalarType dtype = dtype_named(input.at("dtype"));
  const std::int64_t batch = input.at("batch");
  const std::int64_t in = input.at("in");
  const std::int64_t out = input.at("out");
  const std::int64_t seed = input.at("seed");
  nn::Linear linear(nn::LinearOptions(in, out).bias(input.at("bias")));
  linear->to(dtype);
  {
    const at::NoGradGuard no_grad;
    linear->weight.copy_(values_of({out, in}, seed, 0.5, dtype));
    if (linear->bias.defined())
      linear->bias.copy_(values_of({out}, seed + 1, 0.25, dtype));
  }
  const auto keeper =
      std::make_shared<detail::Float8Keeper>(/*only_in_forwards=*/false);
  const std::size_t unit = keeper->add(
      c10::make_intrusive<detail::Float8Layer>(
          "linear", detail::float8_rules_of(recipe_named(input.at("recipe")))),
      {out, in});
  detail::watch_tensor(linear->weight, {keeper, unit, keeper.get()});

  at::Tensor x = values_of({batch, in}, seed + 2, input.at("scale"), dtype);
  x.requires_grad_();
  const at::Tensor output = linear(x);
  output.backward(values_of({batch, out}, seed + 3, 1, dtype));
  Json bias;
  if (linear->bias.defined()) bias = write_tensor(linear->bias.grad());
  return {
      {"class", "Float8Linear"},
      {"output", write_tensor(output)},
      {"gradients",
       {{"x", write_tensor(x.grad())},
        {"weight", write_tensor(linear->weight.grad())},
        {"bias", bias}}}};
}

Json run_delayed_scaling(const Json& input) {
  const std::string format = input.at("fp8_format");
  const bool is_wide = format == "E5M2" ||
      (format == "HYBRID" && input.at("tensor") == "backward");
  detail::DelayedScale scale(
      is_wide ? detail::Float8Format::e5m2 : detail::Float8Format::e4m3fn,
      {.history_len = input.at("amax_history_len"),
       .uses_largest = input.at("amax_compute_algo") == "max",
       .margin = input.at("margin")});
  const at::Tensor amaxes = read_tensor(
      {{"dtype", "float32"},
       {"shape", {input.at("amaxes").size()}},
       {"data", input.at("amaxes")}});
  std::vector<float> scales;
  for (std::int64_t i = 0; i < amaxes.numel(); ++i) {
    scale.update(amaxes[i].item<float>());
    scales.push_back(scale.scale());
  }
  return {
      {"scales", data_of(at::tensor(scales))},
      {"history", data_of(at::tensor(scale.history()))}};
}

template <class T>
void read(const Json& args, const char* name, std::optional<T>& field) {
  if (args.contains(name) && !args.at(name).is_null())
    field = args.at(name).get<T>();
}

TERecipeKwargs te_recipe(const Json& args) {
  TERecipeKwargs recipe;
  read(args, "use_autocast_during_eval", recipe.use_autocast_during_eval);
  read(args, "margin", recipe.margin);
  read(args, "interval", recipe.interval);
  read(args, "fp8_format", recipe.fp8_format);
  read(args, "amax_history_len", recipe.amax_history_len);
  read(args, "amax_compute_algo", recipe.amax_compute_algo);
  read(args, "use_mxfp8_block_scaling", recipe.use_mxfp8_block_scaling);
  if (args.contains("override_linear_precision")) {
    const auto& given = args.at("override_linear_precision");
    recipe.override_linear_precision = OverrideLinearPrecision{
        given.at(0).get<bool>(),
        given.at(1).get<bool>(),
        given.at(2).get<bool>()};
  }
  return recipe;
}

Json te_fields(const TERecipeKwargs& recipe) {
  const OverrideLinearPrecision& high = *recipe.override_linear_precision;
  return {
      {"use_autocast_during_eval", *recipe.use_autocast_during_eval},
      {"margin", *recipe.margin},
      {"interval", *recipe.interval},
      {"fp8_format", *recipe.fp8_format},
      {"amax_history_len", *recipe.amax_history_len},
      {"amax_compute_algo", *recipe.amax_compute_algo},
      {"override_linear_precision", {high.fprop, high.dgrad, high.wgrad}},
      {"use_mxfp8_block_scaling", *recipe.use_mxfp8_block_scaling}};
}

Json run_recipe(const Json& input) {
  detail::Environment environment;
  for (const auto& [name, value] : input.at("env").items())
    environment.set(name, value);
  const std::vector<detail::Source> sources{
      detail::source_from_environment(environment)};
  const detail::Settings settings = detail::resolve(sources);
  const Json& args = input.at("args");
  const std::string backend = input.at("backend");
  Json fields;
  if (backend == "AO") {
    AORecipeKwargs recipe;
    read(args, "pad_inner_dim", recipe.pad_inner_dim);
    read(
        args,
        "enable_fsdp_float8_all_gather",
        recipe.enable_fsdp_float8_all_gather);
    recipe = detail::resolve_recipe(recipe, settings);
    const Float8LinearConfig& config = *recipe.config;
    fields = {
        {"pad_inner_dim", *recipe.pad_inner_dim},
        {"enable_fsdp_float8_all_gather",
         *recipe.enable_fsdp_float8_all_gather},
        {"config",
         {{"pad_inner_dim", config.pad_inner_dim},
          {"enable_fsdp_float8_all_gather",
           config.enable_fsdp_float8_all_gather}}}};
  } else if (backend == "MSAMP") {
    MSAMPRecipeKwargs recipe;
    read(args, "opt_level", recipe.opt_level);
    fields = {
        {"opt_level", *detail::resolve_recipe(recipe, settings).opt_level}};
  } else if (backend == "TE") {
    fields = te_fields(
        detail::resolve_recipe(te_recipe(args), settings, environment));
  } else {
    FP8RecipeKwargs recipe;
    static_cast<TERecipeKwargs&>(recipe) = te_recipe(args);
    read(args, "opt_level", recipe.opt_level);
    read(args, "backend", recipe.backend);
    const std::string chosen = detail::backend_of(recipe, settings);
    fields = te_fields(detail::resolve_recipe(
        static_cast<const TERecipeKwargs&>(recipe), settings, environment));
    fields["backend"] = chosen;
    fields["opt_level"] = nullptr;
    if (recipe.opt_level) fields["opt_level"] = *recipe.opt_level;
  }
  return {{"fields", std::move(fields)}};
}

std::shared_ptr<nn::Module> module_of(const Json& spec) {
  const std::string name = spec.value("class", "Sequential");
  if (name == "Linear")
    return nn::Linear(nn::LinearOptions(spec.at("in"), spec.at("out"))).ptr();
  if (name == "LayerNorm")
    return nn::LayerNorm(nn::LayerNormOptions(std::vector<std::int64_t>{
                             spec.at("in").get<std::int64_t>()}))
        .ptr();
  auto parent = std::make_shared<nn::SequentialImpl>();
  for (const Json& child : spec.at("children"))
    parent->register_module(child.at(0), module_of(child.at(1)));
  return parent;
}

Json run_convert(const Json& input) {
  const auto model = module_of(input);
  const auto layers = choose_float8_layers(*model);
  Json converted = Json::array();
  for (const Float8LayerChoice& layer : layers) {
    if (layer.is_float8) converted.push_back(layer.name);
  }
  return {
      {"first", layers.front().name},
      {"last", layers.back().name},
      {"converted", std::move(converted)}};
}

bool is_error(const Json& outcome) { return outcome.contains("error"); }

bool checks_all_variables(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (input.value("kind", "") != "recipe" || is_error(expected) ||
      !is_error(found)) {
    return false;
  }
  const std::string text = found.at("error");
  if (text.find("environment variable ACCELERATE_FP8_") == std::string::npos)
    return false;
  expected = found;
  return true;
}

// LibTorch 2.15 saturates values that are too large in plain casts to e4m3fn;
// earlier versions make them NaN, as recorded.
bool is_limited_by_plain_casts(const Json& input, const Json&, Json& expected) {
  static const bool limits =
      at::tensor(1e4F).to(at::kFloat8_e4m3fn).to(at::kFloat).item<float>() ==
      detail::largest_value(detail::Float8Format::e4m3fn);
  if (!limits || input.at("kind") != "cast" ||
      input.at("to") != "float8_e4m3fn")
    return false;
  expected["bytes"] = expected.at("saturated_bytes");
  expected["values"] = expected.at("saturated_values");
  return true;
}

}  // namespace topic_fp8

Json run_fp8(const Json& input) {
  using namespace topic_fp8;
  const std::string kind = input.at("kind");
  if (kind == "table") return run_table(input);
  if (kind == "cast") return run_cast(input);
  if (kind == "amax_to_scale") return run_amax_to_scale(input);
  if (kind == "dynamic_scaling") return run_dynamic_scaling(input);
  if (kind == "float8_linear") return run_float8_linear(input);
  if (kind == "delayed_scaling") return run_delayed_scaling(input);
  if (kind == "recipe") return run_recipe(input);
  if (kind == "convert") return run_convert(input);
  throw NotBuilt("fp8: " + kind);
}

Departures fp8_departures() {
  return {
      {},
      {{"all variables of the launcher are checked, also those that the recipe "
        "does not read",
        &topic_fp8::checks_all_variables},
       {"a plain cast of this LibTorch limits values instead of making them "
        "NaN",
        &topic_fp8::is_limited_by_plain_casts}}};
}

}  // namespace accelerate::oracle
