#include <algorithm>
#include <filesystem>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/launch/nodes/foreign_launchers.h"
#include "config/files/config_file.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_launch_env {

using cli::LaunchDecision;
using cli::Paradigm;
using detail::Settings;

class LaunchCase {
 public:
  explicit LaunchCase(const Json& input)
      : input_(input), machine_(input.at("machine")), flags_(command_) {
    command_.prefix_command();
    for (const auto& [name, value] : input.at("env").items()) {
      environment_.set(name, value);
    }
  }

  Json run() {
    std::vector<std::string> words = input_.at("flags");
    std::reverse(words.begin(), words.end());
    try {
      command_.parse(words);
    } catch (const CLI::ParseError& error) {
      throw ConfigError(error.what());
    }
    program_ = flags_.program();
    read_settings();
    if (settings_.boolean("module") && settings_.boolean("no_python")) {
      throw ConfigError("--module and --no_python exclude each other");
    }
    decision_ =
        cli::decide_launch(settings_, file(), machine_.at("cuda_devices"));
    Json outcome = command();
    outcome["env"] = variables();
    return outcome;
  }

 private:
  [[nodiscard]] Json command() {
    if (cli::is_left_to_others(decision_, settings_))
      return {{"launcher", "command"}, {"command", foreign_command()}};
    if (decision_.paradigm == Paradigm::simple)
      return {{"launcher", "command"}, {"command", python_command()}};
    return {{"launcher", "torchrun"}, {"torchrun", torchrun()}};
  }

  [[nodiscard]] const detail::ConfigDocument* file() const {
    return document_ ? &*document_ : nullptr;
  }

  void read_settings() {
    std::vector<detail::Source> sources{flags_.source()};
    const bool takes_file = !input_.at("config_yaml").is_null() &&
        (!input_.at("config_is_default").get<bool>() ||
         command_.count("--cpu") == 0);
    if (takes_file) {
      document_ = detail::parse_config(input_.at("config_yaml"), "config.yaml");
      sources.push_back(detail::source_from_config(*document_));
    }
    settings_ = detail::resolve(sources);
    if (settings_.integer("num_cpu_threads_per_process") == 0 &&
        environment_.has("OMP_NUM_THREADS")) {
      sources.push_back({detail::Origin::environment, {}});
      sources.back().add(
          "num_cpu_threads_per_process",
          *environment_.get("OMP_NUM_THREADS"),
          "OMP_NUM_THREADS");
      settings_ = detail::resolve(sources);
    }
  }

  std::vector<std::string> python_command() {
    std::vector<std::string> words;
    if (!settings_.boolean("no_python")) words.emplace_back("<python>");
    if (settings_.boolean("module")) words.emplace_back("-m");
    words.insert(words.end(), program_.begin(), program_.end());
    return words;
  }

  std::vector<std::string> foreign_command() {
    if (decision_.paradigm == Paradigm::deepspeed) {
      auto words = cli::deepspeed_command(decision_, settings_);
      if (settings_.boolean("module")) words.emplace_back("--module");
      if (settings_.boolean("no_python")) words.emplace_back("--no_python");
      words.insert(words.end(), program_.begin(), program_.end());
      return words;
    }
    if (machine_.at("mpi").is_null()) throw ConfigError("no mpirun");
    auto words = cli::mpi_command(
        decision_, {"", "mpirun", machine_.at("mpi") == "open_mpi"});
    const auto rest = python_command();
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }

  [[nodiscard]] bool is_taken(int port) const {
    const std::vector<int> taken = machine_.at("ports_in_use");
    return std::find(taken.begin(), taken.end(), port) != taken.end();
  }

  [[nodiscard]] int port() const {
    const int asked = decision_.port.value_or(29500);
    return asked == 0 ? machine_.at("free_port").get<int>() : asked;
  }

  Json torchrun() {
    const bool is_one = decision_.num_machines == 1;
    if (!is_one && decision_.machine_rank == 0 && is_taken(port())) {
      throw ConfigError("the port is taken");
    }
    const bool same_network = settings_.boolean("same_network");
    Json out{
        {"nnodes", is_one ? "1:1" : std::to_string(decision_.num_machines)},
        {"nproc_per_node", decision_.processes_here()},
        {"node_rank", is_one ? 0 : decision_.machine_rank},
        {"rdzv_backend", *settings_.text("rdzv_backend")},
        {"rdzv_endpoint", ""},
        {"rdzv_id", "none"},
        {"rdzv_conf", settings_.text("rdzv_conf").value_or("")},
        {"standalone", is_one && is_taken(port())},
        {"max_restarts", *settings_.integer("max_restarts")},
        {"monitor_interval", *settings_.number("monitor_interval")},
        {"master_addr", "127.0.0.1"},
        {"master_port", 29500},
        {"module", settings_.boolean("module")},
        {"no_python", settings_.boolean("no_python")},
        {"role", *settings_.text("role")},
        {"log_dir", nullptr},
        {"tee", *settings_.text("tee")},
        {"training_script", program_.front()},
        {"training_script_args",
         std::vector<std::string>(program_.begin() + 1, program_.end())}};
    if (is_one) {
      out["master_port"] = port();
    } else if (same_network) {
      out["master_addr"] = decision_.address.value_or("None");
      out["master_port"] = port();
    } else {
      out["rdzv_endpoint"] =
          detail::format("{}:{}", decision_.address.value_or("None"), port());
    }
    return out;
  }

  Json variables() {
    auto values = cli::python_variables(decision_, settings_, environment_);
    if (decision_.paradigm != Paradigm::deepspeed) {
      values["OMP_NUM_THREADS"] = std::to_string(cli::python_threads(
          decision_, settings_, environment_, machine_.at("physical_cores")));
    }
    if (decision_.paradigm == Paradigm::simple &&
        (decision_.num_processes > 1 || decision_.num_machines > 1)) {
      values["MASTER_ADDR"] = decision_.address.value_or("127.0.0.1");
      values["MASTER_PORT"] = std::to_string(decision_.port.value_or(29500));
    }
    Json changed = Json::object();
    for (const auto& [name, value] : values) {
      if (environment_.get(name) == value) continue;
      const std::string here = std::filesystem::current_path();
      std::string text = value;
      if (const auto at = text.find(here); at != std::string::npos) {
        text.replace(at, here.size(), "<cwd>");
      }
      changed[name] = text;
    }
    return changed;
  }

  Json input_, machine_;
  CLI::App command_;
  cli::LaunchFlags flags_;
  detail::Environment environment_;
  std::vector<std::string> program_;
  std::optional<detail::ConfigDocument> document_;
  Settings settings_;
  LaunchDecision decision_;
};

}  // namespace topic_launch_env

Json run_launch_env(const Json& input) {
  using namespace topic_launch_env;
  return LaunchCase(input).run();
}

}  // namespace accelerate::oracle
