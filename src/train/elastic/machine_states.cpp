#include "train/elastic/machine_states.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "train/elastic/checkpoints_of.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr const char* kParts = "parts";
constexpr const char* kCopies = "copies";
constexpr const char* kNotKept =
    "a state is not kept in memory, and the one before it stays:";

// "2x4": two machines of four ranks; "1x3,2x1": one of three and two of one.
std::string shape_of(const std::vector<int>& firsts, int num_ranks) {
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    const auto size_of = [&](std::size_t machine) {
      const int end =
          machine + 1 < firsts.size() ? firsts[machine + 1] : num_ranks;
      return end - firsts[machine];
    };
    ++count;
    if (i + 1 < firsts.size() && size_of(i + 1) == size_of(i)) continue;
    text += format("{}{}x{}", text.empty() ? "" : ",", count, size_of(i));
    count = 0;
  }
  return text;
}

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

MachineStates::MachineStates(const World& world, const fs::path& memory)
    : world_(world), memory_(memory) {
  const int first = world.rank() - world.local_rank();
  std::set<int> firsts;
  for (const std::string& each :
       world.group().all_gather_bytes(std::to_string(first)))
    firsts.insert(static_cast<int>(parse_int(each).value_or(0)));
  firsts_.assign(firsts.begin(), firsts.end());
  machine_ = static_cast<std::size_t>(
      std::find(firsts_.begin(), firsts_.end(), first) - firsts_.begin());
  // States of other groups of machines are left alone.
  directory_ = memory_ /
      format("machine_{}_of_{}", machine_, shape_of(firsts_, world.size()));
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

std::vector<MemoryState> MachineStates::survey() {
  if (is_first()) {
    for (const char* kind : {kParts, kCopies})
      MemoryStates(directory_ / kind).tidy(/*parts=*/true);
  }
  holdings_ = exchange_holdings();
  std::map<std::int64_t, std::string> seen;
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
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < num_machines(); ++i) {
      if (!has_part(i, name) && !has_copy(i, name))
        missing.push_back(std::to_string(i));
    }
    if (missing.empty()) {
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
    Checkpoints& checkpoints = OpenedAccelerator::checkpoints_of(accelerator);
    const WholeStateScope whole(checkpoints);
    const MachinePartScope scope(checkpoints, directory_ / kParts);
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
  std::vector<std::size_t> machines;
  for (std::size_t i = 0; !loaded_.empty() && i < num_machines(); ++i) {
    if (!has_copy(i, loaded_)) machines.push_back(i);
  }
  if (is_first()) keep_only(loaded_);
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
    const std::string& name) {
  if (phase_ != Phase::idle) return false;
  Checkpoints& checkpoints = OpenedAccelerator::checkpoints_of(accelerator);
  const WholeStateScope whole(checkpoints);
  const MachinePartScope scope(checkpoints, directory_ / kParts);
  try {
    ticket_ = accelerator.save_state(
        name, {.asynchronous = true, .when_busy = WhenBusy::skip});
  } catch (const CheckpointError& error) {
    // All ranks are told the same.
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
    if (is_first()) keep_only(kept_);
    phase_ = Phase::idle;
  }
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
}

void MachineStates::forget(const std::string& name) const {
  for (const char* kind : {kParts, kCopies}) {
    std::error_code ignored;
    fs::remove_all(directory_ / kind / name, ignored);
  }
}

}  // namespace accelerate::detail
