// A window whose last backward does not reach a model: the gradients of the
// earlier micro-steps are averaged as usual.
#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace passed_by_test {

using testing::run_on_ranks;

torch::nn::Linear layer(double value) {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  return net;
}

torch::Tensor input(int rank) {
  return torch::full({1, 2}, rank + 1, torch::kFloat);
}

struct Run {
  int num_ranks = 2;
  /// Whether a rank's first micro-step reaches the model.
  std::function<bool(int rank)> reaches = [](int) { return true; };
  ReplicateOptions replicate = {};
  int num_windows = 2;
};

// Each rank's weight, after gradient descent, of a model that only first
// micro-steps reach. Every micro-step reaches another model.
std::vector<float> train(const Run& run) {
  std::vector<float> weights(static_cast<std::size_t>(run.num_ranks));
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.gradient_accumulation_steps = 2,
         .parallel = {.replicate_options = run.replicate},
         .world = world});
    const auto early_net = layer(0), late_net = layer(0);
    torch::optim::SGD early_sgd(early_net->parameters(), 1);
    torch::optim::SGD late_sgd(late_net->parameters(), 1);
    auto [early, late, early_optimizer, late_optimizer] =
        accelerator.prepare(early_net, late_net, early_sgd, late_sgd);
    const int rank = accelerator.process_index();
    for (int i = 0; i < 2 * run.num_windows; ++i) {
      const auto micro_step = accelerator.accumulate(early, late);
      torch::Tensor loss = late(input(rank)).sum();
      if (i % 2 == 0 && run.reaches(rank))
        loss = loss + early(input(rank)).sum();
      accelerator.backward(loss);
      early_optimizer.step();
      late_optimizer.step();
      early_optimizer.zero_grad();
      late_optimizer.zero_grad();
    }
    EXPECT_EQ(
        late_net->weight[0][0].item<float>(),
        -run.num_windows * (run.num_ranks + 1) / 2.0F);
    weights[static_cast<std::size_t>(rank)] =
        early_net->weight[0][0].item<float>();
  });
  return weights;
}

TEST(PassedBy, GradientsOfEarlierMicroStepsAreAveraged) {
  // Half of the mean of 1 and 2, twice.
  EXPECT_EQ(train({}), (std::vector<float>{-1.5, -1.5}));
  EXPECT_EQ(train({.num_ranks = 3}), (std::vector<float>{-2, -2, -2}));
}

TEST(PassedBy, MayHaveBeenReachedOnOneRankOnly) {
  EXPECT_EQ(
      train({.reaches = [](int rank) { return rank == 1; }}),
      (std::vector<float>{-1, -1}));
  EXPECT_EQ(
      train({.reaches = [](int) { return false; }}),
      (std::vector<float>{0, 0}));
}

TEST(PassedBy, HoldsForEveryWayToReplicate) {
  ReplicateOptions unused, fixed, views, hook;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  views.gradient_as_bucket_view = true;
  hook.comm_hook = CommHook::bf16;
  for (const ReplicateOptions& options : {unused, fixed, views, hook}) {
    EXPECT_EQ(train({.replicate = options}), (std::vector<float>{-1.5, -1.5}));
  }
}

// A model that no micro-step of a window reaches keeps its gradients.
TEST(PassedBy, LeavesGradientsOfOtherStepsAlone) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .world = world});
    const auto first_net = layer(0), second_net = layer(0);
    auto [first, second] = accelerator.prepare(first_net, second_net);
    const int rank = accelerator.process_index();
    for (int i = 0; i < 2; ++i) {
      const auto micro_step = accelerator.accumulate(first);
      accelerator.backward(first(input(rank)).sum());
    }
    // Different on each rank, as if the program changed its gradients.
    first_net->weight.mutable_grad().fill_(rank);
    for (int i = 0; i < 2; ++i) {
      const auto micro_step = accelerator.accumulate(second);
      accelerator.backward(second(input(rank)).sum());
    }
    EXPECT_EQ(first_net->weight.grad()[0][0].item<float>(), rank);
    EXPECT_EQ(second_net->weight.grad()[0][0].item<float>(), 1.5F);
  });
}

TEST(PassedBy, HoldsWhileRanksJoin) {
  std::vector<float> weights(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .world = world});
    const auto early_net = layer(0), late_net = layer(0);
    torch::optim::SGD sgd(early_net->parameters(), 1);
    auto [early, late, optimizer] =
        accelerator.prepare(early_net, late_net, sgd);
    const int rank = accelerator.process_index();
    accelerator.join_uneven_inputs(
        [&, &early = early, &late = late, &optimizer = optimizer] {
          for (int i = 0; i < (rank == 0 ? 2 : 4); ++i) {
            const auto micro_step = accelerator.accumulate(early, late);
            torch::Tensor loss = late(input(rank)).sum();
            if (i % 2 == 0) loss = loss + early(input(rank)).sum();
            accelerator.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
          }
        });
    weights[static_cast<std::size_t>(rank)] =
        early_net->weight[0][0].item<float>();
  });
  // Half of the mean of 1 and 2, then half of 2 divided by both ranks.
  EXPECT_EQ(weights, (std::vector<float>{-1.25, -1.25}));
}

}  // namespace passed_by_test
}  // namespace accelerate
