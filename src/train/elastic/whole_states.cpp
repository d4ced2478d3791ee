#include "train/elastic/whole_states.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/files/files.h"
#include "base/text/text.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"
#include "format/checkpoint/manifest.h"
#include "train/elastic/directory_moves.h"
#include "train/elastic/memory_states.h"
#include "train/elastic/part_place.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWhole = "whole";
constexpr const char* kFetched = "fetched";

std::vector<std::string> entries_of(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// A directory on one machine that holds a state or a part of it.
struct StateSource {
  /// Relative to the machine's memory.
  std::string directory;
  /// Unset for a whole state.
  std::optional<PartPlace> place;
  Manifest manifest;

  [[nodiscard]] bool has(const std::string& file, const FileRecord& record)
      const {
    const auto found = manifest.files.find(file);
    return found != manifest.files.end() && found->second == record;
  }
};

// The parts that a machine keeps in memory, by directory.
std::map<std::string, std::optional<PartPlace>> places_in(
    const fs::path& memory) {
  std::map<std::string, std::optional<PartPlace>> places{
      {kWhole, std::nullopt}};
  for (const std::string& each : entries_of(memory)) {
    const auto place = parse_part_directory(each);
    if (!place) continue;
    places.emplace(format("{}/parts", each), place);
    PartPlace before = *place;
    before.part = (place->part + place->num_parts - 1) % place->num_parts;
    places.emplace(format("{}/copies", each), before);
  }
  return places;
}

// All machines' sources of a state, in machine order. Unreadable ones are left
// out.
std::vector<std::vector<StateSource>> exchange_sources(
    const Group& between,
    const fs::path& memory,
    const std::string& name) {
  Json own = Json::array();
  for (const auto& [parent, place] : places_in(memory)) {
    const fs::path directory = fs::path(parent) / name;
    try {
      own.push_back(
          {directory.string(),
           place ? place->shape : "",
           place ? place->part : 0,
           place ? place->num_parts : 1,
           fragment_text(read_manifest(memory / directory))});
    } catch (const std::exception&) {
      continue;
    }
  }
  std::vector<std::vector<StateSource>> sources;
  for (const std::string& text : between.all_gather_bytes(own.dump())) {
    auto& theirs = sources.emplace_back();
    for (const Json& each : Json::parse(text)) {
      StateSource source{
          each.at(0),
          std::nullopt,
          parse_fragment(each.at(4).get<std::string>())};
      if (!each.at(1).get<std::string>().empty())
        source.place = PartPlace{each.at(1), each.at(2), each.at(3)};
      theirs.push_back(std::move(source));
    }
  }
  return sources;
}

// The manifest of the whole state: from a machine that has it, or merged from
// machines that have all its parts together.
Manifest merge_manifests(const std::vector<std::vector<StateSource>>& sources) {
  std::map<std::string, std::map<std::size_t, const StateSource*>> by_shape;
  for (const auto& theirs : sources) {
    for (const StateSource& source : theirs) {
      if (!source.place) return source.manifest;
      by_shape[source.place->shape].try_emplace(source.place->part, &source);
    }
  }
  for (const auto& [shape, parts] : by_shape) {
    if (parts.size() != parts.begin()->second->place->num_parts) continue;
    Manifest whole;
    for (const auto& [part, source] : parts) {
      if (part == 0) {
        whole = source->manifest;
        whole.is_part = true;
      } else {
        merge_into(whole, source->manifest);
      }
    }
    whole.is_part = false;
    return whole;
  }
  throw Error("a part of it is lost");
}

/// The files to move, and where this machine finds each of them afterwards.
struct Journey {
  /// Each round has at most one move from one machine to another.
  std::vector<std::vector<DirectoryMove>> rounds;
  std::map<std::string, fs::path> places;
};

Journey plan_journey(
    const Manifest& whole,
    const std::vector<std::vector<StateSource>>& sources,
    std::size_t self,
    const fs::path& memory) {
  using Way = std::pair<std::size_t, std::size_t>;
  std::vector<std::map<Way, DirectoryMove>> rounds;
  Journey journey;
  for (const auto& file : whole.files) {
    // The index of a machine's source that has the file.
    const auto source_on =
        [&](std::size_t machine) -> std::optional<std::size_t> {
      for (std::size_t i = 0; i < sources[machine].size(); ++i) {
        if (sources[machine][i].has(file.first, file.second)) return i;
      }
      return std::nullopt;
    };
    std::size_t from = 0;
    while (!source_on(from)) ++from;
    const std::size_t round = *source_on(from);
    rounds.resize(std::max(rounds.size(), round + 1));
    const fs::path target = memory / kFetched / format("{}_{}", from, round);
    for (std::size_t to = 0; to < sources.size(); ++to) {
      const auto here = source_on(to);
      if (to == self) {
        journey.places[file.first] =
            (here ? memory / sources[to][*here].directory : target) /
            file.first;
      }
      if (here) continue;
      DirectoryMove& move = rounds[round]
                                .try_emplace(
                                    Way(from, to),
                                    DirectoryMove{
                                        static_cast<int>(from),
                                        static_cast<int>(to),
                                        memory / sources[from][round].directory,
                                        target,
                                        std::vector<std::string>()})
                                .first->second;
      move.files->push_back(file.first);
    }
  }
  for (const auto& round : rounds) {
    auto& moves = journey.rounds.emplace_back();
    for (const auto& [way, move] : round) moves.push_back(move);
  }
  return journey;
}

void link_files(
    const std::map<std::string, fs::path>& places,
    const fs::path& target,
    const Manifest& whole) {
  PendingCheckpoint pending(make_file_system(), target);
  for (const auto& [file, place] : places) {
    const fs::path link = pending.directory() / file;
    fs::create_directories(link.parent_path());
    fs::create_hard_link(place, link);
  }
  pending.commit(whole);
}

}  // namespace

WholeStates::WholeStates(
    World world,
    fs::path memory,
    std::optional<Group> between)
    : world_(std::move(world)),
      memory_(std::move(memory)),
      between_(std::move(between)) {}

fs::path WholeStates::directory() const { return memory_ / kWhole; }

std::set<std::string> WholeStates::survey() const {
  Json held = Json::array();
  if (between_) {
    for (const auto& [parent, place] : places_in(memory_)) {
      for (const MemoryState& state : MemoryStates(memory_ / parent).list()) {
        held.push_back(
            {state.path.filename().string(),
             place ? place->shape : "",
             place ? place->part : 0,
             place ? place->num_parts : 1});
      }
    }
  }
  struct Found {
    std::set<std::size_t> parts;
    std::size_t num_parts = 0;
  };
  std::map<std::pair<std::string, std::string>, Found> by_shape;
  for (const std::string& text : world_.group().all_gather_bytes(held.dump())) {
    for (const Json& each : Json::parse(text)) {
      Found& found =
          by_shape[std::pair<std::string, std::string>(each.at(0), each.at(1))];
      found.parts.insert(each.at(2).get<std::size_t>());
      found.num_parts = each.at(3);
    }
  }
  std::set<std::string> names;
  for (const auto& [key, found] : by_shape) {
    if (found.parts.size() == found.num_parts) names.insert(key.first);
  }
  return names;
}

void WholeStates::make_on_first_rank(const std::string& name) const {
  const auto sources = exchange_sources(*between_, memory_, name);
  const auto self = static_cast<std::size_t>(between_->rank());
  const Manifest whole = merge_manifests(sources);
  const Journey journey = plan_journey(whole, sources, self, memory_);
  std::error_code ignored;
  // Leftovers of earlier failures must not stay. Each machine performs all of
  // the following, whatever fails.
  fs::remove_all(memory_ / kFetched, ignored);
  fs::create_directory(memory_ / kFetched, ignored);
  fs::create_directory(directory(), ignored);
  std::string problem;
  for (const auto& moves : journey.rounds) {
    const std::string found = move_directories(*between_, moves);
    if (problem.empty()) problem = found;
  }
  const auto& own = sources[self];
  const bool has_whole = std::ranges::any_of(
      own, [](const StateSource& source) { return !source.place; });
  if (problem.empty() && !has_whole)
    link_files(journey.places, directory() / name, whole);
  fs::remove_all(memory_ / kFetched, ignored);
  if (!problem.empty()) throw Error(problem);
}

void WholeStates::make(const std::string& name) const {
  std::string problem;
  if (between_) {
    try {
      make_on_first_rank(name);
    } catch (const DistributedError&) {
      throw;
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  for (const std::string& each : world_.group().all_gather_bytes(problem)) {
    if (each.empty()) continue;
    throw CheckpointError(format(
        "[checkpoint] a state in memory cannot be put together on all "
        "machines: {}",
        each));
  }
}

void WholeStates::remove_others(const std::string& name, const fs::path& kept)
    const {
  if (!between_) return;
  std::error_code ignored;
  for (const std::string& each : entries_of(directory())) {
    if (each != name) fs::remove_all(directory() / each, ignored);
  }
  for (const std::string& each : entries_of(memory_)) {
    if (parse_part_directory(each) && memory_ / each != kept)
      fs::remove_all(memory_ / each, ignored);
  }
}

}  // namespace accelerate::detail
