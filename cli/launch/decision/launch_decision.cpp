#include "cli/launch/decision/launch_decision.h"

#include <array>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;
using detail::format;
using detail::Origin;
using detail::Settings;

// As Accelerate sets it for the devices that it finds.
std::string devices_variable_of(std::string_view distributed_type) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 7>
      kVariables{
          {{"MULTI_XPU", "ZE_AFFINITY_MASK"},
           {"MULTI_MLU", "MLU_VISIBLE_DEVICES"},
           {"MULTI_SDAA", "SDAA_VISIBLE_DEVICES"},
           {"MULTI_MUSA", "MUSA_VISIBLE_DEVICES"},
           {"MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES"},
           {"MULTI_HPU", "HABANA_VISIBLE_MODULES"},
           {"MULTI_NEURON", "NEURON_RT_VISIBLE_CORES"}}};
  for (const auto& [type, variable] : kVariables)
    if (type == distributed_type) return variable;
  return "CUDA_VISIBLE_DEVICES";
}

class Decider {
 public:
  Decider(
      const Settings& settings,
      const detail::ConfigDocument* file,
      int num_devices,
      ProgramKind kind)
      : settings_(settings),
        kind_(kind),
        values_(
            file == nullptr ? ConfigJson::object()
                            : detail::values_in_force(*file)),
        has_file_(file != nullptr && !file->values.empty()),
        file_where_(
            file == nullptr ? std::string()
                            : detail::place_of(*file, "distributed_type")),
        num_devices_(num_devices) {}

  LaunchDecision decide() {
    check_flags();
    decision_.kind = kind_;
    decision_.uses_cpu = settings_.boolean("use_cpu");
    decision_.shares_cores = has_file_ ? file_uses_cpu() : decision_.uses_cpu;
    decision_.num_machines =
        count("num_machines", *settings_.integer("num_machines"));
    decision_.machine_rank =
        count("machine_rank", *settings_.integer("machine_rank"));
    decision_.address = settings_.text("main_process_ip");
    if (const auto port = settings_.integer("main_process_port")) {
      decision_.port = static_cast<int>(*port);
    }
    decision_.mpi_hostfile = settings_.text("mpirun_hostfile");
    decision_.gpu_ids = settings_.text("gpu_ids").value_or("all");
    count_processes();
    choose_paradigm();
    check();
    if (has_file_)
      decision_.deepspeed_fields = deepspeed_fields(settings_, values_);
    if (!complaints_.empty()) {
      throw ConfigError(detail::join(complaints_, "\n"));
    }
    return std::move(decision_);
  }

 private:
  [[nodiscard]] bool is_flag(std::string_view key) const {
    settings_.mark_read(key);
    const detail::Resolved* const found = settings_.find(key);
    return found != nullptr && found->origin == Origin::flag &&
        std::get<bool>(found->value);
  }

  // A file may leave the value empty, or write it as a number or a string.
  [[nodiscard]] bool file_uses_cpu() const {
    const auto found = values_.find("use_cpu");
    return found != values_.end() &&
        detail::parse_bool(detail::python_text(*found)).value_or(false);
  }

  void complain(const std::string& text) {
    complaints_.push_back("[launch] " + text);
  }

  // The number of ranks or machines, which must be at most kMostProcesses.
  int count(std::string_view key, std::int64_t value) {
    if (value <= kMostProcesses) return static_cast<int>(value);
    complain(format("{} is {}; at most {} start", key, value, kMostProcesses));
    return kMostProcesses;
  }

  void check_flags() {
    // Megatron-LM is not in this list, as in Accelerate.
    exclude(
        {{"multi_gpu", "--multi_gpu"},
         {"tpu", "--tpu"},
         {"use_deepspeed", "--use_deepspeed"},
         {"use_fsdp", "--use_fsdp"},
         {"use_cpu", "--cpu"}});
    if (is_flag("use_parallelism_config") && !is_flag("use_fsdp") &&
        !has_file_) {
      complain(
          "--use_parallelism_config goes with --use_fsdp and --fsdp_version 2");
    }
  }

  void exclude(const std::vector<std::pair<std::string, std::string>>& flags) {
    std::vector<std::string> given;
    for (const auto& [key, flag] : flags) {
      if (is_flag(key)) given.push_back(flag);
    }
    // Programs of this library shard on CPU ranks as well.
    if (kind_ == ProgramKind::native && given.size() == 2 &&
        given.back() == "--cpu" && given.front().starts_with("--use_")) {
      return;
    }
    if (given.size() > 1) {
      complain(format(
          "{} exclude each other; pass one of them",
          detail::join(given, ", ")));
    }
  }

  void count_processes() {
    const auto given = settings_.integer("num_processes");
    if (given) {
      decision_.num_processes = count("num_processes", *given);
    } else if (has_file_) {
      complain(
          "the config file does not say how many processes to start; pass "
          "--num_processes");
    } else {
      decision_.num_processes = num_devices_;
    }
    if (is_flag("multi_gpu") && given && *given < 2) {
      complain(
          "--multi_gpu needs at least two processes; pass --num_processes");
    }
  }

  void choose_paradigm() {
    bool fsdp = is_flag("use_fsdp"), deepspeed = is_flag("use_deepspeed"),
         megatron = is_flag("use_megatron_lm"), tpu = is_flag("tpu"),
         multi_device = is_flag("multi_gpu");
    decision_.uses_parallelism_config =
        settings_.boolean("use_parallelism_config");
    const bool by_flag = fsdp || deepspeed || megatron || tpu || multi_device ||
        is_flag("tpu_use_cluster");
    if (has_file_ && !by_flag) {
      const std::string type = values_.value("distributed_type", "NO");
      fsdp = type == "FSDP";
      deepspeed = type == "DEEPSPEED";
      megatron = type == "MEGATRON_LM";
      tpu = type == "XLA";
      multi_device = type.starts_with("MULTI_") && type != "MULTI_CPU";
      decision_.devices_variable = devices_variable_of(type);
      decision_.uses_parallelism_config =
          !values_.value("parallelism_config", ConfigJson::object()).empty();
    }
    if (!has_file_ && decision_.num_processes > 1 && num_devices_ > 1) {
      multi_device = true;
    }
    checks_ids_ = multi_device;
    decision_.asks_for_devices =
        multi_device && (is_flag("multi_gpu") || (has_file_ && !by_flag));
    // The flag --cpu takes precedence over devices in a file.
    if (is_flag("use_cpu")) {
      if (kind_ == ProgramKind::python) return;
      multi_device = tpu = false;
    }
    decision_.engine_where = file_where_;
    if (deepspeed) {
      decision_.paradigm = Paradigm::deepspeed;
    } else if (fsdp) {
      decision_.paradigm = Paradigm::fsdp;
    } else if (megatron) {
      decision_.paradigm = Paradigm::megatron;
    } else if (multi_device) {
      decision_.paradigm = Paradigm::multi_device;
    } else if (tpu) {
      decision_.paradigm = Paradigm::tpu;
    }
  }

  void check() {
    const auto& ids = decision_.gpu_ids;
    if (checks_ids_ && has_file_ && ids != "all" &&
        ids.find(',') == std::string::npos && decision_.num_machines <= 1) {
      complain(format(
          "gpu_ids names one device, \"{}\", for several processes on devices; "
          "name more, or all",
          ids));
    }
    if (decision_.num_machines > 1 && decision_.paradigm == Paradigm::simple &&
        !decision_.mpi_hostfile && (!decision_.address || !decision_.port)) {
      complain(
          "several machines need the address and port of rank 0; pass "
          "--main_process_ip and --main_process_port");
    }
    if (decision_.machine_rank >= decision_.num_machines) {
      complain(format(
          "machine_rank is {}, but there are {} machines, numbered from 0",
          decision_.machine_rank,
          decision_.num_machines));
    }
    if (decision_.paradigm == Paradigm::fsdp &&
        boolean("fsdp_cpu_ram_efficient_loading") &&
        !boolean("fsdp_sync_module_states") && is_boolean_in_file()) {
      complain(
          "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states, or "
          "all ranks but the first start from uninitialized weights");
    }
  }

  // The value, or the default for this kind of program.
  [[nodiscard]] bool boolean(std::string_view key) const {
    if (settings_.is_given(key) || kind_ == ProgramKind::native)
      return settings_.boolean(key);
    const detail::OptionSpec& spec = *detail::find_option(key);
    return detail::parse_bool(spec.default_for_python()).value_or(false);
  }

  // Accelerate checks only values from files: it takes any string given to the
  // flag as true.
  [[nodiscard]] bool is_boolean_in_file() const {
    const detail::Resolved* const found =
        settings_.find("fsdp_sync_module_states");
    return found != nullptr && found->origin == Origin::file;
  }

  const Settings& settings_;
  ProgramKind kind_;
  ConfigJson values_;
  bool has_file_;
  std::string file_where_;
  int num_devices_;
  bool checks_ids_ = false;
  LaunchDecision decision_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::string> deepspeed_fields(
    const Settings& settings,
    const ConfigJson& values) {
  std::vector<std::string> fields;
  const ConfigJson map = values.value("deepspeed_config", ConfigJson::object());
  for (const auto& [key, value] : map.items()) fields.push_back(key);
  const detail::Resolved* const precision = settings.find("mixed_precision");
  if (precision != nullptr && precision->origin == Origin::file)
    fields.emplace_back("mixed_precision");
  return fields;
}

LaunchDecision decide_launch(
    const Settings& settings,
    const detail::ConfigDocument* file,
    int num_devices,
    ProgramKind kind) {
  return Decider(settings, file, num_devices, kind).decide();
}

}  // namespace accelerate::cli
