#include "config/files/config_document.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

struct Field {
  const char* key;
  ConfigJson default_value;
};

const std::vector<Field>& base_fields() {
  static const std::vector<Field> fields{
      {"compute_environment", "LOCAL_MACHINE"},
      {"distributed_type", nullptr},
      {"mixed_precision", nullptr},
      {"use_cpu", false},
      {"debug", false}};
  return fields;
}

const std::vector<Field>& local_fields() {
  static const ConfigJson map = ConfigJson::object();
  static const std::vector<Field> fields{
      {"num_processes", -1},
      {"machine_rank", 0},
      {"num_machines", 1},
      {"gpu_ids", nullptr},
      {"main_process_ip", nullptr},
      {"main_process_port", nullptr},
      {"rdzv_backend", "static"},
      {"same_network", false},
      {"main_training_function", "main"},
      {"enable_cpu_affinity", false},
      {"fp8_config", map},
      {"deepspeed_config", map},
      {"fsdp_config", map},
      {"parallelism_config", map},
      {"megatron_lm_config", map},
      {"mpirun_config", map},
      {"downcast_bf16", false},
      {"tpu_name", nullptr},
      {"tpu_zone", nullptr},
      {"tpu_use_cluster", false},
      {"tpu_use_sudo", false},
      {"command_file", nullptr},
      {"commands", nullptr},
      {"tpu_vm", nullptr},
      {"tpu_env", nullptr},
      {"dynamo_config", map}};
  return fields;
}

const std::vector<Field>& sagemaker_fields() {
  static const std::vector<Field> fields{
      {"ec2_instance_type", nullptr},
      {"iam_role_name", nullptr},
      {"image_uri", nullptr},
      {"profile", nullptr},
      {"region", "us-east-1"},
      {"num_machines", 1},
      {"gpu_ids", "all"},
      {"base_job_name", "accelerate-sagemaker-1"},
      {"pytorch_version", "1.10.2"},
      {"transformers_version", "4.17.0"},
      {"py_version", "py38"},
      {"sagemaker_inputs_file", nullptr},
      {"sagemaker_metrics_file", nullptr},
      {"additional_args", nullptr},
      {"dynamo_config", ConfigJson::object()},
      {"enable_cpu_affinity", false}};
  return fields;
}

// Keys of this library that Accelerate does not know.
constexpr std::array<std::string_view, 10> kOwnKeys{
    "timeout_seconds",
    "transport",
    "log_level",
    "log_levels",
    "log_format",
    "device",
    "gradient_accumulation_steps",
    "num_cpu_threads_per_process",
    "cpu_affinity",
    "max_restarts"};

constexpr std::array<std::string_view, 15> kLocalTypes{
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_HPU",
    "MULTI_SDAA",
    "MULTI_XPU",
    "MULTI_MUSA",
    "MULTI_NEURON",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "TP",
    "MEGATRON_LM"};
// Accelerate writes NO for SageMaker, too, but cannot read that file back.
constexpr std::array<std::string_view, 3> kSageMakerTypes{
    "NO",
    "DATA_PARALLEL",
    "MODEL_PARALLEL"};

template <std::size_t N>
bool contains(
    const std::array<std::string_view, N>& names,
    std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
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

// The most unknown keys that an error names.
constexpr int kMaxNamed = 20;

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
    for (const Field& field : base_fields()) take(values, field);
    for (const Field& field :
         is_sagemaker_ ? sagemaker_fields() : local_fields()) {
      take(values, field);
    }
    values["compute_environment"] =
        text("compute_environment", "LOCAL_MACHINE");
    values["distributed_type"] = text("distributed_type", "");
    if (!is_sagemaker_ && !given_.contains("num_processes") &&
        values["distributed_type"] == "NO") {
      values["num_processes"] = 1;
    }
    for (const auto& [key, value] : given_.items()) {
      if (contains(kOwnKeys, key)) {
        values[key] = value;
      } else if (!values.contains(key)) {
        complain_unknown(key, values);
      }
    }
    if (num_unknown_ > kMaxNamed) {
      complaints_.push_back(format(
          "[config] and {} more unknown keys (file {})",
          num_unknown_ - kMaxNamed,
          document_.path.string()));
    }
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
        "[config] compute_environment is \"{}\"; it must be LOCAL_MACHINE or "
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
    const bool is_known = is_sagemaker_ ? contains(kSageMakerTypes, type)
                                        : contains(kLocalTypes, type);
    if (is_known) return;
    std::vector<std::string> known(kLocalTypes.begin(), kLocalTypes.end());
    complaints_.push_back(format(
        "[config] distributed_type is \"{}\"; it must be one of {} ({})",
        type,
        join(known, ", "),
        where("distributed_type")));
  }

  void take(ConfigJson& values, const Field& field) {
    const auto found = given_.find(field.key);
    ConfigJson& value = values[field.key];
    value = found == given_.end() ? field.default_value : *found;
    if (!field.default_value.is_object() || value.is_object()) return;
    // A section without a value is an empty one.
    if (!value.is_null() && !(value.is_array() && value.empty())) {
      complaints_.push_back(format(
          "[config] {} must be a map, but is {} ({})",
          field.key,
          printable(value.dump()),
          where(field.key)));
    }
    value = ConfigJson::object();
  }

  void complain_unknown(const std::string& key, const ConfigJson& values) {
    if (++num_unknown_ > kMaxNamed) return;
    std::vector<std::string> known(kOwnKeys.begin(), kOwnKeys.end());
    for (const auto& [name, value] : values.items()) known.push_back(name);
    const auto meant = nearest(key, known);
    complaints_.push_back(format(
        "[config] unknown key \"{}\" ({}){}",
        printable(key),
        where(key),
        meant ? format("; did you mean \"{}\"?", *meant) : std::string()));
  }

  [[nodiscard]] std::string where(const std::string& key) const {
    const auto line = document_.lines.find(key);
    return line == document_.lines.end()
        ? format("file {}", document_.path.string())
        : format("file {}, line {}", document_.path.string(), line->second);
  }

  const ConfigDocument& document_;
  ConfigJson given_;
  bool is_sagemaker_ = false;
  int num_unknown_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace

bool is_config_key(std::string_view key) {
  const auto has = [&](const std::vector<Field>& fields) {
    return std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
      return field.key == key;
    });
  };
  return has(base_fields()) || has(local_fields()) || contains(kOwnKeys, key);
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
