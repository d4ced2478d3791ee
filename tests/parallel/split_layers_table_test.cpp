// Linear layers that ranks compute together, against one process: inputs of 1
// to 4 dimensions, with and without bias, results changed in place.
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/run_on_ranks.h"

namespace accelerate::split_layers_table_test {

namespace nn = torch::nn;
using testing::run_on_ranks;
using torch::Tensor;

struct Pair : nn::Module {
  explicit Pair(bool bias)
      : up(register_module(
            "up",
            nn::Linear(nn::LinearOptions(6, 10).bias(bias)))),
        down(register_module(
            "down",
            nn::Linear(nn::LinearOptions(10, 7).bias(bias)))) {
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (const Tensor& each : parameters()) {
      Tensor(each).copy_(torch::sin(torch::arange(each.numel()) + shift++)
                             .mul(0.3)
                             .view(each.sizes()));
    }
    to(torch::kDouble);
  }

  Tensor forward(const Tensor& x) { return down(up(x).relu_()); }

  nn::Linear up, down;
};

struct Plan {
  std::string name;
  ParallelizePlan plan;
  /// Each rank has the slice of the result along this dimension.
  std::optional<std::int64_t> sliced = std::nullopt;
};

std::vector<Plan> plans() {
  return {
      {"columns, then rows",
       {{"up", ColwiseParallel{}}, {"down", RowwiseParallel{}}}},
      {"gathered columns",
       {{"up", ColwiseParallel{.output_layouts = Replicate{}}}}},
      {"rows of a full input",
       {{"down", RowwiseParallel{.input_layouts = Replicate{}}}}},
      {"scattered rows",
       {{"up", ColwiseParallel{}},
        {"down", RowwiseParallel{.output_layouts = Shard{-2}}}},
       -2}};
}

// Results and input gradients: without a graph, then changed in place; with a
// graph, then changed in place; and once more.
std::vector<Tensor> uses_of(
    const std::function<Tensor(const Tensor&)>& forward,
    const Tensor& input,
    const std::function<Tensor(const Tensor&)>& own_part) {
  std::vector<Tensor> results;
  {
    Tensor output;
    {
      const torch::NoGradGuard no_grad;
      output = own_part(forward(input));
    }
    const Tensor scale = torch::full({}, 3., torch::kDouble).requires_grad_();
    results.push_back(output.mul_(scale).detach().clone());
  }
  for (int i = 0; i < 2; ++i) {
    const Tensor x = input.clone().requires_grad_();
    Tensor output = forward(x);
    output.mul_(2).add_(1);
    results.push_back(own_part(output).detach().clone());
    output.square().sum().backward();
    results.push_back(x.grad());
  }
  return results;
}

TEST(SplitLayersTable, ComputeAsOneProcessDoesForInputsOfAnyDimensions) {
  for (const Plan& each : plans()) {
    for (const bool bias : {true, false}) {
      for (std::size_t num_dims = 1; num_dims <= 4; ++num_dims) {
        if (each.sliced && num_dims == 1) continue;
        std::vector<std::int64_t> sizes{2, 1, 3, 6};
        sizes.erase(sizes.begin(), sizes.end() - static_cast<long>(num_dims));
        const Tensor input =
            torch::sin(
                torch::arange(c10::multiply_integers(sizes)).to(torch::kDouble))
                .view(sizes);
        run_on_ranks(2, [&](const WorldOptions& world) {
          SCOPED_TRACE(
              each.name + ", " + std::to_string(num_dims) + "-D" +
              (bias ? ", bias" : ""));
          const auto plain = std::make_shared<Pair>(bias);
          const auto split = std::make_shared<Pair>(bias);
          const Accelerator accelerator(
              {.cpu = true,
               .parallel = {.tensor = 2, .parallelize_plan = each.plan},
               .world = world});
          const auto model = accelerator.prepare(split);
          // The last rank has one row more of an odd number.
          const auto slice = [&](const Tensor& output) {
            const std::int64_t rank = accelerator.process_index();
            const std::int64_t rows = output.size(*each.sliced);
            const std::int64_t begin = rows * rank / 2;
            return output
                .narrow(*each.sliced, begin, rows * (rank + 1) / 2 - begin)
                .clone();
          };
          const auto whole = [](const Tensor& output) { return output; };
          const auto want = uses_of(
              [&](const Tensor& x) { return plain->forward(x); },
              input,
              each.sliced ? std::function<Tensor(const Tensor&)>(slice)
                          : whole);
          const auto got =
              uses_of([&](const Tensor& x) { return model(x); }, input, whole);
          for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_EQ(got[i].sizes(), want[i].sizes()) << i;
            EXPECT_TRUE(torch::allclose(got[i], want[i])) << i;
          }
        });
      }
    }
  }
}

}  // namespace accelerate::split_layers_table_test
