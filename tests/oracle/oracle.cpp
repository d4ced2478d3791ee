#include "oracle/oracle.h"

#include <cmath>

#include <accelerate/accelerate.h>

namespace accelerate::oracle {

namespace {

const std::vector<std::pair<std::string, at::ScalarType>>& dtype_names() {
  static const std::vector<std::pair<std::string, at::ScalarType>> names{
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"int8", at::kChar},
      {"uint8", at::kByte},
      {"int16", at::kShort},
      {"int32", at::kInt},
      {"int64", at::kLong},
      {"bool", at::kBool}};
  return names;
}

double number_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (!json.is_string()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "inf") return INFINITY;
  if (text == "-inf") return -INFINITY;
  return NAN;
}

Json number_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

bool is_numeric_text(const Json& json) {
  return json.is_string() && (json == "inf" || json == "-inf" || json == "nan");
}

bool agree(double found, double expected, const Tolerance& tolerance) {
  if (std::isnan(expected)) return std::isnan(found);
  if (std::isinf(expected)) return found == expected;
  return std::abs(found - expected) <=
      tolerance.absolute + tolerance.relative * std::abs(expected);
}

}  // namespace

at::ScalarType dtype_named(const std::string& name) {
  for (const auto& [known, dtype] : dtype_names()) {
    if (known == name) return dtype;
  }
  throw NotBuilt("dtype " + name);
}

std::string name_of(at::ScalarType dtype) {
  for (const auto& [name, known] : dtype_names()) {
    if (known == dtype) return name;
  }
  throw NotBuilt("a dtype without a name");
}

at::Tensor read_tensor(const Json& json) {
  const at::ScalarType dtype = dtype_named(json.at("dtype"));
  const auto shape = json.at("shape").get<std::vector<std::int64_t>>();
  if (at::isIntegralType(dtype, false)) {
    return at::tensor(
               json.at("data").get<std::vector<std::int64_t>>(), at::kLong)
        .to(dtype)
        .view(shape);
  }
  std::vector<double> values;
  for (const Json& value : json.at("data")) values.push_back(number_of(value));
  return at::tensor(values, at::kDouble).to(dtype).view(shape);
}

Json write_tensor(const at::Tensor& tensor) {
  Json data = Json::array();
  const at::Tensor flat = tensor.detach().cpu().contiguous().view(-1);
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (flat.scalar_type() == at::kBool) {
      data.push_back(flat[i].item<bool>());
    } else if (at::isIntegralType(flat.scalar_type(), false)) {
      data.push_back(flat[i].item<std::int64_t>());
    } else {
      data.push_back(number_json(flat[i].item<double>()));
    }
  }
  return {
      {"dtype", name_of(tensor.scalar_type())},
      {"shape", tensor.sizes().vec()},
      {"data", std::move(data)}};
}

namespace {

// Whether a key's value is not compared if the oracle has null.
bool is_uncompared(const std::string& key) {
  return key == "remainder_at_end" || key == "launcher" || key == "command";
}

}  // namespace

std::optional<std::string> difference(
    const Json& found,
    const Json& expected,
    const Tolerance& tolerance) {
  const auto mismatch = [&] {
    return ": expected " + expected.dump().substr(0, 300) + ", found " +
        found.dump().substr(0, 300);
  };
  if (expected.is_object() && expected.contains("error")) {
    if (found.is_object() && found.contains("error")) return std::nullopt;
    return mismatch();
  }
  // A value that exists only in Python.
  if (expected.is_object() && expected.contains("opaque")) return std::nullopt;
  if (expected.is_object() && expected.value("verdict", "") == "error") {
    if (found.is_object() && found.value("verdict", "") == "error") {
      return std::nullopt;
    }
    return mismatch();
  }
  if (expected.is_object() && found.is_object()) {
    if (found.contains("text") && found["text"].is_null() &&
        expected.contains("text") && expected.contains("values")) {
      // Accelerate's formatting of a config file is not compared.
      return difference(found["values"], expected["values"], tolerance);
    }
    if (expected.size() != found.size()) return mismatch();
    for (const auto& [key, value] : expected.items()) {
      // The oracle marks this key as not compared.
      if (value.is_null() && is_uncompared(key)) continue;
      if (!found.contains(key)) return "." + key + mismatch();
      if (auto inner = difference(found.at(key), value, tolerance))
        return "." + key + *inner;
    }
    return std::nullopt;
  }
  if (expected.is_array() && found.is_array()) {
    if (expected.size() != found.size()) return mismatch();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (auto inner = difference(found[i], expected[i], tolerance)) {
        return "[" + std::to_string(i) + "]" + *inner;
      }
    }
    return std::nullopt;
  }
  const bool has_fraction = expected.is_number_float() ||
      found.is_number_float() || is_numeric_text(expected);
  const auto is_number = [](const Json& json) {
    return json.is_number() || is_numeric_text(json);
  };
  if (has_fraction && is_number(found) && is_number(expected)) {
    if (agree(number_of(found), number_of(expected), tolerance))
      return std::nullopt;
    return mismatch();
  }
  if (found == expected) return std::nullopt;
  return mismatch();
}

const std::map<std::string, Topic>& topics() {
  static const std::map<std::string, Topic> built{
      {"accumulation", &run_accumulation},
      {"batch_sampler_shard", &run_batch_sampler_shard},
      {"checkpoint_rotation", &run_checkpoint_rotation},
      {"checkpoints", &run_checkpoints},
      {"dispatcher", &run_dispatcher},
      {"find_executable_batch_size", &run_find_executable_batch_size},
      {"grad_scaler", &run_grad_scaler},
      {"gather_for_metrics", &run_gather_for_metrics},
      {"iterable_dataset_shard", &run_iterable_dataset_shard},
      {"local_sgd", &run_local_sgd},
      {"lr_schedulers", &run_lr_schedulers},
      {"merge_weights", &run_merge_weights},
      {"big_model_dispatch", &run_big_model_dispatch},
      {"device_map", &run_device_map},
      {"fp8", &run_fp8},
      {"fsdp_policy", &run_fsdp_policy},
      {"parallelism", &run_parallelism},
      {"plugins", &run_plugins},
      {"profiler_logging", &run_profiler_logging},
      {"quantization", &run_quantization},
      {"operations", &run_operations},
      {"safetensors_bad", &run_safetensors_bad},
      {"scheduler_stepping", &run_scheduler_stepping},
      {"seedable_sampler", &run_seedable_sampler},
      {"shard_checkpoint", &run_shard_checkpoint},
      {"config_files", &run_config_files},
      {"launch_env", &run_launch_env},
      {"sizes", &run_sizes},
      {"skip_first_batches", &run_skip_first_batches},
      {"tp_pp", &run_tp_pp},
      {"trackers", &run_trackers},
      {"training", &run_training}};
  return built;
}

}  // namespace accelerate::oracle
