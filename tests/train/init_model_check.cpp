// Processes, each with its own random generators, build a model whose values
// only rank 0 creates.
#include <cstdio>
#include <cstdlib>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

using namespace accelerate;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

void build(bool seeds_are_alike) {
  const Accelerator accelerator(
      {.parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 3}}});
  const int rank = accelerator.process_index();
  torch::manual_seed(seeds_are_alike ? 7 : 7 + rank);
  const auto net =
      accelerator.init_model([] { return torch::nn::Linear(4, 4); });
  require(net->weight.is_meta() == (rank != 0), "only rank 0 makes values");
  const auto numbers = accelerator.world().group().all_gather(torch::rand({3}));
  // The numbers that follow when every rank builds the model.
  torch::manual_seed(7);
  const torch::nn::Linear ordinary(4, 4);
  require(torch::equal(numbers[0], torch::rand({3})), "rank 0's numbers");
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    require(
        torch::equal(numbers[i], numbers[0]) == seeds_are_alike,
        "the other ranks' numbers");
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
