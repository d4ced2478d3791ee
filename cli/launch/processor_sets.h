#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// A processor as the scheduler numbers them, and where it sits.
struct Processor {
  int number = 0;
  int package = 0;
  int core = 0;
};

/// Those of `numbers`, with what the system says of them.
std::vector<Processor> with_topology(const std::vector<int>& numbers);

/// Disjoint sets of neighbours, as equal as possible: hyperthreads of one core
/// stay together where there are enough cores. Empty if there are fewer
/// processors than ranks.
std::vector<std::vector<int>> share_processors(
    std::vector<Processor> processors,
    int num_ranks);

/// "0-3,8;4-7" for two ranks. Throws ConfigError for what is no such list, has
/// another number of sets, or names a processor that is not `allowed`.
std::vector<std::vector<int>> parse_processors(
    const std::string& text,
    int num_ranks,
    const std::vector<int>& allowed);

/// "0-3,8".
std::string format_processors(const std::vector<int>& processors);

}  // namespace accelerate::cli
