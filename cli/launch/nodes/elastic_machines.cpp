#include "cli/launch/nodes/elastic_machines.h"

#include <optional>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/nodes/elastic_coordinator.h"
#include "cli/launch/nodes/heartbeats.h"
#include "cli/launch/nodes/join_launch.h"
#include "launch/store_service.h"

namespace accelerate::cli {

namespace {

using detail::format;
using std::chrono::milliseconds;

// Time from one exchange with machine 0 to the next.
constexpr milliseconds kExchangePause{10};

}  // namespace

/// The thread that exchanges texts with machine 0, for one attempt.
class ElasticMachines::Exchange {
 public:
  Exchange(ElasticMachines& machines, int num_restarts_left)
      : machines_(machines), member_(*machines.member_) {
    if (machines.plan_.machine_rank == 0)
      coordinator_.emplace(
          machines.plan_, machines.attempt_, num_restarts_left);
    thread_ = std::thread([this] { run(); });
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    is_active_ = false;
    thread_.join();
  }

  // True once the newest report is in the store, or the exchange has ended.
  [[nodiscard]] bool is_settled() const {
    return has_ended_ || num_written_ >= member_.num_reports();
  }
  [[nodiscard]] std::int64_t num_machines() const { return num_machines_; }

 private:
  void run() {
    try {
      StoreClient client(machines_.address_, machines_.port_, kTimeToLeave);
      client.show_secret(machines_.secret_);
      while (is_active_ && !member_.outcome()) {
        pass(client);
        std::this_thread::sleep_for(kExchangePause);
      }
    } catch (const Error& error) {
      member_.hear_outcome(
          {.code = 1,
           .reason = format(
               "{}; machine 0, which keeps the store, is gone, and the group "
               "cannot continue without it. Start the launchers of all "
               "machines again: the program resumes from its newest checkpoint",
               error.what())});
    }
    has_ended_ = true;
  }

  void pass(StoreClient& client) {
    const int machine = machines_.plan_.machine_rank;
    const int attempt = machines_.attempt_;
    const auto now = Clock::now();
    if (now >= next_heartbeat_) {
      next_heartbeat_ = now + kHeartbeatInterval;
      client.set(
          heartbeat_key(machine),
          format("{}.{}", machines_.launcher_, ++num_heartbeats_));
    }
    const std::int64_t number = member_.num_reports();
    if (number > num_written_) {
      client.set(report_key(attempt, machine), member_.report());
      // The answer arrives only after the report was stored.
      (void)client.get(kAttemptKey);
      num_written_ = number;
    }
    if (coordinator_) {
      coordinator_->keep(client);
      num_machines_ = coordinator_->num_machines();
    }
    std::string orders = client.get(elastic_key(attempt, "orders"));
    if (orders != orders_) {
      member_.hear(parse_orders(orders));
      orders_ = std::move(orders);
    }
    const std::string end = client.get(elastic_key(attempt, "end"));
    if (!end.empty()) member_.hear_outcome(parse_outcome(end));
  }

  ElasticMachines& machines_;
  ElasticMember& member_;
  std::optional<ElasticCoordinator> coordinator_;
  Clock::time_point next_heartbeat_ = Clock::now();
  std::int64_t num_heartbeats_ = 0;
  std::string orders_;
  std::atomic<std::int64_t> num_written_{0};
  std::atomic<std::int64_t> num_machines_{0};
  std::atomic<bool> is_active_{true};
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

ElasticMachines::ElasticMachines(
    const LaunchPlan& plan,
    const StorePlace& store,
    const Signals& signals,
    const LaunchOutput& output)
    : plan_(plan),
      address_(plan.machine_rank == 0 ? "localhost" : plan.address),
      port_(store.port),
      secret_(store.secret),
      signals_(signals),
      output_(output),
      client_(
          address_,
          port_,
          kStartTimeout,
          while_connecting(signals, output, format("{}:{}", address_, port_))) {
  if (plan.machine_rank == 0) {
    client_.show_secret(secret_);
  } else {
    secret_ = join_launch(client_, plan, /*waits=*/true, signals, output);
  }
  launcher_ =
      client_.add(format("accelerate-cpp/launchers/{}", plan.machine_rank), 1);
}

ElasticMachines::~ElasticMachines() = default;

void ElasticMachines::start_exchange(int num_restarts_left) {
  exchange_.reset();
  member_ = std::make_unique<ElasticMember>(
      plan_.machine_rank, plan_.processes_here(), launcher_);
  exchange_ = std::make_unique<Exchange>(*this, num_restarts_left);
}

ElasticMember& ElasticMachines::begin(int num_restarts_left) {
  ++attempt_;
  if (plan_.machine_rank == 0)
    client_.set(kAttemptKey, std::to_string(attempt_));
  start_exchange(num_restarts_left);
  const auto start = Clock::now();
  bool is_reported = false;
  while (!member_->belongs() && !member_->outcome()) {
    signals_.heed();
    if (plan_.machine_rank != 0) {
      // The attempt in progress may be a later one.
      const auto newest = detail::parse_int(client_.get(kAttemptKey));
      if (newest && *newest > attempt_) {
        attempt_ = static_cast<int>(*newest);
        start_exchange(num_restarts_left);
      }
    } else if (Clock::now() - start > kStartTimeout) {
      throw DistributedError(format(
          "[launch] waited {} s for machines: {} of {} are there, and {} ranks "
          "are the fewest (--num_processes {}:{})",
          std::chrono::duration_cast<std::chrono::seconds>(kStartTimeout)
              .count(),
          exchange_->num_machines(),
          plan_.num_machines,
          plan_.fewest_processes,
          plan_.fewest_processes,
          plan_.num_processes));
    }
    if (!is_reported && Clock::now() - start > kTimeUntilReported) {
      is_reported = true;
      output_.say(format(
          "accelerate-cpp: waiting for {}\n",
          plan_.machine_rank == 0 ? "other machines"
                                  : "the group to admit this machine"));
    }
    std::this_thread::sleep_for(kExchangePause);
  }
  return *member_;
}

void ElasticMachines::await_end() const {
  if (plan_.machine_rank != 0) return;
  const auto deadline = Clock::now() + kTimeToLeave;
  while (!member_->outcome() && Clock::now() < deadline)
    std::this_thread::sleep_for(kExchangePause);
}

void ElasticMachines::end_for_all(int code) {
  if (plan_.machine_rank != 0) return;
  try {
    client_.set_once(
        elastic_key(attempt_, "end"),
        to_text(GroupOutcome{
            .code = code,
            .machine = 0,
            .reason = "machine 0, which was told to end,"}));
  } catch (const DistributedError&) {
    // The store ends with this process anyway.
  }
}

void ElasticMachines::finish(bool is_last) {
  const auto deadline = Clock::now() + kTimeToLeave;
  while (!exchange_->is_settled() && Clock::now() < deadline)
    std::this_thread::sleep_for(kExchangePause);
  if (!is_last || plan_.machine_rank != 0) return;
  // The store must outlive the requests of the other machines.
  for (int machine = 1; machine < plan_.num_machines; ++machine) {
    while (client_.get(detail::connection_key(machine)) == "1" &&
           Clock::now() < deadline)
      std::this_thread::sleep_for(kExchangePause);
  }
}

}  // namespace accelerate::cli
