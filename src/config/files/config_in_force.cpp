#include "config/files/config_document.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/options/option_table.h"

namespace accelerate::detail {

namespace {

// Accelerate's keys, with its defaults.
const ConfigJson& base_fields() {
  static const ConfigJson fields = ConfigJson::parse(R"({
      "compute_environment": "LOCAL_MACHINE", "distributed_type": null,
      "mixed_precision": null, "use_cpu": false, "debug": false})");
  return fields;
}

const ConfigJson& local_fields() {
  static const ConfigJson fields = ConfigJson::parse(R"({
      "num_processes": -1, "machine_rank": 0, "num_machines": 1,
      "gpu_ids": null, "main_process_ip": null, "main_process_port": null,
      "rdzv_backend": "static", "same_network": false,
      "main_training_function": "main", "enable_cpu_affinity": false,
      "fp8_config": {}, "deepspeed_config": {}, "fsdp_config": {},
      "parallelism_config": {}, "megatron_lm_config": {}, "mpirun_config": {},
      "downcast_bf16": false, "tpu_name": null, "tpu_zone": null,
      "tpu_use_cluster": false, "tpu_use_sudo": false, "command_file": null,
      "commands": null, "tpu_vm": null, "tpu_env": null,
      "dynamo_config": {}})");
  return fields;
}

const ConfigJson& sagemaker_fields() {
  static const ConfigJson fields = ConfigJson::parse(R"({
      "ec2_instance_type": null, "iam_role_name": null, "image_uri": null,
      "profile": null, "region": "us-east-1", "num_machines": 1,
      "gpu_ids": "all", "base_job_name": "accelerate-sagemaker-1",
      "pytorch_version": "1.10.2", "transformers_version": "4.17.0",
      "py_version": "py38", "sagemaker_inputs_file": null,
      "sagemaker_metrics_file": null, "additional_args": null,
      "dynamo_config": {}, "enable_cpu_affinity": false})");
  return fields;
}

// Keys of this library that Accelerate does not know.
constexpr std::array<std::string_view, 13> kOwnKeys{
    "timeout_seconds",
    "transport",
    "log_level",
    "log_levels",
    "log_format",
    "device",
    "share_devices",
    "gradient_accumulation_steps",
    "num_cpu_threads_per_process",
    "cpu_affinity",
    "max_restarts",
    "offload_directory_in_memory",
    "step_in_backward"};

// Accelerate writes NO for SageMaker as well, but cannot read that file back.
constexpr std::array<std::string_view, 3> kSageMakerTypes{
    "NO",
    "DATA_PARALLEL",
    "MODEL_PARALLEL"};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Keys that Accelerate once wrote and no longer has. The tool reads such files
// without them.
struct RetiredKey {
  std::string_view section;
  std::string_view key;
  std::string_view instead;
};
constexpr std::array kRetiredKeys{
    RetiredKey{"", "ipex_config", ""},
    RetiredKey{
        "",
        "tp_config",
        "use parallelism_config_tp_size in parallelism_config"},
    RetiredKey{"mpirun_config", "mpirun_ccl", ""}};

// The place of a retired key in the document, or null.
const ConfigJson* find_retired(
    const ConfigDocument& document,
    const RetiredKey& retired) {
  const ConfigJson* map = &document.values;
  if (!retired.section.empty()) {
    const auto section = map->find(std::string(retired.section));
    if (section == map->end() || !section->is_object()) return nullptr;
    map = &*section;
  }
  const auto found = map->find(std::string(retired.key));
  return found == map->end() ? nullptr : &*found;
}

std::vector<std::string> choices_of(std::string_view key) {
  return split(find_option(key)->limits, '|');
}

class Resolver {
 public:
  explicit Resolver(const ConfigDocument& document)
      : document_(document), given_(document.values) {}

  ConfigJson resolve() {
    replace_old_keys();
    is_sagemaker_ =
        text("compute_environment", "LOCAL_MACHINE") == "AMAZON_SAGEMAKER";
    check_environment();
    check_type();
    ConfigJson values;
    for (const ConfigJson* const fields :
         {&base_fields(),
          is_sagemaker_ ? &sagemaker_fields() : &local_fields()}) {
      for (const auto& [key, default_value] : fields->items())
        take(values, key, default_value);
    }
    values["compute_environment"] =
        text("compute_environment", "LOCAL_MACHINE");
    values["distributed_type"] = text("distributed_type", "");
    if (!is_sagemaker_ && !given_.contains("num_processes") &&
        values["distributed_type"] == "NO") {
      values["num_processes"] = 1;
    }
    std::vector<std::string> known(kOwnKeys.begin(), kOwnKeys.end());
    for (const auto& [name, value] : values.items()) known.push_back(name);
    UnknownKeys unknown(document_, complaints_);
    for (const auto& [key, value] : given_.items()) {
      if (contains(kOwnKeys, key)) {
        values[key] = value;
      } else if (!values.contains(key)) {
        unknown.add(key, key, known);
      }
    }
    unknown.finish();
    if (is_sagemaker_) {
      for (const char* const key : {"ec2_instance_type", "iam_role_name"}) {
        if (values[key].is_null()) {
          complaints_.push_back(format("[config] {} is missing", key));
        }
      }
    }
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return values;
  }

 private:
  void replace_old_keys() {
    for (const RetiredKey& retired : kRetiredKeys) {
      if (find_retired(document_, retired) == nullptr) continue;
      ConfigJson& map = retired.section.empty()
          ? given_
          : given_[std::string(retired.section)];
      map.erase(std::string(retired.key));
    }
    if (given_.contains("fp16")) {
      const bool is_on = given_["fp16"].is_boolean() && given_["fp16"];
      if (is_on && !given_.contains("mixed_precision")) {
        given_["mixed_precision"] = "fp16";
      }
      given_.erase("fp16");
    }
    if (given_.contains("dynamo_backend")) {
      const std::string backend = text("dynamo_backend", "NO");
      given_["dynamo_config"] = backend == "NO"
          ? ConfigJson::object()
          : ConfigJson{{"dynamo_backend", backend}};
      given_.erase("dynamo_backend");
    }
  }

  // The value as spelled in the file: YAML reads an unquoted NO as a boolean.
  [[nodiscard]] std::string text(const std::string& key, std::string otherwise)
      const {
    if (!given_.contains(key) || given_[key].is_null()) return otherwise;
    const auto scalar = document_.scalars.find(key);
    return scalar == document_.scalars.end() ? python_text(given_[key])
                                             : scalar->second;
  }

  void check_environment() {
    const std::string name = text("compute_environment", "LOCAL_MACHINE");
    if (name == "LOCAL_MACHINE" || name == "AMAZON_SAGEMAKER") return;
    complaints_.push_back(format(
        "[config] compute_environment is \"{}\", but must be LOCAL_MACHINE or "
        "AMAZON_SAGEMAKER ({})",
        name,
        where("compute_environment")));
  }

  void check_type() {
    const std::string type = text("distributed_type", "");
    if (type.empty()) {
      complaints_.push_back(format(
          "[config] distributed_type is missing (file {}); add "
          "distributed_type: MULTI_CPU, MULTI_GPU or 'NO'",
          document_.path.string()));
      return;
    }
    const std::vector<std::string> known = choices_of("distributed_type");
    if (is_sagemaker_ ? contains(kSageMakerTypes, type)
                      : contains(known, type)) {
      return;
    }
    complaints_.push_back(format(
        "[config] distributed_type is \"{}\", but must be one of {} ({})",
        type,
        join(known, ", "),
        where("distributed_type")));
  }

  void take(
      ConfigJson& values,
      const std::string& key,
      const ConfigJson& default_value) {
    ConfigJson& value = values[key];
    value = given_.value(key, default_value);
    if (!default_value.is_object() || value.is_object()) return;
    // A section without a value is empty.
    if (!value.is_null() && !(value.is_array() && value.empty())) {
      complaints_.push_back(format(
          "[config] {} must be a map, but is {} ({})",
          key,
          printable(value.dump()),
          where(key)));
    }
    value = ConfigJson::object();
  }

  [[nodiscard]] std::string where(const std::string& key) const {
    return place_of(document_, key);
  }

  const ConfigDocument& document_;
  ConfigJson given_;
  bool is_sagemaker_ = false;
  std::vector<std::string> complaints_;
};

}  // namespace

bool is_config_key(std::string_view key) {
  const std::string name(key);
  return base_fields().contains(name) || local_fields().contains(name) ||
      contains(kOwnKeys, key);
}

std::string place_of(const ConfigDocument& document, const std::string& name) {
  const auto line = document.lines.find(name);
  return line == document.lines.end()
      ? format("file {}", document.path.string())
      : format("file {}, line {}", document.path.string(), line->second);
}

void UnknownKeys::add(
    const std::string& name,
    const std::string& key,
    const std::vector<std::string>& known) {
  if (++num_unknown_ > kMaxNamed) return;
  const auto meant = nearest(key, known);
  complaints_.push_back(format(
      "[config] unknown key \"{}\" ({}){}",
      printable(name),
      place_of(document_, name),
      meant ? format("; did you mean \"{}\"?", *meant) : std::string()));
}

void UnknownKeys::finish() {
  if (num_unknown_ <= kMaxNamed) return;
  complaints_.push_back(format(
      "[config] and {} more unknown keys (file {})",
      num_unknown_ - kMaxNamed,
      document_.path.string()));
}

ConfigJson values_in_force(const ConfigDocument& document) {
  return Resolver(document).resolve();
}

std::vector<std::string> retired_keys(const ConfigDocument& document) {
  std::vector<std::string> found;
  for (const RetiredKey& retired : kRetiredKeys) {
    if (find_retired(document, retired) == nullptr) continue;
    const std::string name = retired.section.empty()
        ? std::string(retired.key)
        : format("{}.{}", retired.section, retired.key);
    found.push_back(format(
        "{} (file {}{}{})",
        name,
        document.path.string(),
        retired.instead.empty() ? "" : "; ",
        retired.instead));
  }
  return found;
}

ConfigJson values_to_write(const ConfigJson& in_force) {
  ConfigJson values = ConfigJson::object();
  for (const auto& [key, value] : in_force.items()) {
    if (value.is_null() || (value.is_object() && value.empty())) continue;
    values[key] = value;
  }
  return values;
}

}  // namespace accelerate::detail
