#include "cli/launch/machine/processor_sets.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using detail::format;

int number_in(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = otherwise;
  return file >> number ? number : otherwise;
}

// The index at which share `index` of `num_shares` begins among `count` items.
std::size_t begin_of(std::size_t count, int index, int num_shares) {
  return count * static_cast<std::size_t>(index) /
      static_cast<std::size_t>(num_shares);
}

void require_allowed(long long number, const std::vector<int>& allowed) {
  if (std::ranges::find(allowed, number) != allowed.end()) {
    return;
  }
  throw ConfigError(format(
      "[launch] cpu_affinity names processor {}, but this process may use {}",
      number,
      format_processors(allowed)));
}

std::vector<int> parse_set(
    const std::string& text,
    const std::vector<int>& allowed) {
  std::vector<int> numbers;
  for (const std::string& word : detail::split(text, ',')) {
    const std::size_t dash = word.find('-');
    const auto first = detail::parse_int(detail::trim(word.substr(0, dash)));
    const auto last = dash == std::string::npos
        ? first
        : detail::parse_int(detail::trim(word.substr(dash + 1)));
    if (!first || !last || *first < 0 || *last < *first || *last > 65535) {
      throw ConfigError(format(
          "[launch] cpu_affinity must have processors as 0-3,8 and a semicolon "
          "between ranks, but has \"{}\"",
          word));
    }
    for (auto i = *first; i <= *last; ++i) {
      require_allowed(i, allowed);
      numbers.push_back(static_cast<int>(i));
    }
  }
  return numbers;
}

}  // namespace

std::vector<Processor> with_topology(const std::vector<int>& numbers) {
  std::vector<Processor> out;
  for (const int number : numbers) {
    const std::string directory =
        format("/sys/devices/system/cpu/cpu{}/topology/", number);
    out.push_back(
        {number,
         number_in(directory + "physical_package_id", 0),
         number_in(directory + "core_id", number)});
  }
  return out;
}

std::vector<std::vector<int>> share_processors(
    std::vector<Processor> processors,
    int num_ranks) {
  if (processors.size() < static_cast<std::size_t>(num_ranks)) return {};
  std::map<std::pair<int, int>, std::vector<int>> by_core;
  for (const Processor& each : processors) {
    by_core[{each.package, each.core}].push_back(each.number);
  }
  // Splits whole cores if there are enough, otherwise single processors.
  std::vector<std::vector<int>> units;
  for (const auto& [where, numbers] : by_core) {
    if (by_core.size() >= static_cast<std::size_t>(num_ranks)) {
      units.push_back(numbers);
    } else {
      for (const int number : numbers) units.push_back({number});
    }
  }
  std::vector<std::vector<int>> sets;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<int> set;
    for (std::size_t i = begin_of(units.size(), rank, num_ranks);
         i < begin_of(units.size(), rank + 1, num_ranks);
         ++i) {
      set.insert(set.end(), units[i].begin(), units[i].end());
    }
    std::ranges::sort(set);
    sets.push_back(std::move(set));
  }
  return sets;
}

std::vector<std::vector<int>> share_processors_nearby(
    const std::vector<std::vector<int>>& nearby,
    const std::vector<Processor>& allowed) {
  std::map<std::vector<int>, std::vector<std::size_t>> ranks_near;
  for (std::size_t rank = 0; rank < nearby.size(); ++rank)
    ranks_near[nearby[rank]].push_back(rank);
  std::vector<std::vector<int>> sets(nearby.size());
  for (const auto& [numbers, ranks] : ranks_near) {
    std::vector<Processor> usable;
    for (const Processor& each : allowed) {
      if (std::find(numbers.begin(), numbers.end(), each.number) !=
          numbers.end())
        usable.push_back(each);
    }
    if (usable.empty()) return {};
    const auto shares =
        share_processors(usable, static_cast<int>(ranks.size()));
    std::vector<int> all;
    for (const Processor& each : usable) all.push_back(each.number);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      sets[ranks[i]] = shares.empty() ? all : shares[i];
  }
  return sets;
}

std::vector<std::vector<int>> parse_processors(
    const std::string& text,
    int num_ranks,
    const std::vector<int>& allowed) {
  std::vector<std::vector<int>> sets;
  for (const std::string& part : detail::split(text, ';')) {
    sets.push_back(parse_set(part, allowed));
  }
  if (sets.size() != static_cast<std::size_t>(num_ranks)) {
    throw ConfigError(format(
        "[launch] cpu_affinity is \"{}\", which is for {} ranks, but {} start "
        "on this machine",
        text,
        sets.size(),
        num_ranks));
  }
  return sets;
}

std::string format_processors(const std::vector<int>& processors) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t last = i;
    while (last + 1 < processors.size() &&
           processors[last + 1] == processors[last] + 1) {
      ++last;
    }
    runs.push_back(
        last == i ? std::to_string(processors[i])
                  : format("{}-{}", processors[i], processors[last]));
    i = last + 1;
  }
  return detail::join(runs, ",");
}

}  // namespace accelerate::cli
