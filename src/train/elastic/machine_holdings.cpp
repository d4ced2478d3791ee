#include "train/elastic/machine_holdings.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <system_error>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "train/elastic/memory_states.h"
#include "train/elastic/part_place.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr const char* kParts = "parts";
constexpr const char* kCopies = "copies";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const MemoryState& state : MemoryStates(directory).list())
    names.push_back(state.path.filename().string());
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

MachineHoldings::MachineHoldings(const World& world, const fs::path& memory)
    : world_(world), memory_(memory) {
  const int first = world.rank() - world.local_rank();
  std::set<int> firsts;
  for (const std::string& each :
       world.group().all_gather_bytes(std::to_string(first)))
    firsts.insert(static_cast<int>(parse_int(each).value_or(0)));
  firsts_.assign(firsts.begin(), firsts.end());
  const auto machine = static_cast<std::size_t>(
      std::ranges::find(firsts_, first) - firsts_.begin());
  // States of other groups of machines are left alone.
  directory_ =
      memory_ / part_directory(machine, shape_of(firsts_, world.size()));
}

void MachineHoldings::make_directories() {
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

fs::path MachineHoldings::parts_directory() const {
  return directory_ / kParts;
}

void MachineHoldings::survey() {
  std::string text;
  if (is_first()) {
    for (const char* kind : {kParts, kCopies}) {
      MemoryStates(directory_ / kind).tidy(/*parts=*/true);
      for (const std::string& name : names_in(directory_ / kind))
        text += format("{} {}\n", kind, name);
    }
  }
  const auto all = world_.group().all_gather_bytes(text);
  holdings_.clear();
  for (const int first : firsts_) {
    Holding& holding = holdings_.emplace_back();
    for (const std::string& line :
         split(all[static_cast<std::size_t>(first)], '\n')) {
      const std::size_t space = line.find(' ');
      if (space == std::string::npos) continue;
      auto& names =
          line.substr(0, space) == kParts ? holding.parts : holding.copies;
      names.push_back(line.substr(space + 1));
    }
  }
}

std::vector<std::string> MachineHoldings::names() const {
  std::vector<std::string> all;
  for (const Holding& holding : holdings_) {
    for (const auto* names : {&holding.parts, &holding.copies})
      all.insert(all.end(), names->begin(), names->end());
  }
  return all;
}

bool MachineHoldings::has_part(std::size_t machine, const std::string& name)
    const {
  return contains(holdings_[machine].parts, name);
}

bool MachineHoldings::has_copy(std::size_t machine, const std::string& name)
    const {
  return contains(holdings_[holder_of(machine)].copies, name);
}

std::vector<std::string> MachineHoldings::lost_parts(
    const std::string& name) const {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < num_machines(); ++i) {
    if (!has_part(i, name) && !has_copy(i, name))
      missing.push_back(std::to_string(i));
  }
  return missing;
}

std::vector<DirectoryMove> MachineHoldings::copies_of(
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

void MachineHoldings::move(
    const std::vector<DirectoryMove>& moves,
    const std::string& what) const {
  std::string problem;
  if (is_first() && !moves.empty())
    problem = move_directories(*between_, moves);
  for (const std::string& each : world_.group().all_gather_bytes(problem)) {
    if (each.empty()) continue;
    throw CheckpointError(
        format("[checkpoint] {} failed between two machines: {}", what, each));
  }
}

std::vector<std::string> MachineHoldings::fetch_parts(
    const std::string& name) const {
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
  return fetched;
}

void MachineHoldings::copy_missing(const std::string& name) const {
  std::vector<std::size_t> machines;
  for (std::size_t i = 0; !name.empty() && i < num_machines(); ++i) {
    if (!has_copy(i, name)) machines.push_back(i);
  }
  move(copies_of(name, machines), "the copy of a state in memory");
}

std::string MachineHoldings::copy_all(const std::string& name) const {
  std::vector<std::size_t> machines(num_machines());
  std::iota(machines.begin(), machines.end(), std::size_t{0});
  return move_directories(*between_, copies_of(name, machines));
}

void MachineHoldings::remove(const std::string& name) const {
  if (!is_first()) return;
  for (const char* kind : {kParts, kCopies}) {
    std::error_code ignored;
    fs::remove_all(directory_ / kind / name, ignored);
  }
}

void MachineHoldings::remove_others(const std::string& name) const {
  if (!is_first()) return;
  for (const char* kind : {kParts, kCopies}) {
    for (const std::string& other : names_in(directory_ / kind)) {
      if (other == name) continue;
      std::error_code ignored;
      fs::remove_all(directory_ / kind / other, ignored);
    }
  }
}

}  // namespace accelerate::detail
