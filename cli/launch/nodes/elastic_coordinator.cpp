#include "cli/launch/nodes/elastic_coordinator.h"

#include <algorithm>
#include <utility>

#include "base/text/text.h"
#include "launch/store_service.h"

namespace accelerate::cli {

namespace {

// How long a group that is large enough waits for missing machines.
constexpr std::chrono::seconds kTimeForOthers{10};

}  // namespace

std::string elastic_key(int attempt, const char* what) {
  return detail::format("accelerate-cpp/elastic/{}/{}", attempt, what);
}

std::string report_key(int attempt, int machine) {
  return detail::format(
      "accelerate-cpp/elastic/{}/report/{}", attempt, machine);
}

ElasticCoordinator::ElasticCoordinator(
    const LaunchPlan& plan,
    int attempt,
    int num_restarts_left)
    : plan_(plan),
      attempt_(attempt),
      num_restarts_left_(num_restarts_left),
      heartbeats_(plan.num_machines),
      launchers_(static_cast<std::size_t>(plan.num_machines)),
      reports_(launchers_.size()) {}

void ElasticCoordinator::keep(StoreClient& client) {
  std::vector<int> gone;
  for (int machine = 0; machine < plan_.num_machines; ++machine)
    read(client, machine, gone);
  if (!keeper_) begin();
  if (!keeper_) return;
  // Reports of a launcher that has since left still count.
  keeper_->keep();
  for (const int machine : gone) keeper_->lose(machine);
  if (!gone.empty()) keeper_->keep();
  write(client);
}

std::int64_t ElasticCoordinator::num_machines() const {
  return std::ranges::count_if(
      launchers_, [](std::int64_t launcher) { return launcher > 0; });
}

void ElasticCoordinator::read(
    StoreClient& client,
    int machine,
    std::vector<int>& gone) {
  const auto i = static_cast<std::size_t>(machine);
  const bool is_gone = machine > 0 &&
      (client.get(detail::connection_key(machine)) != "1" ||
       heartbeats_.is_silent(client, machine));
  std::string text = client.get(report_key(attempt_, machine));
  if (is_gone) {
    gone.push_back(machine);
    if (std::exchange(launchers_[i], 0) > 0) reports_[i].clear();
  }
  if (text.empty() || (text == reports_[i] && !is_gone)) return;
  MachineReport report = parse_report(text);
  // A pending report may be the next launcher's; it is read again later.
  if (is_gone && !(keeper_ && keeper_->belongs(machine, report.launcher)))
    return;
  reports_[i] = std::move(text);
  if (!keeper_) {
    launchers_[i] = report.launcher;
  } else {
    keeper_->take(machine, std::move(report));
  }
}

// Begins once all machines are there, or enough are and no more come.
void ElasticCoordinator::begin() {
  const std::int64_t count = num_machines();
  if (count != num_before_) {
    num_before_ = count;
    last_change_ = Clock::now();
  }
  if (count * plan_.processes_here() < plan_.fewest_processes) return;
  if (count < plan_.num_machines &&
      Clock::now() - last_change_ < kTimeForOthers)
    return;
  keeper_.emplace(
      ElasticKeeper::Options{
          .num_machines = plan_.num_machines,
          .seats_per_machine = plan_.processes_here(),
          .fewest_ranks = plan_.fewest_processes,
          .num_restarts_left = num_restarts_left_},
      launchers_);
  for (int machine = 0; machine < plan_.num_machines; ++machine) {
    const auto i = static_cast<std::size_t>(machine);
    if (launchers_[i] > 0) keeper_->take(machine, parse_report(reports_[i]));
  }
}

void ElasticCoordinator::write(StoreClient& client) {
  std::string orders = to_text(keeper_->orders());
  if (orders != written_) {
    client.set(elastic_key(attempt_, "orders"), orders);
    written_ = std::move(orders);
  }
  if (keeper_->outcome())
    client.set_once(elastic_key(attempt_, "end"), to_text(*keeper_->outcome()));
}

}  // namespace accelerate::cli
