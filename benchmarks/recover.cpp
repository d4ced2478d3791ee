// From the death of one of two ranks to the launcher's line that names it, over
// shared memory and over Gloo; and to the end of the first step of both ranks
// afterwards: with run_elastic(), which restarts only the dead rank, and when
// the whole group is restarted.
#include <filesystem>
#include <string>
#include <vector>

#include "rank_times.h"
#include "report.h"

int main(int, char** argv) {
  using namespace accelerate::benchmarks;
  const std::filesystem::path bin =
      std::filesystem::canonical(argv[0]).parent_path();
  std::vector<double> alone, whole, named, named_on_gloo;
  constexpr std::size_t kRuns = 15;
  for (std::size_t i = 0; i < kRuns; ++i) {
    alone.push_back(
        times_after_death(bin, "alone", "--max_restarts 1").stepped);
    whole.push_back(
        times_after_death(bin, "whole", "--max_restarts 1").stepped);
    named.push_back(
        times_after_death(bin, "whole", "--transport shared_memory").named);
    named_on_gloo.push_back(
        times_after_death(bin, "whole", "--transport gloo").named);
  }
  report(
      {"recover",
       "recover_ms",
       median(alone),
       "ms",
       median(whole),
       median(alone) / median(whole),
       kRuns});
  report({"recover", "dead_rank_ms", median(named), "ms", 0, 0, kRuns});
  report(
      {"recover",
       "dead_rank_gloo_ms",
       median(named_on_gloo),
       "ms",
       0,
       0,
       kRuns});
  return 0;
}
