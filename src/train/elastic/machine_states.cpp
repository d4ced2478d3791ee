#include "train/elastic/machine_states.h"

#include <chrono>
#include <map>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/run/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "train/elastic/part_place.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNotKept =
    "a state could not be kept in memory, and the one before it stays:";

}  // namespace

MachineStates::MachineStates(
    const World& world,
    const fs::path& memory,
    bool may_change)
    : world_(world),
      memory_(memory),
      holdings_(world, memory),
      may_change_(may_change) {}

MachineStates::~MachineStates() {
  if (kept_.copier.joinable()) kept_.copier.join();
}

void MachineStates::make_directories() {
  holdings_.make_directories();
  if (may_change_) whole_.emplace(world_, memory_, holdings_.between());
}

std::vector<MemoryState> MachineStates::survey() {
  holdings_.survey();
  std::map<std::int64_t, std::string> seen;
  std::set<std::string> elsewhere;
  if (whole_) elsewhere = whole_->survey();
  for (const std::string& name : elsewhere)
    seen.emplace(number_of(name).value_or(0), name);
  for (const std::string& name : holdings_.names())
    seen.emplace(number_of(name).value_or(0), name);
  next_number_ = seen.empty() ? 0 : seen.rbegin()->first + 1;
  lost_.clear();
  std::vector<MemoryState> states;
  for (auto each = seen.rbegin(); each != seen.rend(); ++each) {
    const auto& [number, name] = *each;
    const std::vector<std::string> missing = holdings_.lost_parts(name);
    if (missing.empty() || elsewhere.contains(name)) {
      const auto next = MemoryStates::next_checkpoint_of(name);
      states.push_back({name, number, next.value_or(0)});
      continue;
    }
    if (lost_.empty() && states.empty()) {
      lost_ = format(
          "state {} in memory cannot be used: no machine holds machine {}'s "
          "part of it",
          number,
          join(missing, ", "));
    }
    holdings_.remove(name);
  }
  return states;
}

void MachineStates::load(
    const Accelerator& accelerator,
    const std::string& name,
    const LoadStateOptions& options) {
  CheckpointState& checkpoints =
      *AcceleratorAccess::session(accelerator).services.checkpoints;
  const WholeStateScope scope(checkpoints);
  loaded_whole_ = whole_ && !holdings_.lost_parts(name).empty();
  if (loaded_whole_) {
    whole_->make(name);
    const MachinePartScope part(checkpoints, whole_->directory());
    accelerator.load_state(name, options);
    loaded_ = name;
    world_.logger().log_once_per_world(
        LogLevel::info,
        "train",
        format(
            "resuming from state {} in memory, which other machines have kept",
            number_of(name).value_or(0)));
    return;
  }
  const std::vector<std::string> fetched = holdings_.fetch_parts(name);
  {
    const MachinePartScope part(checkpoints, holdings_.parts_directory());
    accelerator.load_state(name, options);
  }
  loaded_ = name;
  if (fetched.empty()) return;
  world_.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format(
          "resuming from state {} in memory; its part came back to {}",
          number_of(name).value_or(0),
          join(fetched, ", to ")));
}

void MachineStates::settle() {
  keep_only(loaded_);
  // All machines have the whole state.
  if (loaded_whole_) return;
  try {
    holdings_.copy_missing(loaded_);
  } catch (const CheckpointError& error) {
    world_.logger().log_once_per_world(
        LogLevel::warning,
        "train",
        format("the state in memory has no copy: {}", error.what()));
  }
}

bool MachineStates::begin(
    const Accelerator& accelerator,
    const std::string& name,
    WhenBusy when_busy) {
  if (kept_.phase != Phase::idle) return false;
  CheckpointState& checkpoints =
      *AcceleratorAccess::session(accelerator).services.checkpoints;
  const WholeStateScope whole(checkpoints);
  const MachinePartScope scope(checkpoints, holdings_.parts_directory());
  try {
    kept_.ticket = accelerator.save_state(
        name, {.asynchronous = true, .when_busy = when_busy});
  } catch (const CheckpointError& error) {
    // All ranks get the same error.
    world_.logger().log_once_per_world(
        LogLevel::warning, "train", format("{} {}", kNotKept, error.what()));
    return false;
  }
  if (kept_.ticket->was_skipped()) return false;
  kept_.name = name;
  kept_.outcome.reset();
  kept_.phase = Phase::saving;
  return true;
}

MachineStates::Progress MachineStates::progress() {
  if (kept_.phase == Phase::idle) return done;
  if (kept_.outcome) return *kept_.outcome;
  if (kept_.phase == Phase::saving) {
    if (!kept_.ticket->is_done()) return busy;
    try {
      kept_.ticket->wait();
      kept_.outcome = done;
    } catch (const CheckpointError& error) {
      kept_.problem = error.what();
      kept_.outcome = failed;
    }
  } else {
    if (holdings_.is_first() && !kept_.has_copied) return busy;
    if (kept_.copier.joinable()) kept_.copier.join();
    if (kept_.error) std::rethrow_exception(std::exchange(kept_.error, {}));
    kept_.outcome = kept_.problem.empty() ? done : failed;
  }
  if (kept_.outcome == failed && holdings_.is_first()) {
    world_.logger().log(
        LogLevel::warning,
        "train",
        format("{} {}", kNotKept, std::exchange(kept_.problem, {})));
  }
  return *kept_.outcome;
}

void MachineStates::advance(Progress agreed) {
  if (kept_.phase == Phase::idle || agreed == busy) return;
  kept_.outcome.reset();
  if (agreed == failed) {
    holdings_.remove(kept_.name);
    kept_.phase = Phase::idle;
  } else if (kept_.phase == Phase::saving) {
    kept_.phase = Phase::copying;
    if (holdings_.is_first()) copy_in_background();
  } else {
    loaded_whole_ = false;
    keep_only(kept_.name);
    kept_.phase = Phase::idle;
  }
}

// Waits until all ranks are done with the phase, and returns the outcome.
MachineStates::Progress MachineStates::wait_for_phase() {
  constexpr std::chrono::milliseconds kPause{2};
  while (true) {
    const at::Tensor most =
        at::full({1}, std::int64_t{progress()}, at::TensorOptions(at::kLong));
    world_.group().all_reduce(most, ReduceOp::max);
    const auto agreed = static_cast<Progress>(most.item<std::int64_t>());
    if (agreed != busy) return agreed;
    std::this_thread::sleep_for(kPause);
  }
}

void MachineStates::keep_whole(
    const Accelerator& accelerator,
    const std::string& name) {
  while (kept_.phase != Phase::idle) advance(wait_for_phase());
  if (!begin(accelerator, name, WhenBusy::wait))
    throw CheckpointError(format("[checkpoint] {} was not saved", name));
  const Progress agreed = wait_for_phase();
  kept_.outcome.reset();
  kept_.phase = Phase::idle;
  if (agreed == failed) {
    holdings_.remove(kept_.name);
    throw CheckpointError(format("[checkpoint] {} was not saved", name));
  }
  whole_->make(name);
}

void MachineStates::copy_in_background() {
  kept_.has_copied = false;
  kept_.copier = std::thread([this, name = kept_.name] {
    try {
      kept_.problem = holdings_.copy_all(name);
    } catch (...) {
      kept_.error = std::current_exception();
    }
    kept_.has_copied = true;
  });
}

void MachineStates::keep_only(const std::string& name) {
  holdings_.remove_others(name);
  if (whole_ && holdings_.is_first())
    whole_->remove_others(loaded_whole_ ? name : "", holdings_.directory());
}

}  // namespace accelerate::detail
