#include "cli/launch/nodes/machines.h"

#include <cstdint>
#include <optional>

#include <sys/eventfd.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/nodes/heartbeats.h"
#include "cli/launch/nodes/join_launch.h"

namespace accelerate::cli {

namespace {

using detail::format;
using std::chrono::milliseconds;

constexpr milliseconds kPause{20};
constexpr const char* kAllEnded = "0";

std::string key_of(const char* what, int attempt) {
  return format("accelerate-cpp/{}/{}", what, attempt);
}

}  // namespace

Machines::Machines(
    const LaunchPlan& plan,
    const StorePlace& store,
    const Signals& signals,
    const LaunchOutput& output)
    : machine_(plan.machine_rank),
      num_machines_(plan.num_machines),
      address_(machine_ == 0 ? "localhost" : plan.address),
      port_(store.port),
      secret_(store.secret),
      signals_(signals),
      output_(output),
      client_(
          address_,
          port_,
          kStartTimeout,
          while_connecting(signals, output, format("{}:{}", address_, port_))) {
  if (machine_ == 0) {
    client_.show_secret(secret_);
    client_.set(kAttemptKey, "0");
  } else {
    take_place(plan);
  }
  stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Machines::~Machines() {
  stop_listening();
  ::close(stop_);
}

void Machines::take_place(const LaunchPlan& plan) {
  secret_ =
      join_launch(client_, plan, plan.max_restarts > 0, signals_, output_);
  num_launchers_ =
      client_.add(format("accelerate-cpp/launchers/{}", machine_), 1);
  if (!is_returning()) return;
  const std::string attempt = wait_for(kAttemptKey, kStartTimeout, "machine 0");
  first_attempt_ = static_cast<int>(detail::parse_int(attempt).value_or(0));
  if (!client_.get(key_of("begun", first_attempt_)).empty()) {
    client_.set_once(
        key_of("end", first_attempt_),
        format("1 machine {}, whose launcher was gone,", machine_));
    ++first_attempt_;
  }
  if (first_attempt_ <= plan.max_restarts) return;
  throw DistributedError(format(
      "[launch] machine {} returns, but the group has already been restarted "
      "as often as --max_restarts ({}) allows; start the launchers of all "
      "machines again",
      machine_,
      plan.max_restarts));
}

std::string Machines::wait_for(
    const std::string& key,
    Clock::duration patience,
    const std::string& what) {
  const auto start = Clock::now();
  bool is_reported = what.empty();
  while (true) {
    std::string value = client_.get(key);
    if (!value.empty()) return value;
    signals_.heed();
    const auto waited = Clock::now() - start;
    if (waited > patience) {
      throw DistributedError(format(
          "[launch] waited {} s for {}",
          std::chrono::duration_cast<std::chrono::seconds>(patience).count(),
          what.empty() ? "another machine" : what));
    }
    if (!is_reported && waited > kTimeUntilReported) {
      is_reported = true;
      output_.say(format("accelerate-cpp: waiting for {}\n", what));
    }
    std::this_thread::sleep_for(kPause);
  }
}

std::int64_t Machines::arrive(int attempt) {
  const std::string arrived = key_of("arrived", attempt);
  const std::string own = std::to_string(num_launchers_);
  const std::string there =
      client_.set_once(format("{}/{}", arrived, machine_), own);
  // An earlier launcher of this machine may have been counted.
  return client_.add(arrived, there == own ? 1 : 0);
}

int Machines::begin(int attempt) {
  std::uint64_t ignored = 0;
  (void)!::read(stop_, &ignored, sizeof ignored);
  const std::string begun = key_of("begun", attempt);
  if (machine_ == 0) client_.set(kAttemptKey, std::to_string(attempt));
  const auto arrived = arrive(attempt);
  if (arrived == num_machines_) client_.set(begun, "1");
  wait_for(
      begun,
      kStartTimeout,
      format("{} of {} machines", num_machines_ - arrived, num_machines_));
  listens_ = true;
  thread_ = std::thread([this, attempt] { listen(attempt); });
  return stop_;
}

// Sends this machine's heartbeats until the attempt ends. Machine 0 also checks
// the other machines' heartbeats.
void Machines::listen(int attempt) {
  try {
    StoreClient client(address_, port_, kTimeToLeave);
    client.show_secret(secret_);
    Heartbeats heartbeats(num_machines_);
    const std::string end = key_of("end", attempt);
    auto next_heartbeat = Clock::now();
    for (std::int64_t count = 0; listens_;) {
      const std::string outcome = client.get(end);
      if (outcome == kAllEnded) return;
      if (!outcome.empty()) break;
      if (Clock::now() >= next_heartbeat) {
        next_heartbeat = Clock::now() + kHeartbeatInterval;
        client.set(heartbeat_key(machine_), format("{}.{}", attempt, ++count));
        const auto silent =
            machine_ == 0 ? heartbeats.silent(client) : std::nullopt;
        if (silent) {
          client.set_once(
              end, format("1 machine {}, whose launcher is gone,", *silent));
        }
      }
      std::this_thread::sleep_for(kPause);
    }
    if (!listens_) return;
  } catch (const DistributedError&) {
    // Machine 0 is gone.
  }
  const std::uint64_t one = 1;
  (void)!::write(stop_, &one, sizeof one);
}

void Machines::stop_listening() {
  listens_ = false;
  if (thread_.joinable()) thread_.join();
}

void Machines::require_store() const {
  if (store_loss_.empty()) return;
  throw DistributedError(format(
      "{}; machine 0, which keeps the store, is gone, and the group cannot be "
      "started again without it. Start the launchers of all machines again: "
      "the program resumes from its newest checkpoint",
      store_loss_));
}

Machines::End Machines::finish(int attempt, int code, bool may_restart) {
  const std::string end = key_of("end", attempt);
  const std::string own = format("machine {}", machine_);
  End result{code, {}};
  try {
    if (code != 0) {
      client_.set_once(end, format("{} {}", code, own));
    } else if (client_.add(key_of("ended", attempt), 1) == num_machines_) {
      client_.set_once(end, kAllEnded);
    }
    const std::string outcome = wait_for(end, std::chrono::hours(24 * 365), "");
    stop_listening();
    if (outcome != kAllEnded) {
      const std::size_t space = outcome.find(' ');
      const auto failed = detail::parse_int(outcome.substr(0, space));
      result.code = static_cast<int>(failed.value_or(1));
      const std::string culprit = outcome.substr(space + 1);
      if (culprit != own) {
        result.reason = format(
            "accelerate-cpp: ranks on {} failed with exit code {}; those here "
            "were ended\n",
            culprit,
            result.code);
      }
    }
    // The store must outlive the requests of the other machines.
    const std::string left = key_of("left", attempt);
    if (client_.add(left, 1) == num_machines_) client_.set(left + "/all", "1");
    const bool goes_on = may_restart && result.code != 0;
    if (machine_ == 0 && !goes_on) wait_for(left + "/all", kTimeToLeave, "");
  } catch (const DistributedError& error) {
    if (machine_ != 0) store_loss_ = error.what();
    // A node that did not leave in time has already been reported.
    if (!result.reason.empty() || code != 0) return result;
    if (machine_ == 0) return result;
    result.code = 1;
    result.reason = format("accelerate-cpp: {}\n", error.what());
  }
  return result;
}

}  // namespace accelerate::cli
