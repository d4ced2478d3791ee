// Random models under random plans on 2 to 4 ranks: the outputs, the gradients
// of the input and the weights after a step of one process.
// RC_PARAMS=max_success=1000 tries more.
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <rapidcheck.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace random_plans_test {

using testing::named;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

struct Layer {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool bias = true;
  /// One of gelu, norm and nothing, behind the layer.
  int then = 0;
};

struct Problem {
  int num_ranks = 2;
  std::int64_t rows = 0;  ///< of the embedding
  std::int64_t time = 0;
  std::vector<Layer> layers;
  ParallelizePlan plan;
};

std::string layer_name(std::size_t i) { return "layer" + std::to_string(i); }

Problem random_problem() {
  using rc::gen::inRange;
  Problem problem;
  problem.num_ranks = *inRange(2, 5);
  const std::int64_t ranks = problem.num_ranks;
  const auto size = [&] { return *inRange<std::int64_t>(ranks, 14); };
  problem.rows = size();
  // Slices of the sequence must not be empty.
  problem.time = *inRange<std::int64_t>(ranks, 8);
  const int count = *inRange(1, 7);
  std::int64_t width = size();
  const int table = *inRange(0, 3);
  if (table == 1) problem.plan.emplace_back("table", RowwiseParallel{});
  if (table == 2)
    problem.plan.emplace_back(
        "table", ColwiseParallel{.output_layouts = Replicate{}});
  // What the previous layer returned: all, a slice of columns, or of positions.
  enum { whole, columns, positions } state = whole;
  for (int i = 0; i < count; ++i) {
    Layer layer{width, size(), *rc::gen::arbitrary<bool>(), *inRange(0, 3)};
    const bool is_last = i + 1 == count;
    const std::string name = layer_name(static_cast<std::size_t>(i));
    const int choice = *inRange(0, 4);
    if (state == columns) {
      const bool scatters = !is_last && *rc::gen::arbitrary<bool>();
      problem.plan.emplace_back(
          name,
          scatters ? RowwiseParallel{.output_layouts = Shard{1}}
                   : RowwiseParallel{});
      state = scatters ? positions : whole;
    } else if (state == positions) {
      const bool gathers = is_last || *rc::gen::arbitrary<bool>();
      problem.plan.emplace_back(
          name,
          ColwiseParallel{
              .input_layouts = Shard{1},
              .output_layouts = gathers ? TensorPlacement(Replicate{})
                                        : TensorPlacement(Shard{-1})});
      state = gathers ? whole : columns;
    } else if (choice == 0 && !is_last) {
      problem.plan.emplace_back(name, ColwiseParallel{});
      state = columns;
    } else if (choice == 1) {
      problem.plan.emplace_back(
          name, ColwiseParallel{.output_layouts = Replicate{}});
    } else if (choice == 2) {
      const bool scatters = !is_last && *rc::gen::arbitrary<bool>();
      problem.plan.emplace_back(
          name,
          RowwiseParallel{
              .input_layouts = Replicate{},
              .output_layouts = scatters ? TensorPlacement(Shard{1})
                                         : TensorPlacement(Replicate{})});
      if (scatters) state = positions;
    }
    // A norm needs all columns, and is told if it gets some positions.
    if (layer.then == 1 && state == columns) layer.then = 0;
    if (layer.then == 1 && state == positions)
      problem.plan.emplace_back("norm" + std::to_string(i), SequenceParallel{});
    problem.layers.push_back(layer);
    width = layer.outputs;
  }
  return problem;
}

struct RandomNet : nn::Module {
  explicit RandomNet(const Problem& problem)
      : layers(problem.layers),
        table(problem.rows, problem.layers.front().inputs) {
    register_module("table", table);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      linears.push_back(register_module(
          layer_name(i),
          nn::Linear(nn::LinearOptions(layers[i].inputs, layers[i].outputs)
                         .bias(layers[i].bias))));
      norms.push_back(
          layers[i].then == 1
              ? register_module(
                    "norm" + std::to_string(i),
                    nn::LayerNorm(nn::LayerNormOptions({layers[i].outputs})))
              : nn::LayerNorm(nullptr));
    }
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (const Tensor& parameter : parameters()) {
      const Tensor values =
          torch::sin(torch::arange(parameter.numel()) * 0.9 + 37 * number++);
      parameter.copy_((values * 0.6).view(parameter.sizes()));
    }
  }
  Tensor forward(const Tensor& words) {
    Tensor x = table(words);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = linears[i](x);
      if (layers[i].then == 0) x = torch::gelu(x);
      if (layers[i].then == 1) x = norms[i](x);
    }
    return x;
  }
  std::vector<Layer> layers;
  nn::Embedding table;
  std::vector<nn::Linear> linears;
  std::vector<nn::LayerNorm> norms;
};

struct Outcome {
  Tensor output;
  Weights weights;
};

Outcome outcome_of(const Problem& problem, int num_ranks) {
  Outcome outcome;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options;
    options.parallel.tensor = num_ranks;
    options.parallel.parallelize_plan = problem.plan;
    options.world = world;
    const Accelerator accelerator(options);
    const auto net = std::make_shared<RandomNet>(problem);
    // Norms of few columns may enlarge differences of rounding.
    net->to(torch::kDouble);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor words = (torch::arange(2 * problem.time) * 5)
                             .remainder(problem.rows)
                             .view({2, -1});
    const Tensor output = model(words);
    accelerator.backward(output.pow(2).mean());
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    const Weights weights =
        named(accelerator.get_state_dict(model, {.rank0_only = false}));
    if (accelerator.is_main_process()) outcome = {output.detach(), weights};
  });
  return outcome;
}

TEST(RandomPlans, ComputeWhatOneProcessDoes) {
  EXPECT_TRUE(rc::check([] {
    const Problem problem = random_problem();
    const Outcome one = outcome_of(problem, 1);
    const Outcome many = outcome_of(problem, problem.num_ranks);
    RC_LOG() << problem.num_ranks << " ranks, " << problem.time
             << " positions, " << problem.layers.size() << " layers\n"
             << (many.output - one.output).abs().max().item<double>() << '\n';
    RC_ASSERT(torch::allclose(many.output, one.output, 1e-9, 1e-9));
    RC_ASSERT(many.weights.size() == one.weights.size());
    for (const auto& [name, weight] : one.weights)
      RC_ASSERT(torch::allclose(many.weights.at(name), weight, 1e-9, 1e-9));
  }));
}

}  // namespace random_plans_test
}  // namespace accelerate
