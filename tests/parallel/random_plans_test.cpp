// Random models under random plans of all styles on 2 to 4 ranks: the outputs,
// and the weights after a step, equal those of one process.
// RC_PARAMS=max_success=1000 tries more.
#include <optional>
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

// What each rank has of the tensor between two layers: the full tensor, a slice
// of columns (channels), or a slice of positions.
enum class Held { whole, columns, positions };

/// What a plan can do with a layer, and what each rank has afterwards.
struct Choice {
  std::optional<ParallelStyle> style = std::nullopt;
  Held then = Held::whole;
};

/// A linear layer or a convolution.
struct Layer {
  std::string name;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool bias = true;
  bool is_convolution = false;
  /// What follows the layer.
  enum { gelu, norm, nothing } then = nothing;
};

struct Problem {
  int num_ranks = 2;
  std::int64_t rows = 0;  ///< of the embedding
  std::int64_t time = 0;
  std::vector<Layer> layers;
  ParallelizePlan plan;
};

std::vector<Choice> embedding_choices(Shard sequence) {
  const Replicate all;
  // Indices have no dimension of columns.
  const Shard sequence_of_indices{1};
  return {
      {},
      {RowwiseParallel{}, Held::whole},
      {RowwiseParallel{.output_layouts = sequence}, Held::positions},
      {ColwiseParallel{}, Held::columns},
      {ColwiseParallel{.output_layouts = all}, Held::whole},
      {PrepareModuleInput{all, sequence_of_indices}, Held::positions},
      {PrepareModuleOutput{all, sequence}, Held::positions}};
}

std::vector<Choice> linear_choices(Held held, Shard sequence) {
  const Replicate all;
  const Shard columns{-1};
  switch (held) {
    case Held::columns:
      return {
          {RowwiseParallel{}, Held::whole},
          {RowwiseParallel{.output_layouts = sequence}, Held::positions},
          {RowwiseParallel{.output_layouts = columns}, Held::columns},
          {ColwiseParallel{.input_layouts = columns, .output_layouts = all},
           Held::whole},
          {ColwiseParallel{.input_layouts = columns}, Held::columns}};
    case Held::positions:
      return {
          {ColwiseParallel{.input_layouts = sequence, .output_layouts = all},
           Held::whole},
          {ColwiseParallel{.input_layouts = sequence}, Held::columns},
          {SequenceParallel{}, Held::positions},
          {PrepareModuleInput{sequence, all}, Held::whole},
          {PrepareModuleOutput{sequence, all}, Held::whole},
          {PrepareModuleInputOutput{sequence, all, all, sequence},
           Held::positions}};
    case Held::whole:
      return {
          {},
          {ColwiseParallel{}, Held::columns},
          {ColwiseParallel{.output_layouts = all}, Held::whole},
          {RowwiseParallel{.input_layouts = all}, Held::whole},
          {RowwiseParallel{.input_layouts = all, .output_layouts = sequence},
           Held::positions},
          {RowwiseParallel{.input_layouts = all, .output_layouts = columns},
           Held::columns},
          {PrepareModuleInput{all, sequence}, Held::positions},
          {PrepareModuleOutput{all, sequence}, Held::positions},
          {PrepareModuleInputOutput{all, sequence, sequence, all},
           Held::whole}};
  }
  return {};
}

// Samples x channels x positions. Convolutions mix positions.
std::vector<Choice> convolution_choices(Held held) {
  const Replicate all;
  const Shard channels{1}, sequence{2};
  switch (held) {
    case Held::columns:
      return {
          {RowwiseParallel{}, Held::whole},
          {RowwiseParallel{.output_layouts = channels}, Held::columns},
          {ColwiseParallel{.input_layouts = channels, .output_layouts = all},
           Held::whole},
          {ColwiseParallel{.input_layouts = channels}, Held::columns}};
    case Held::positions:
      return {
          {PrepareModuleInput{sequence, all}, Held::whole},
          {PrepareModuleInputOutput{sequence, all, all, sequence},
           Held::positions}};
    case Held::whole:
      return {
          {},
          {ColwiseParallel{}, Held::columns},
          {ColwiseParallel{.output_layouts = all}, Held::whole},
          {RowwiseParallel{.input_layouts = all}, Held::whole},
          {RowwiseParallel{.input_layouts = all, .output_layouts = channels},
           Held::columns},
          {PrepareModuleOutput{all, sequence}, Held::positions}};
  }
  return {};
}

// A norm needs all columns.
std::vector<Choice> norm_choices(Held held, Shard sequence) {
  const Replicate all;
  if (held == Held::positions) {
    return {
        {SequenceParallel{}, Held::positions},
        {PrepareModuleInput{sequence, all}, Held::whole},
        {PrepareModuleOutput{sequence, all}, Held::whole},
        {PrepareModuleInputOutput{sequence, all, all, sequence},
         Held::positions}};
  }
  return {
      {},
      {PrepareModuleInput{all, sequence}, Held::positions},
      {PrepareModuleOutput{all, sequence}, Held::positions},
      {PrepareModuleInputOutput{all, sequence, sequence, all}, Held::whole}};
}

class RandomProblem {
 public:
  explicit RandomProblem(int num_ranks) {
    const std::int64_t ranks = problem_.num_ranks = num_ranks;
    problem_.rows = size();
    // Slices of the sequence must not be empty.
    problem_.time = *rc::gen::inRange<std::int64_t>(ranks, 8);
    width_ = size();
    choose("table", embedding_choices(sequence()));
    const int num_linear = *rc::gen::inRange(1, 7);
    const int num_convolutions = *rc::gen::inRange(0, 4);
    for (int i = 0; i < num_linear; ++i) {
      is_last_ = num_convolutions == 0 && i + 1 == num_linear;
      add_linear("layer" + std::to_string(i));
    }
    for (int i = 0; i < num_convolutions; ++i) {
      is_last_ = i + 1 == num_convolutions;
      Layer layer = new_layer("convolution" + std::to_string(i));
      layer.is_convolution = true;
      choose(layer.name, convolution_choices(held_));
      if (*rc::gen::arbitrary<bool>()) layer.then = Layer::gelu;
      problem_.layers.push_back(layer);
    }
  }

  [[nodiscard]] const Problem& problem() const { return problem_; }

 private:
  [[nodiscard]] std::int64_t size() const {
    return *rc::gen::inRange<std::int64_t>(problem_.num_ranks, 14);
  }
  // The dimension of positions.
  static Shard sequence() { return Shard{*rc::gen::element(1, -2)}; }

  // Chooses a style; the last layer's output must be full.
  void choose(const std::string& name, std::vector<Choice> choices) {
    if (is_last_) {
      std::erase_if(choices, [](const Choice& choice) {
        return choice.then != Held::whole;
      });
    }
    const Choice choice = *rc::gen::elementOf(choices);
    if (choice.style) problem_.plan.emplace_back(name, *choice.style);
    held_ = choice.then;
  }

  Layer new_layer(std::string name) {
    Layer layer{std::move(name), width_, size(), *rc::gen::arbitrary<bool>()};
    width_ = layer.outputs;
    return layer;
  }

  void add_linear(const std::string& name) {
    Layer layer = new_layer(name);
    choose(name, linear_choices(held_, sequence()));
    const int then = *rc::gen::inRange(0, 3);
    if (then == 0) layer.then = Layer::gelu;
    if (then == 1 && held_ != Held::columns) {
      layer.then = Layer::norm;
      choose(name + "_norm", norm_choices(held_, sequence()));
    }
    problem_.layers.push_back(layer);
  }

  Problem problem_;
  std::int64_t width_ = 0;
  Held held_ = Held::whole;
  bool is_last_ = false;
};

struct RandomNet : nn::Module {
  explicit RandomNet(const Problem& problem)
      : layers(problem.layers),
        table(problem.rows, problem.layers.front().inputs) {
    register_module("table", table);
    for (const Layer& layer : layers) {
      if (layer.is_convolution) {
        convolutions.push_back(register_module(
            layer.name,
            nn::Conv1d(nn::Conv1dOptions(layer.inputs, layer.outputs, 3)
                           .padding(1)
                           .bias(layer.bias))));
        continue;
      }
      linears.push_back(register_module(
          layer.name,
          nn::Linear(nn::LinearOptions(layer.inputs, layer.outputs)
                         .bias(layer.bias))));
      norms.push_back(
          layer.then == Layer::norm
              ? register_module(
                    layer.name + "_norm",
                    nn::LayerNorm(nn::LayerNormOptions({layer.outputs})))
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
      const std::size_t first = linears.size();
      if (i == first) x = x.transpose(1, 2);
      x = i < first ? linears[i](x) : convolutions[i - first](x);
      if (layers[i].then == Layer::gelu) x = torch::gelu(x);
      if (layers[i].then == Layer::norm) x = norms[i](x);
    }
    return x;
  }
  std::vector<Layer> layers;
  nn::Embedding table;
  std::vector<nn::Linear> linears;
  std::vector<nn::LayerNorm> norms;
  std::vector<nn::Conv1d> convolutions;
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
    // Norms over few columns can amplify rounding differences.
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
    const RandomProblem random(*rc::gen::inRange(2, 5));
    const Problem& problem = random.problem();
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
