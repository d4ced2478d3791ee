// fp16's steps on a device, which the host does not wait for.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/accelerate.h>

#include "capture/make_optimizer.h"
#include "support/counted_operators.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace deferred_step_test {

using testing::CountedOperators;
using testing::MakeOptimizer;
using testing::optimizer_of;
using testing::pretend_device;
using torch::Tensor;

const MakeOptimizer adamw =
    optimizer_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));

AcceleratorOptions options_on(at::Device device, int window) {
  return {
      .mixed_precision = Precision::fp16,
      .autocast = {.enabled = false},
      .grad_scaler = {.init_scale = 1024, .growth_interval = 3},
      .gradient_accumulation_steps = window,
      .world = {.rank = 0, .size = 1, .device = device}};
}

// A small net that is trained with infinite gradients in some steps.
struct Training {
  explicit Training(
      at::Device device,
      const MakeOptimizer& make_optimizer = adamw,
      int window = 1)
      : accelerator(options_on(device, window)),
        net(make_net()),
        inner(make_optimizer(net->parameters())),
        prepared(accelerator.prepare(net, *inner)) {}

  static torch::nn::Sequential make_net() {
    torch::manual_seed(3);
    return torch::nn::Sequential(
        torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  }
  const Model<torch::nn::SequentialImpl>& model() const {
    return std::get<0>(prepared);
  }
  const Optimizer& optimizer() const { return std::get<1>(prepared); }

  Tensor batch(int step, bool is_infinite) const {
    const at::Generator generator = at::detail::createCPUGenerator(step);
    Tensor made = at::randn({5, 4}, generator);
    if (is_infinite) made.fill_(INFINITY);
    return made.to(accelerator.device());
  }
  void step(const Tensor& x, bool clips = false) const {
    const auto micro_step = accelerator.accumulate(model());
    accelerator.backward(model()(x).square().mean());
    if (clips) {
      optimizer().step({.max_norm = 0.5});
    } else {
      optimizer().step();
    }
    optimizer().zero_grad();
  }
  std::vector<Tensor> weights() const {
    std::vector<Tensor> found;
    for (const Tensor& weight : net->parameters())
      found.push_back(weight.detach().cpu());
    return found;
  }
  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> found;
    for (const Tensor& weight : net->parameters()) {
      const auto& state = inner->state();
      const auto entry = state.find(weight.unsafeGetTensorImpl());
      found.push_back(
          entry == state.end()
              ? 0
              : static_cast<const torch::optim::AdamWParamState&>(
                    *entry->second)
                    .step());
    }
    return found;
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::tuple<Model<torch::nn::SequentialImpl>, Optimizer> prepared;
};

// The first step is among them, as it often is with fp16.
bool is_infinite(int step) { return step == 0 || step % 5 == 3 || step == 14; }

TEST(DeferredSteps, EqualThoseThatAreWaitedFor) {
  namespace optim = torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> optimizers{
      {"AdamW", adamw},
      {"Adam with amsgrad",
       optimizer_of<optim::Adam>(optim::AdamOptions(0.1).amsgrad(true))},
      {"SGD", optimizer_of<optim::SGD>(optim::SGDOptions(0.1))},
      {"SGD with momentum",
       optimizer_of<optim::SGD>(
           optim::SGDOptions(0.1).momentum(0.5).dampening(0.25))},
      {"Adagrad", optimizer_of<optim::Adagrad>(optim::AdagradOptions(0.1))},
      {"RMSprop, which is waited for",
       optimizer_of<optim::RMSprop>(optim::RMSpropOptions(0.1))}};
  for (const auto& [name, make] : optimizers) {
    for (const int window : {1, 2}) {
      for (const bool clips : {false, true}) {
        SCOPED_TRACE(name + (clips ? ", clipped" : ""));
        const Training deferred(pretend_device(), make, window);
        const Training waited(at::kCPU, make, window);
        for (int i = 0; i < 20; ++i) {
          for (const Training* const training : {&deferred, &waited})
            training->step(training->batch(i, is_infinite(i)), clips);
          if (i % 4 == 3) {
            EXPECT_EQ(
                deferred.optimizer().step_was_skipped(),
                waited.optimizer().step_was_skipped());
          }
        }
        const auto found = deferred.weights(), wanted = waited.weights();
        for (std::size_t i = 0; i < found.size(); ++i)
          EXPECT_TRUE(found[i].equal(wanted[i])) << i;
        EXPECT_EQ(
            deferred.accelerator.gradient_state().scaler()->get_scale(),
            waited.accelerator.gradient_state().scaler()->get_scale());
      }
    }
  }
}

TEST(DeferredSteps, ReadNothingFromTheDevice) {
  const Training training(pretend_device());
  std::vector<Tensor> batches;
  for (int i = 0; i < 6; ++i) batches.push_back(training.batch(i, i == 4));
  training.step(batches[0]);
  const CountedOperators operators;
  for (const Tensor& batch : batches) training.step(batch);
  EXPECT_EQ(operators.of("aten::_local_scalar_dense"), 0);
  EXPECT_EQ(operators.of("aten::_fused_adamw_"), 6);
}

TEST(DeferredSteps, CountStepsOnceTheyAreKnown) {
  const Training training(pretend_device());
  const Tensor good = training.batch(1, false), bad = training.batch(1, true);
  const std::vector<
      std::pair<std::string, std::function<void(const Training&)>>>
      readers{
          {"step_was_skipped",
           [](const Training& t) {
             EXPECT_TRUE(t.optimizer().step_was_skipped());
           }},
          {"optimizer_step_was_skipped",
           [](const Training& t) {
             EXPECT_TRUE(t.accelerator.optimizer_step_was_skipped());
           }},
          {"inner",
           [](const Training& t) {
             EXPECT_EQ(&t.optimizer().inner(), t.inner.get());
           }},
          {"save_state",
           [](const Training& t) {
             const testing::TemporaryDirectory folder;
             t.accelerator.save_state(folder.path() / "saved");
           }},
          {"end_training",
           [](const Training& t) { t.accelerator.end_training(); }}};
  std::int64_t num_good = 0;
  for (const auto& [name, read] : readers) {
    SCOPED_TRACE(name);
    training.step(good);
    ++num_good;
    training.step(bad);
    read(training);
    EXPECT_EQ(training.counts(), std::vector<std::int64_t>(4, num_good));
  }
}

TEST(DeferredSteps, OutliveTheStateThatTheyChanged) {
  const Training training(pretend_device());
  training.step(training.batch(1, false));
  training.step(training.batch(2, true));
  training.inner->state().clear();
  EXPECT_TRUE(training.optimizer().step_was_skipped());
  training.step(training.batch(3, false));
  EXPECT_EQ(training.counts(), std::vector<std::int64_t>(4, 1));
}

TEST(DeferredSteps, OutliveTheOptimizer) {
  Training training(pretend_device());
  training.step(training.batch(2, true));
  training.inner.reset();
  EXPECT_TRUE(training.optimizer().step_was_skipped());
}

TEST(DeferredSteps, HoldSchedulesBack) {
  Training training(pretend_device());
  torch::optim::StepLR rates(*training.inner, /*step_size=*/1, /*gamma=*/0.5);
  const Scheduler schedule = training.accelerator.prepare(rates);
  // LibTorch's schedule changes the rate from its second step on.
  for (int i = 0; i < 2; ++i) {
    training.step(training.batch(i, false));
    schedule.step();
  }
  EXPECT_EQ(training.optimizer().learning_rate(), 0.05);
  training.step(training.batch(2, true));
  schedule.step();
  EXPECT_EQ(training.optimizer().learning_rate(), 0.05);
}

// Whether gradients are finite is found for each optimizer by itself.
TEST(DeferredSteps, OfTwoOptimizersAreSkippedAlone) {
  struct Pair {
    explicit Pair(at::Device device)
        : accelerator(options_on(device, 1)),
          nets{Training::make_net(), Training::make_net()},
          inner{adamw(nets[0]->parameters()), adamw(nets[1]->parameters())},
          prepared(
              accelerator.prepare(nets[0], *inner[0], nets[1], *inner[1])) {}
    // Returns which steps were skipped.
    std::pair<bool, bool> step(int i) {
      auto& [first, first_optimizer, second, second_optimizer] = prepared;
      const at::Generator generator = at::detail::createCPUGenerator(i);
      const Tensor x = at::randn({5, 4}, generator).to(accelerator.device());
      const auto bad = [&](bool is_bad) { return is_bad ? x + INFINITY : x; };
      accelerator.backward(
          first(bad(i % 3 == 0)).square().mean() +
          second(bad(i % 3 == 1)).square().mean());
      first_optimizer.step();
      second_optimizer.step();
      first_optimizer.zero_grad();
      second_optimizer.zero_grad();
      return {
          first_optimizer.step_was_skipped(),
          second_optimizer.step_was_skipped()};
    }

    Accelerator accelerator;
    torch::nn::Sequential nets[2];
    std::unique_ptr<torch::optim::Optimizer> inner[2];
    std::tuple<
        Model<torch::nn::SequentialImpl>,
        Optimizer,
        Model<torch::nn::SequentialImpl>,
        Optimizer>
        prepared;
  };
  Pair deferred(pretend_device()), waited(at::kCPU);
  for (int i = 0; i < 9; ++i) {
    const std::pair skipped{i % 3 == 0, i % 3 == 1};
    EXPECT_EQ(deferred.step(i), skipped);
    EXPECT_EQ(waited.step(i), skipped);
  }
  for (int net = 0; net < 2; ++net) {
    const auto found = deferred.nets[net]->parameters();
    const auto wanted = waited.nets[net]->parameters();
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].cpu().equal(wanted[i])) << net << ' ' << i;
  }
}

}  // namespace deferred_step_test
}  // namespace accelerate
