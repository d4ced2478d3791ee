#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// A logical processor with its package and core.
struct Processor {
  int number = 0;
  int package = 0;
  int core = 0;
};

/// The processors with these numbers, with their topology.
std::vector<Processor> with_topology(const std::vector<int>& numbers);

/// Disjoint sets of adjacent processors, one per rank, as equal in size as
/// possible. Hyperthreads of a core stay together if there are enough cores.
/// Empty if there are fewer processors than ranks.
std::vector<std::vector<int>> share_processors(
    std::vector<Processor> processors,
    int num_ranks);

/// Disjoint sets for ranks that each have processors nearby: those of its GPU.
/// Ranks near the same processors share them; with fewer than one for each,
/// all of these ranks get all of them. Empty if a rank's are unknown or not
/// `allowed`.
std::vector<std::vector<int>> share_processors_nearby(
    const std::vector<std::vector<int>>& nearby,
    const std::vector<Processor>& allowed);

/// Parses lists such as "0-3,8;4-7" for two ranks. Throws ConfigError for
/// invalid lists, a wrong number of sets, or a processor that is not `allowed`.
std::vector<std::vector<int>> parse_processors(
    const std::string& text,
    int num_ranks,
    const std::vector<int>& allowed);

/// Formats a list such as "0-3,8".
std::string format_processors(const std::vector<int>& processors);

}  // namespace accelerate::cli
