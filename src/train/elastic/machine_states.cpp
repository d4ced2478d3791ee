#include "train/elastic/machine_states.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <system_error>
#include <thread>
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

constexpr const char* kParts = "parts";
constexpr const char* kCopies = "copies";
constexpr const char* kNotKept =
    "a state is not kept in memory, and the one before it stays:";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const MemoryState& state : MemoryStates(directory).list())
    names.push_back(state.path.filename().string());
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MachineStates::MachineStates(
    const World& world,
    const fs::path& memory,
    bool may_change)
    : world_(world), memory_(memory), may_change_(may_change) {
  const int first = world.rank() - world.local_rank();
  std::set<int> firsts;
  for (const std::string& each :
       world.group().all_gather_bytes(std::to_string(first)))
    firsts.insert(static_cast<int>(parse_int(each).value_or(0)));
  firsts_.assign(firsts.begin(), firsts.end());
  machine_ = static_cast<std::size_t>(
      std::find(firsts_.begin(), firsts_.end(), first) - firsts_.begin());
  // States of other groups of machines are left alone.
  directory_ =
      memory_ / part_directory(machine_, shape_of(firsts_, world.size()));
}

MachineStates::~MachineStates() {
  if (thread_.joinable()) thread_.join();
}

void MachineStates::make_directories() {
  std::string problem;
  if (is_first()) {
    try {
      for (const fs::path& each :
           {memory_, directory_, directory_ / kParts, directory_ / kCopies})
        MemoryStates(each).make_directory();
    } catch (const ConfigError& error) {
      problem = error.what();
    }
  }
  for (const std::string& each : world_.group().all_gather_bytes(problem)) {
    if (!each.empty()) throw ConfigError(each);
  }
  if (is_first()) between_ = world_.new_group(firsts_);
  if (may_change_) whole_.emplace(world_, memory_, between_);
}

std::vector<MachineStates::Holding> MachineStates::exchange_holdings() const {
  std::string text;
  if (is_first()) {
    for (const char* kind : {kParts, kCopies}) {
      for (const std::string& name : names_in(directory_ / kind))
        text += format("{} {}\n", kind, name);
    }
  }
  const auto all = world_.group().all_gather_bytes(text);
  std::vector<Holding> holdings;
  for (const int first : firsts_) {
    Holding& holding = holdings.emplace_back();
    holding.first_rank = first;
    for (const std::string& line :
         split(all[static_cast<std::size_t>(first)], '\n')) {
      const std::size_t space = line.find(' ');
      if (space == std::string::npos) continue;
      auto& names =
          line.substr(0, space) == kParts ? holding.parts : holding.copies;
      names.push_back(line.substr(space + 1));
    }
  }
  return holdings;
}

bool MachineStates::has_part(std::size_t machine, const std::string& name)
    const {
  return contains(holdings_[machine].parts, name);
}

bool MachineStates::has_copy(std::size_t machine, const std::string& name)
    const {
  return contains(holdings_[holder_of(machine)].copies, name);
}

std::vector<std::string> MachineStates::lost_parts(
    const std::string& name) const {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < num_machines(); ++i) {
    if (!has_part(i, name) && !has_copy(i, name))
      missing.push_back(std::to_string(i));
  }
  return missing;
}

std::vector<MemoryState> MachineStates::survey() {
  if (is_first()) {
    for (const char* kind : {kParts, kCopies})
      MemoryStates(directory_ / kind).tidy(/*parts=*/true);
  }
  holdings_ = exchange_holdings();
  std::map<std::int64_t, std::string> seen;
  std::set<std::string> elsewhere;
  if (whole_) elsewhere = whole_->survey();
  for (const std::string& name : elsewhere)
    seen.emplace(number_of(name).value_or(0), name);
  for (const Holding& holding : holdings_) {
    for (const auto* names : {&holding.parts, &holding.copies}) {
      for (const std::string& name : *names)
        seen.emplace(number_of(name).value_or(0), name);
    }
  }
  next_number_ = seen.empty() ? 0 : seen.rbegin()->first + 1;
  lost_.clear();
  std::vector<MemoryState> states;
  for (auto each = seen.rbegin(); each != seen.rend(); ++each) {
    const auto& [number, name] = *each;
    const std::vector<std::string> missing = lost_parts(name);
    if (missing.empty() || elsewhere.contains(name)) {
      const auto next = MemoryStates::next_checkpoint_of(name);
      states.push_back({name, number, next.value_or(0)});
      continue;
    }
    if (lost_.empty() && states.empty()) {
      lost_ = format(
          "state {} in memory cannot be used: nobody holds what machine {} had "
          "of it",
          number,
          join(missing, ", "));
    }
    if (is_first()) forget(name);
  }
  return states;
}

std::vector<DirectoryMove> MachineStates::copies_of(
    const std::string& name,
    const std::vector<std::size_t>& machines) const {
  std::vector<DirectoryMove> moves;
  // A single machine has no other to keep a copy.
  if (num_machines() == 1) return moves;
  for (const std::size_t machine : machines) {
    moves.push_back(
        {static_cast<int>(machine),
         static_cast<int>(holder_of(machine)),
         directory_ / kParts / name,
         directory_ / kCopies / name});
  }
  return moves;
}

void MachineStates::move(
    const std::vector<DirectoryMove>& moves,
    const std::string& what) {
  std::string problem;
  if (is_first() && !moves.empty())
    problem = move_directories(*between_, moves);
  for (const std::string& each : world_.group().all_gather_bytes(problem)) {
    if (each.empty()) continue;
    throw CheckpointError(
        format("[checkpoint] {} failed between two machines: {}", what, each));
  }
}

void MachineStates::load(
    const Accelerator& accelerator,
    const std::string& name,
    const LoadStateOptions& options) {
  CheckpointState& checkpoints =
      *AcceleratorAccess::session(accelerator).services.checkpoints;
  const WholeStateScope scope(checkpoints);
  loaded_whole_ = whole_ && !lost_parts(name).empty();
  if (loaded_whole_) {
    whole_->make(name);
    const MachinePartScope part(checkpoints, whole_->directory());
    accelerator.load_state(name, options);
    loaded_ = name;
    world_.logger().log_once_per_world(
        LogLevel::info,
        "train",
        format(
            "going on from state {} in memory, which other machines have kept",
            number_of(name).value_or(0)));
    return;
  }
  std::vector<DirectoryMove> moves;
  std::vector<std::string> fetched;
  for (std::size_t i = 0; i < num_machines(); ++i) {
    if (has_part(i, name)) continue;
    moves.push_back(
        {static_cast<int>(holder_of(i)),
         static_cast<int>(i),
         directory_ / kCopies / name,
         directory_ / kParts / name});
    fetched.push_back(format("machine {} from machine {}", i, holder_of(i)));
  }
  move(moves, "the way back of a state in memory");
  {
    const MachinePartScope part(checkpoints, directory_ / kParts);
    accelerator.load_state(name, options);
  }
  loaded_ = name;
  if (fetched.empty()) return;
  world_.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format(
          "going on from state {} in memory; its part came back to {}",
          number_of(name).value_or(0),
          join(fetched, ", to ")));
}

void MachineStates::settle() {
  if (is_first()) keep_only(loaded_);
  // All machines have the whole state.
  if (loaded_whole_) return;
  std::vector<std::size_t> machines;
  for (std::size_t i = 0; !loaded_.empty() && i < num_machines(); ++i) {
    if (!has_copy(i, loaded_)) machines.push_back(i);
  }
  try {
    move(copies_of(loaded_, machines), "the copy of a state in memory");
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
  if (phase_ != Phase::idle) return false;
  CheckpointState& checkpoints =
      *AcceleratorAccess::session(accelerator).services.checkpoints;
  const WholeStateScope whole(checkpoints);
  const MachinePartScope scope(checkpoints, directory_ / kParts);
  try {
    ticket_ = accelerator.save_state(
        name, {.asynchronous = true, .when_busy = when_busy});
  } catch (const CheckpointError& error) {
    // All ranks get the same error.
    world_.logger().log_once_per_world(
        LogLevel::warning, "train", format("{} {}", kNotKept, error.what()));
    return false;
  }
  if (ticket_->was_skipped()) return false;
  kept_ = name;
  outcome_.reset();
  phase_ = Phase::saving;
  return true;
}

MachineStates::Progress MachineStates::progress() {
  if (phase_ == Phase::idle) return done;
  if (outcome_) return *outcome_;
  if (phase_ == Phase::saving) {
    if (!ticket_->is_done()) return busy;
    try {
      ticket_->wait();
      outcome_ = done;
    } catch (const CheckpointError& error) {
      copy_problem_ = error.what();
      outcome_ = failed;
    }
  } else {
    if (is_first() && !has_copied_) return busy;
    if (thread_.joinable()) thread_.join();
    if (copy_error_) std::rethrow_exception(std::exchange(copy_error_, {}));
    outcome_ = copy_problem_.empty() ? done : failed;
  }
  if (outcome_ == failed && is_first()) {
    world_.logger().log(
        LogLevel::warning,
        "train",
        format("{} {}", kNotKept, std::exchange(copy_problem_, {})));
  }
  return *outcome_;
}

void MachineStates::advance(Progress agreed) {
  if (phase_ == Phase::idle || agreed == busy) return;
  outcome_.reset();
  if (agreed == failed) {
    if (is_first()) forget(kept_);
    phase_ = Phase::idle;
  } else if (phase_ == Phase::saving) {
    phase_ = Phase::copying;
    if (is_first()) copy_in_background();
  } else {
    loaded_whole_ = false;
    if (is_first()) keep_only(kept_);
    phase_ = Phase::idle;
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
  while (phase_ != Phase::idle) advance(wait_for_phase());
  if (!begin(accelerator, name, WhenBusy::wait))
    throw CheckpointError(format("[checkpoint] {} was not saved", name));
  const Progress agreed = wait_for_phase();
  outcome_.reset();
  phase_ = Phase::idle;
  if (agreed == failed) {
    if (is_first()) forget(kept_);
    throw CheckpointError(format("[checkpoint] {} was not saved", name));
  }
  whole_->make(name);
}

void MachineStates::copy_in_background() {
  has_copied_ = false;
  std::vector<std::size_t> machines;
  for (std::size_t i = 0; i < num_machines(); ++i) machines.push_back(i);
  thread_ = std::thread([this, moves = copies_of(kept_, machines)] {
    try {
      copy_problem_ = move_directories(*between_, moves);
    } catch (...) {
      copy_error_ = std::current_exception();
    }
    has_copied_ = true;
  });
}

void MachineStates::keep_only(const std::string& name) {
  for (const char* kind : {kParts, kCopies}) {
    for (const std::string& other : names_in(directory_ / kind)) {
      if (other == name) continue;
      std::error_code ignored;
      fs::remove_all(directory_ / kind / other, ignored);
    }
  }
  if (whole_) whole_->remove_others(loaded_whole_ ? name : "", directory_);
}

void MachineStates::forget(const std::string& name) const {
  for (const char* kind : {kParts, kCopies}) {
    std::error_code ignored;
    fs::remove_all(directory_ / kind / name, ignored);
  }
}

}  // namespace accelerate::detail
