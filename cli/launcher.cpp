#include "cli/launcher.h"

#include <optional>
#include <string>

#include <unistd.h>

#include "base/text.h"
#include "cli/processor_sets.h"
#include "cli/rank_group.h"
#include "cli/signals.h"
#include "cli/store_server.h"
#include "cli/watchdog.h"

namespace accelerate::cli {

namespace {

void say(const std::string& text) {
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

void say_processors(const LaunchPlan& plan) {
  if (plan.is_quiet) return;
  for (std::size_t i = 0; i < plan.processors.size(); ++i) {
    say(detail::concat(
        "accelerate-cpp: rank ",
        plan.rank_of(static_cast<int>(i)),
        ": processors ",
        format_processors(plan.processors[i]),
        ", ",
        plan.num_threads,
        plan.num_threads == 1 ? " thread\n" : " threads\n"));
  }
}

}  // namespace

int run_ranks(const LaunchPlan& plan) {
  const Signals signals;
  std::optional<Watchdog> watchdog;
  const bool is_isolated = plan.processes_here() > 1 || plan.num_machines > 1 ||
      plan.max_restarts > 0 || plan.log_dir;
  if (is_isolated) watchdog.emplace();
  std::optional<StoreServer> store;
  if (plan.port && plan.machine_rank == 0) {
    store.emplace(plan.address, *plan.port, plan.num_machines > 1);
  }
  const int port = store ? store->port() : plan.port.value_or(0);
  say_processors(plan);
  for (int attempt = 0;; ++attempt) {
    const GroupEnd end = RankGroup(
                             plan,
                             {.attempt = attempt, .port = port},
                             signals,
                             watchdog ? &*watchdog : nullptr)
                             .run();
    const bool is_last = attempt == plan.max_restarts;
    if (!plan.is_quiet) say(end.reason);
    if (end.code == 0 || end.was_told || is_last) return end.code;
    if (!plan.is_quiet) {
      say(detail::concat(
          "accelerate-cpp: starting again, ",
          attempt + 1,
          " of at most ",
          plan.max_restarts,
          plan.max_restarts == 1 ? " time\n" : " times\n"));
    }
  }
}

}  // namespace accelerate::cli
