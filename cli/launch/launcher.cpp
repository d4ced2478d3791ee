#include "cli/launch/launcher.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "cli/launch/machine/memory_directory.h"
#include "cli/launch/machine/processor_sets.h"
#include "cli/launch/nodes/elastic_machines.h"
#include "cli/launch/nodes/machines.h"
#include "cli/launch/nodes/preflight.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/ranks/rank_group.h"
#include "cli/launch/signals.h"
#include "launch/processes/watchdog.h"
#include "launch/store_server.h"

namespace accelerate::cli {

namespace {

void print_processors(const LaunchPlan& plan, const LaunchOutput& output) {
  if (plan.is_quiet) return;
  for (std::size_t i = 0; i < plan.processors.size(); ++i) {
    // 0: the rank decides.
    const std::string threads = plan.num_threads == 0 ? std::string()
        : plan.num_threads == 1
        ? ", 1 thread"
        : detail::format(", {} threads", plan.num_threads);
    output.say(detail::format(
        "accelerate-cpp: rank {}: processors {}{}\n",
        plan.rank_of(static_cast<int>(i)),
        format_processors(plan.processors[i]),
        threads));
  }
}

// Checks the connections between all machines; machine 0 prints the results.
// Throws if one failed.
void require_reachable(
    const LaunchPlan& plan,
    const StorePlace& store,
    const Signals& signals,
    const LaunchOutput& output) {
  const std::vector<Reach> results = check_machines(plan, store, signals);
  if (plan.machine_rank == 0) output.say(describe(results));
  for (const Reach& each : results) {
    if (each.problem.empty()) continue;
    throw ConfigError(detail::format(
        "[launch] --check: machine {} ({}) cannot reach machine {}: {}; "
        "check the firewall and the route between them",
        each.from,
        each.interface,
        each.to,
        each.problem));
  }
}

// Exchanges with the other machines how the attempt ended.
void agree_on_end(
    Machines& machines,
    int attempt,
    bool may_restart,
    GroupEnd& end) {
  const Machines::End all = machines.finish(
      attempt,
      end.was_stopped ? 0 : end.code,
      may_restart && !end.was_signalled);
  if (end.was_signalled) return;
  end.code = all.code;
  if (end.reason.empty()) end.reason = all.reason;
}

void say_that_it_starts_again(
    const LaunchPlan& plan,
    int num_restarts_left,
    const LaunchOutput& output) {
  if (plan.is_quiet) return;
  output.say(detail::format(
      "accelerate-cpp: starting again, {} of at most {}{}",
      plan.max_restarts - num_restarts_left,
      plan.max_restarts,
      plan.max_restarts == 1 ? " time\n" : " times\n"));
}

int run_attempts(
    const LaunchPlan& plan,
    StorePlace store,
    const Signals& signals,
    LaunchOutput& output,
    detail::Watchdog* watchdog) {
  std::optional<Machines> machines;
  if (plan.num_machines > 1) {
    machines.emplace(plan, store, signals, output);
    store.secret = machines->secret();
    if (plan.checks_machines && !machines->is_returning())
      require_reachable(plan, store, signals, output);
  }
  const MemoryDirectory memory(plan.memory_directory);
  const int first_attempt = machines ? machines->first_attempt() : 0;
  int num_restarts_left = plan.max_restarts - first_attempt;
  for (int attempt = first_attempt;; ++attempt) {
    const int stop = machines ? machines->begin(attempt) : -1;
    GroupEnd end = RankGroup(
                       plan,
                       {.attempt = attempt,
                        .store = store,
                        .stop = stop,
                        .num_restarts_left = &num_restarts_left},
                       signals,
                       output,
                       watchdog)
                       .run();
    if (machines) agree_on_end(*machines, attempt, num_restarts_left > 0, end);
    if (!plan.is_quiet) output.say(end.reason);
    if (end.code == 0 || end.was_signalled || num_restarts_left == 0)
      return end.code;
    if (machines) machines->require_store();
    say_that_it_starts_again(plan, --num_restarts_left, output);
  }
}

// How an attempt of a group whose machines come and go ended here.
struct ElasticAttempt {
  int code = 0;
  /// Restarts left if all machines begin another attempt; 0 if none.
  int num_restarts_left = 0;
};

// How other machines' ranks, or the group, failed.
std::string describe(const GroupOutcome& outcome) {
  if (outcome.code == 0) return {};
  if (outcome.machine < 0)
    return detail::format("accelerate-cpp: {}\n", outcome.reason);
  return detail::format(
      "accelerate-cpp: {} failed with exit code {}; the "
      "ranks here were ended\n",
      outcome.reason,
      outcome.code);
}

ElasticAttempt run_elastic_attempt(
    const LaunchPlan& plan,
    const StorePlace& store,
    ElasticMachines& machines,
    ElasticMember& member,
    const Signals& signals,
    LaunchOutput& output,
    detail::Watchdog* watchdog) {
  const GroupEnd end =
      RankGroup(
          plan,
          {.attempt = machines.attempt(), .store = store, .member = &member},
          signals,
          output,
          watchdog)
          .run();
  if (end.was_signalled) {
    // Once they get SIGTERM, all ranks save and finish together, the others
    // slightly later.
    if (end.code == 128 + SIGTERM) machines.await_end();
    machines.end_for_all(end.code);
    machines.finish(/*is_last=*/true);
    return {.code = end.code};
  }
  const auto outcome = member.outcome();
  if (!outcome) {
    output.say(detail::format(
        "{}accelerate-cpp: the other machines continue without this one, "
        "machine {}, whose ranks have ended or which they could not reach; "
        "start its launcher again to join them\n",
        plan.is_quiet ? std::string() : end.reason,
        plan.machine_rank));
    return {.code = 1};
  }
  const bool starts_again =
      outcome->code != 0 && outcome->num_restarts_left > 0;
  machines.finish(/*is_last=*/!starts_again);
  if (!plan.is_quiet)
    output.say(end.reason.empty() ? describe(*outcome) : end.reason);
  return {outcome->code, starts_again ? outcome->num_restarts_left : 0};
}

int run_elastic_attempts(
    const LaunchPlan& plan,
    StorePlace store,
    const Signals& signals,
    LaunchOutput& output,
    detail::Watchdog* watchdog) {
  ElasticMachines machines(plan, store, signals, output);
  store.secret = machines.secret();
  const MemoryDirectory memory(plan.memory_directory);
  int num_restarts_left = plan.max_restarts;
  while (true) {
    ElasticMember& member = machines.begin(num_restarts_left);
    if (!member.belongs() && member.outcome()) {
      machines.finish(/*is_last=*/true);
      output.say(describe(*member.outcome()));
      output.say(
          "accelerate-cpp: the group has ended before "
          "this machine joined it\n");
      return member.outcome()->code;
    }
    const ElasticAttempt attempt = run_elastic_attempt(
        plan, store, machines, member, signals, output, watchdog);
    if (attempt.num_restarts_left == 0) return attempt.code;
    num_restarts_left = attempt.num_restarts_left - 1;
    say_that_it_starts_again(plan, num_restarts_left, output);
  }
}

// Number of files that the launcher has open: its own, and per rank on this
// machine the output streams, their files and its log.
int num_own_descriptors(const LaunchPlan& plan) {
  constexpr int kOwn = 64, kPerRank = 8;
  return kOwn + kPerRank * plan.processes_here();
}

// Number of connections to the store: a rank has one for the world, and one for
// each of its groups.
int num_store_connections(const LaunchPlan& plan) {
  constexpr int kPerRank = 8;
  return plan.machine_rank == 0 ? kPerRank * plan.num_processes : 0;
}

// Only machine 0's launcher holds a store.
detail::StoreServerOptions store_options(
    const LaunchPlan& plan,
    const std::string& secret,
    const LaunchOutput& output) {
  detail::StoreServerOptions options;
  options.is_open = plan.num_machines > 1;
  options.secret = secret;
  options.num_machines = plan.num_machines;
  options.is_secret_shared = !plan.given_secret.empty();
  options.num_spare_descriptors = num_own_descriptors(plan);
  if (!plan.is_quiet) {
    options.report = [&output](const std::string& line) {
      output.say(detail::format("accelerate-cpp: {}\n", line));
    };
  }
  return options;
}

constexpr rlim_t kUsualLimit = 1024;

// Raises the limit of open files to what the launcher needs. Throws ConfigError
// if that is not possible: ranks would wait for connections that the store
// cannot accept.
void require_descriptors(const LaunchPlan& plan) {
  const auto needed = static_cast<rlim_t>(
      num_own_descriptors(plan) + num_store_connections(plan));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
    return;
  const rlim_t before = std::exchange(
      limit.rlim_cur, std::min(limit.rlim_max, std::max(needed, kUsualLimit)));
  if (limit.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0)
    return;
  throw ConfigError(detail::format(
      "[launch] the launcher needs about {} open files for {} ranks, but the "
      "limit is {}; raise it (ulimit -n)",
      needed,
      plan.machine_rank == 0 ? plan.num_processes : plan.processes_here(),
      before));
}

}  // namespace

int run_ranks(const LaunchPlan& plan) {
  if (plan.port) require_descriptors(plan);
  const Signals signals;
  std::optional<detail::Watchdog> watchdog;
  const bool is_isolated = plan.processes_here() > 1 || plan.num_machines > 1 ||
      plan.max_restarts > 0 || plan.log_dir;
  if (is_isolated) watchdog.emplace();
  LaunchOutput output(signals);
  std::optional<detail::StoreServer> store;
  StorePlace place{plan.port.value_or(0), {}};
  if (plan.port && plan.machine_rank == 0) {
    place.secret =
        plan.given_secret.empty() ? detail::random_token() : plan.given_secret;
    store.emplace(
        plan.address, *plan.port, store_options(plan, place.secret, output));
    place.port = store->port();
  }
  print_processors(plan, output);
  try {
    const auto run =
        plan.has_elastic_machines() ? run_elastic_attempts : run_attempts;
    return run(plan, place, signals, output, watchdog ? &*watchdog : nullptr);
  } catch (const Stopped& stopped) {
    return 128 + stopped.signal;
  }
}

}  // namespace accelerate::cli
