// Processes, each with random generators of its own, build a model of which
// only rank 0 makes values.
#include <cstdio>
#include <cstdlib>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

using namespace accelerate;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

void build(bool seeds_are_alike) {
  const Accelerator accelerator(
      {.parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 3}}});
  const int rank = accelerator.process_index();
  torch::manual_seed(seeds_are_alike ? 7 : 7 + rank);
  const auto net =
      accelerator.init_model([] { return torch::nn::Linear(4, 4); });
  require(net->weight.is_meta() == (rank != 0), "who makes values");
  const auto numbers = accelerator.world().group().all_gather(torch::rand({3}));
  // As they would be if every rank had built it.
  torch::manual_seed(7);
  const torch::nn::Linear usual(4, 4);
  require(torch::equal(numbers[0], torch::rand({3})), "rank 0's numbers");
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    require(
        torch::equal(numbers[i], numbers[0]) == seeds_are_alike,
        "numbers of the others");
  }
}

}  // namespace

int main() {
  for (const bool seeds_are_alike : {true, false}) {
    launch_function(
        [&] { build(seeds_are_alike); },
        {.num_processes = 3,
         .name = seeds_are_alike ? "alike" : "different",
         .cpu = true});
  }
}
