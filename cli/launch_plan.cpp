#include "cli/launch_plan.h"

#include <algorithm>
#include <filesystem>

#include <sched.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "config/rank_variables.h"

namespace accelerate::cli {

namespace {

using detail::concat;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) &&
      access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(
    const std::string& name,
    const detail::Environment& environment) {
  std::error_code ignored;
  if (name.find('/') != std::string::npos) {
    if (is_executable(name)) return name;
    throw ConfigError(concat(
        "[launch] program \"",
        name,
        "\" ",
        std::filesystem::exists(name, ignored)
            ? "is not an executable file; build it, or chmod +x"
            : "does not exist; check the path"));
  }
  for (const std::string& folder :
       detail::split(environment.get("PATH").value_or(""), ':')) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    if (is_executable(path)) return path;
  }
  throw ConfigError(concat(
      "[launch] program \"",
      name,
      "\" is not on PATH",
      is_executable(name)
          ? concat("; for the one in this folder write ./", name)
          : std::string("; write its path")));
}

LaunchPlan make_launch_plan(
    const detail::Settings& settings,
    const detail::Environment& environment,
    const std::vector<std::string>& command) {
  const auto count = static_cast<int>(*settings.integer("num_processes"));
  const std::string address = *settings.text("main_process_ip");
  const auto asked_port =
      static_cast<int>(*settings.integer("main_process_port"));

  LaunchPlan plan;
  plan.program = find_program(command.front(), environment);
  plan.arguments = command;
  if (count > 1 || asked_port != 0) {
    plan.reservation = std::make_unique<PortReservation>(address, asked_port);
  }
  const int port = plan.reservation ? plan.reservation->port() : 0;

  std::map<std::string, std::string, std::less<>> shared;
  for (const auto& [name, value] : environment.all()) {
    if (!detail::is_rank_variable(name)) shared.emplace(name, value);
  }
  std::int64_t threads =
      settings.integer("num_cpu_threads_per_process").value_or(0);
  if (threads == 0 && count > 1) threads = std::max(1, usable_cores() / count);

  for (int rank = 0; rank < count; ++rank) {
    std::vector<std::pair<std::string, std::string>> own{
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(count)},
        {"LOCAL_WORLD_SIZE", std::to_string(count)},
        {"MASTER_ADDR", address},
        {"MASTER_PORT", std::to_string(port)},
        {std::string(detail::kHandoverVariable),
         detail::to_handover(settings)}};
    if (threads > 0)
      own.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    detail::Environment variables{shared};
    std::vector<std::string> lines;
    for (const auto& [name, value] : own) {
      variables.set(name, value);
      lines.push_back(concat(name, "=", value));
    }
    plan.environments.push_back(std::move(variables));
    plan.own_variables.push_back(std::move(lines));
  }
  return plan;
}

std::string describe(const LaunchPlan& plan, const detail::Settings& settings) {
  std::string out =
      concat("command: ", detail::join(plan.arguments, " "), "\n");
  out += concat("program: ", plan.program, "\n");
  for (std::size_t rank = 0; rank < plan.own_variables.size(); ++rank) {
    out += concat(
        "rank ",
        rank,
        ":\n  ",
        detail::join(plan.own_variables[rank], "\n  "),
        "\n");
  }
  return out + "settings:\n" + settings.explain();
}

}  // namespace accelerate::cli
