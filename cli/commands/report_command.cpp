#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>
#include <accelerate/version.h>

#include "base/machine/gpus.h"
#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/launch/machine/machine.h"
#include "cli/launch/machine/processor_sets.h"
#include "cli/launch/nodes/foreign_launchers.h"
#include "cli/processes/run_program.h"
#include "cli/tool/commands.h"
#include "config/files/config_file.h"

namespace accelerate::cli {

namespace {

using detail::format;
namespace fs = std::filesystem;

void say(const std::string& name, const std::string& value) {
  std::printf("- %s: %s\n", name.c_str(), value.c_str());
}

// The value of the first line "name : value" in a /proc file.
std::string proc_value(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) {
      return std::string(detail::trim(line.substr(colon + 1)));
    }
  }
  return {};
}

std::string memory_of(const std::string& name) {
  const std::string text = proc_value("/proc/meminfo", name);
  const auto kib = detail::parse_int(text.substr(0, text.find(' ')));
  return kib ? detail::format_size(static_cast<double>(*kib) * 1024) : text;
}

void print_devices() {
  std::ifstream driver("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(driver, line)) {
    say("NVIDIA driver", "none");
    return;
  }
  say("NVIDIA driver", line.substr(line.find(':') + 1));
  for (const detail::Gpu& gpu : detail::nvidia_gpus())
    say(format("Device {}", gpu.address), gpu.model);
}

// Runs a separate process: LibTorch takes long to load, and a broken driver may
// crash it.
void print_libtorch() {
  try {
    const Output output =
        run_program({find_libexec_program("accelerate-cpp-probe").string()});
    if (output.code != 0) {
      say("LibTorch", format("the probe failed: {}", output.err));
      return;
    }
    for (const std::string& line : detail::split(output.out, '\n')) {
      const std::size_t tab = line.find('\t');
      if (tab != std::string::npos) {
        say(line.substr(0, tab), line.substr(tab + 1));
      }
    }
  } catch (const ConfigError& error) {
    say("LibTorch", error.what());
  }
}

void print_mpi(const detail::Environment& environment) {
  try {
    const MpiLauncher mpi = find_mpi(environment);
    say("MPI",
        format(
            "{}{}",
            mpi.program,
            mpi.is_open_mpi ? " (Open MPI)" : " (MPICH's kind)"));
  } catch (const ConfigError&) {
    say("MPI", "none on PATH");
  }
}

void print_config(
    const std::string& file,
    const detail::Environment& environment) {
  std::optional<fs::path> path;
  std::string text = "none";
  if (!file.empty()) {
    path = file;
  } else if (const auto usual = detail::find_default_config(environment);
             !usual.problem.empty()) {
    text = format("{} cannot be read: {}", usual.path.string(), usual.problem);
  } else if (usual.exists) {
    path = usual.path;
  }
  if (path) text = path->string();
  std::vector<detail::Source> sources{
      detail::source_from_environment(environment)};
  say("Config file", text);
  if (path) {
    sources.push_back(
        detail::source_from_config(detail::read_config_document(*path)));
  }
  const detail::Settings settings = detail::resolve(sources);
  for (const detail::OptionSpec& spec : detail::option_table()) {
    if (!settings.is_given(spec.key)) continue;
    const detail::Resolved& found = *settings.find(spec.key);
    std::printf(
        "\t- %s: %s (%s)\n",
        std::string(spec.key).c_str(),
        detail::format_option(found.value).c_str(),
        found.where.c_str());
  }
}

int report(const std::string& file) {
  const auto environment = detail::Environment::current();
  const Machine machine = look_at_machine(environment);
  std::printf("Copy this into your issue:\n\n");
  say("accelerate.cpp", ACCELERATE_VERSION);
  say("accelerate-cpp is at", own_path().string());
  utsname system{};
  uname(&system);
  say("System",
      format("{} {} {}", system.sysname, system.release, system.machine));
  say("C library", format("glibc {}", gnu_get_libc_version()));
#ifdef __clang__
  say("Compiler of the tool", format("clang {}", __clang_version__));
#else
  say("Compiler of the tool", format("g++ {}", __VERSION__));
#endif
  say("Processor", proc_value("/proc/cpuinfo", "model name"));
  say("Processors",
      format(
          "{} may be used ({} cores, {} by the cgroup)",
          format_processors(machine.processors),
          machine.physical_cores,
          machine.usable_cores));
  say("Memory",
      format("{}, {} free", memory_of("MemTotal"), memory_of("MemAvailable")));
  print_devices();
  print_libtorch();
  print_mpi(environment);
  print_config(file, environment);
  return 0;
}

int self_check(
    const std::string& config_file,
    const std::vector<std::string>& flags) {
  std::vector<std::string> command{own_path().string(), "launch"};
  if (!config_file.empty()) {
    command.insert(command.end(), {"--config_file", config_file});
  }
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back(find_libexec_program("accelerate-cpp-self-check").string());
  const int code = run_shown(command);
  std::printf(
      code == 0 ? "All is well: programs can train on this layout.\n"
                : "Something does not work; see the lines above.\n");
  return code;
}

}  // namespace

RunCommand add_env_command(CLI::App& tool) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = tool.add_subcommand(
      "env", "print versions, devices and settings, to paste into an issue");
  command
      ->add_option(
          "--config_file,--config-file", *file, "the file to report on")
      ->type_name("FILE");
  return [file] { return report(*file); };
}

RunCommand add_test_command(CLI::App& tool) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = tool.add_subcommand(
      "test",
      "check collectives, data, training and checkpoints "
      "on the configured layout");
  command
      ->add_option(
          "--config_file,--config-file",
          *file,
          "the file that configures the layout")
      ->type_name("FILE");
  command->footer(
      "Flags of launch may follow: accelerate-cpp test --num_processes 2");
  command->prefix_command();
  return [command, file] { return self_check(*file, command->remaining()); };
}

}  // namespace accelerate::cli
