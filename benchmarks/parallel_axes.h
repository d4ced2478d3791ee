#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include <torch/torch.h>

#include <accelerate/launch.h>

namespace accelerate::benchmarks {

inline std::string file_of(const std::string& name) {
  return "/tmp/bench_parallel_axes_" + std::to_string(getuid()) + "_" + name;
}

// Returns what `rank` returns on the first of `num_ranks` processes. Returns
// nothing in a rank: ranks run this program too, but do not report.
inline std::optional<double> in_processes(
    int num_ranks,
    const std::string& name,
    const std::function<double()>& rank) {
  const std::string file = file_of(name);
  accelerate::launch_function(
      [&] {
        at::set_num_threads(1);
        const double value = rank();
        if (value >= 0) std::ofstream(file) << value;
      },
      {.num_processes = num_ranks, .name = name, .cpu = true});
  double value = 0;
  if (!(std::ifstream(file) >> value)) return std::nullopt;
  std::remove(file.c_str());
  return value;
}

/// Steps and peak memory of torch::nn::TransformerEncoder, whose attention is
/// torch::nn::MultiheadAttention.
void measure_encoder(int num_repeats);

}  // namespace accelerate::benchmarks
