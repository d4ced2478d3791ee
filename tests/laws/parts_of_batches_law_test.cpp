// Programs whose batches are divided among any number of micro-steps: steps are
// those of Accelerate's formula, or exact means where a batch is a micro-step.
#include "laws/check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <accelerate/accelerate.h>

namespace accelerate {
namespace parts_of_batches_law_test {

using testing::expect_law;

struct Program {
  int window = 1;
  int num_parts = 1;  ///< micro-steps per batch
  int num_epochs = 1;
  int batch_size = 1;
  std::vector<int> loader_rows;
  bool sync_with_dataloader = true;
  bool divide_by_full_window = false;
  bool counts_items = false;
};

// A last batch of several micro-steps, unless all batches have one.
int rows_of_loader(int batch_size, int num_parts) {
  const int num_batches = *rc::gen::inRange(1, 5);
  const int least = num_parts > 1 ? 2 : 1;
  return (num_batches - 1) * batch_size +
      *rc::gen::inRange(least, batch_size + 1);
}

Program any_program() {
  Program program;
  program.window = *rc::gen::inRange(2, 6);
  program.num_parts = *rc::gen::inRange(1, 5);
  program.num_epochs = *rc::gen::inRange(1, 3);
  program.batch_size = *rc::gen::inRange(2, 7);
  const int num_loaders = *rc::gen::inRange(1, 4);
  for (int i = 0; i < num_loaders; ++i) {
    program.loader_rows.push_back(
        rows_of_loader(program.batch_size, program.num_parts));
  }
  program.sync_with_dataloader = *rc::gen::arbitrary<bool>();
  program.divide_by_full_window = *rc::gen::arbitrary<bool>();
  program.counts_items = *rc::gen::arbitrary<bool>();
  return program;
}

// Rows are 1, 2, 3 ... over all loaders.
torch::Tensor rows_of(const Program& program, std::size_t loader) {
  double first = 1;
  for (std::size_t i = 0; i < loader; ++i) first += program.loader_rows[i];
  return torch::arange(
             first, first + program.loader_rows[loader], torch::kDouble)
      .view({-1, 1});
}

// The weight after each micro-step, with the loss w x and a learning rate of 1.
std::vector<double> weights_of(const Program& program) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = program.window,
       .gradient_accumulation =
           {.sync_with_dataloader = program.sync_with_dataloader,
            .divide_by_full_window = program.divide_by_full_window},
       .world = {.rank = 0, .size = 1, .device = at::kCPU}});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  net->to(torch::kDouble);
  torch::nn::init::zeros_(net->weight);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  using Loader = decltype(accelerator.prepare(
      DataLoader(TensorDataset{rows_of(program, 0)}, {.batch_size = 1})));
  std::vector<Loader> loaders;
  for (std::size_t i = 0; i < program.loader_rows.size(); ++i) {
    loaders.push_back(accelerator.prepare(DataLoader(
        TensorDataset{rows_of(program, i)},
        {.batch_size = program.batch_size})));
  }
  std::vector<double> weights;
  for (int epoch = 0; epoch < program.num_epochs; ++epoch) {
    for (Loader& loader : loaders) {
      for (auto& [x] : loader) {
        for (const torch::Tensor& part : x.chunk(program.num_parts)) {
          const auto micro_step = accelerator.accumulate(model);
          BackwardOptions backward;
          if (program.counts_items) backward.num_items = part.size(0);
          accelerator.backward(model(part).mean(), backward);
          optimizer.step();
          optimizer.zero_grad();
          weights.push_back(net->weight.item<double>());
        }
      }
    }
  }
  return weights;
}

// One window: what the losses of its micro-steps are means of, and where it
// ends.
struct Window {
  std::vector<torch::Tensor> parts = {};
  bool ends_early = false;
};

double step_of(const Program& program, const Window& window, bool is_exact) {
  const auto length = static_cast<double>(window.parts.size());
  const double divisor =
      window.ends_early && is_exact ? length : program.window;
  if (program.counts_items && program.window > 1)
    return torch::cat(window.parts).mean().item<double>() * length / divisor;
  double sum = 0;
  for (const torch::Tensor& part : window.parts)
    sum += part.mean().item<double>();
  return sum / divisor;
}

std::vector<double> expected(const Program& program) {
  std::vector<double> weights;
  double weight = 0;
  int counter = 0;
  Window window;
  bool is_first = true;
  for (int epoch = 0; epoch < program.num_epochs; ++epoch) {
    for (std::size_t i = 0; i < program.loader_rows.size(); ++i) {
      const auto batches = rows_of(program, i).split(program.batch_size);
      for (const torch::Tensor& batch : batches) {
        const bool is_last = batch.is_same(batches.back());
        for (const torch::Tensor& part : batch.chunk(program.num_parts)) {
          window.parts.push_back(part);
          const bool ends_pass = is_last && program.sync_with_dataloader;
          counter = ends_pass ? 0 : counter + 1;
          if (counter % program.window == 0) {
            window.ends_early =
                static_cast<int>(window.parts.size()) < program.window;
            // num_items weighs all items alike, whatever the window's length.
            const bool is_exact = program.num_parts == 1 && !is_first &&
                (program.counts_items || !program.divide_by_full_window);
            weight -= step_of(program, window, is_exact);
            window = {};
          }
          weights.push_back(weight);
        }
        is_first = false;
      }
    }
  }
  return weights;
}

TEST(PartsOfBatchesLaw, StepAsInAccelerateAndWholeBatchesByTheirTrueNumber) {
  expect_law(400, [] {
    const Program program = any_program();
    const std::vector<double> found = weights_of(program);
    const std::vector<double> wanted = expected(program);
    RC_ASSERT(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      RC_ASSERT(
          std::abs(found[i] - wanted[i]) < 1e-9 * (1 + std::abs(wanted[i])));
  });
}

}  // namespace parts_of_batches_law_test
}  // namespace accelerate
