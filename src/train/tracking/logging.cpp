#include <utility>

#include <accelerate/accelerator_processes.h>

#include "base/progress/progress_bar.h"
#include "config/environment.h"
#include "config/terminal_variables.h"
#include "train/session/session.h"

namespace accelerate {

NamedLogger AcceleratorProcesses::logger(
    std::string name,
    std::optional<LogLevel> level) const {
  const World& world = this->world();
  const LogLevel used = level.value_or(world.logger().level(name));
  return NamedLogger(
      {.logger = world.logger(),
       .rank = world.rank(),
       .size = world.size(),
       .barrier = [world] { world.wait_for_everyone(); }},
      std::move(name),
      used);
}

ProgressOptions AcceleratorProcesses::progress_options(
    const ProgressOptions& options) const {
  return detail::progress_options_of_rank(
      options,
      is_local_main_process(),
      detail::terminal_variables(detail::Environment::current()).has_utf8);
}

}  // namespace accelerate
