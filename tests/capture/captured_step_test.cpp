// Captured steps on the pretend device, whose graphs record operators and
// compute them in each replay.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "capture/make_optimizer.h"
#include "capture/pretend_graph.h"
#include "support/expect_error.h"
#include "support/pretend_device.h"
#include "train/session/session.h"

namespace accelerate {
namespace captured_step_test {

using testing::expect_error;
using testing::MakeOptimizer;
using testing::optimizer_of;
using testing::pretend_device;
using testing::PretendGraphCounts;
using torch::Tensor;

// Rates are exact in fp32, as kernels of replays read them.
const MakeOptimizer adamw =
    optimizer_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.0625));
const MakeOptimizer sgd =
    optimizer_of<torch::optim::SGD>(torch::optim::SGDOptions(0.125));

// A small net whose training is captured, or run by the same code without.
struct Training {
  struct Options {
    bool captures = true;
    MakeOptimizer make_optimizer = adamw;
    AcceleratorOptions accelerator = {};
    CaptureOptions capture = {};
    double dropout = 0;
  };

  explicit Training(Options chosen)
      : options(std::move(chosen)),
        accelerator(with_world(options.accelerator)),
        net(make_net(options.dropout)),
        inner(options.make_optimizer(net->parameters())),
        schedule(*inner, /*step_size=*/2, /*gamma=*/0.5),
        prepared(accelerator.prepare(net, *inner, schedule)) {
    torch::manual_seed(7);
    if (options.captures)
      optimizer().prepared()->session->capture.make_graph =
          testing::pretend_graphs(counts);
  }

  static AcceleratorOptions with_world(AcceleratorOptions options) {
    options.world = {.rank = 0, .size = 1, .device = pretend_device()};
    return options;
  }
  static torch::nn::Sequential make_net(double dropout) {
    torch::manual_seed(3);
    torch::nn::Sequential net(
        torch::nn::Linear(4, 8),
        torch::nn::Tanh(),
        torch::nn::Dropout(dropout),
        torch::nn::Linear(8, 2));
    return net;
  }

  const Model<torch::nn::SequentialImpl>& model() const {
    return std::get<0>(prepared);
  }
  const Optimizer& optimizer() const { return std::get<1>(prepared); }
  const Scheduler& scheduler() const { return std::get<2>(prepared); }

  // What most tests capture.
  Tensor step(const Tensor& x, const Tensor& y) const {
    const auto micro_step = accelerator.accumulate(model());
    const Tensor loss = (model()(x) - y).square().mean();
    accelerator.backward(loss);
    if (accelerator.sync_gradients())
      static_cast<void>(accelerator.clip_grad_norm_(model(), 0.5));
    optimizer().step();
    scheduler().step();
    optimizer().zero_grad();
    return loss;
  }
  auto captured_step() const {
    return accelerator.capture(
        [this](const Tensor& x, const Tensor& y) { return step(x, y); },
        options.capture);
  }

  std::vector<Tensor> weights() const {
    std::vector<Tensor> found;
    for (const Tensor& weight : net->parameters())
      found.push_back(weight.detach().cpu());
    return found;
  }

  std::shared_ptr<PretendGraphCounts> counts =
      std::make_shared<PretendGraphCounts>();
  Options options;
  Accelerator accelerator;
  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  torch::optim::StepLR schedule;
  std::tuple<Model<torch::nn::SequentialImpl>, Optimizer, Scheduler> prepared;
};

AcceleratorOptions fp16() {
  return {
      .mixed_precision = Precision::fp16,
      .autocast = {.enabled = false},
      .grad_scaler = {.init_scale = 1024, .growth_interval = 4}};
}

// A batch of its own for each step, on the host.
std::pair<Tensor, Tensor> batch_of(int step, int rows = 5) {
  const at::Generator generator = at::detail::createCPUGenerator(step);
  return {at::randn({rows, 4}, generator), at::randn({rows, 2}, generator)};
}
std::pair<Tensor, Tensor> on_device(const std::pair<Tensor, Tensor>& batch) {
  return {batch.first.to(pretend_device()), batch.second.to(pretend_device())};
}

void expect_same(
    const std::vector<Tensor>& found,
    const std::vector<Tensor>& wanted,
    double tolerance = 0) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], wanted[i], tolerance, tolerance, true))
        << "tensor " << i << ":\n"
        << found[i] << "\ninstead of\n"
        << wanted[i];
  }
}

// Trains captured and plainly, and compares losses, weights and rates.
CapturedStepCounts expect_parity(
    Training::Options options,
    int num_steps = 24,
    double tolerance = 0,
    const std::function<std::pair<Tensor, Tensor>(int)>& batch = [](int i) {
      return batch_of(i);
    }) {
  options.captures = true;
  const Training captured(options);
  std::vector<Tensor> found, wanted;
  const auto step = captured.captured_step();
  std::vector<double> found_rates, wanted_rates;
  for (int i = 0; i < num_steps; ++i) {
    const auto [x, y] = batch(i);
    found.push_back(step(x, y).cpu());
    found_rates.push_back(captured.optimizer().learning_rate());
  }
  options.captures = false;
  const Training plain(options);
  for (int i = 0; i < num_steps; ++i) {
    const auto [x, y] = on_device(batch(i));
    wanted.push_back(plain.step(x, y).detach().cpu());
    wanted_rates.push_back(plain.optimizer().learning_rate());
  }
  expect_same(found, wanted, tolerance);
  expect_same(captured.weights(), plain.weights(), tolerance);
  EXPECT_EQ(found_rates, wanted_rates);
  EXPECT_EQ(step.reason(), "");
  return step.counts();
}

TEST(CapturedSteps, TrainAsPlainStepsDoWithEveryOptimizer) {
  namespace optim = torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> exact{
      {"AdamW", adamw},
      {"AdamW with amsgrad",
       optimizer_of<optim::AdamW>(
           optim::AdamWOptions(0.0625).amsgrad(true).weight_decay(0.25))},
      {"Adam", optimizer_of<optim::Adam>(optim::AdamOptions(0.0625))},
      {"SGD", sgd},
      {"SGD with momentum",
       optimizer_of<optim::SGD>(
           optim::SGDOptions(0.125).momentum(0.5).nesterov(true).weight_decay(
               0.125))},
      {"Adagrad", optimizer_of<optim::Adagrad>(optim::AdagradOptions(0.125))},
      {"accelerate's AdamW",
       optimizer_of<accelerate::optim::AdamW>(optim::AdamWOptions(0.0625))}};
  for (const auto& [name, make] : exact) {
    SCOPED_TRACE(name);
    const CapturedStepCounts counts = expect_parity({.make_optimizer = make});
    EXPECT_EQ(counts.recorded, 1);
    EXPECT_EQ(counts.plain + counts.replayed, 24);
    EXPECT_LE(counts.plain, 4);
  }
  // Its rate multiplies the change, where plain steps divide by its reciprocal.
  for (const double momentum : {0.0, 0.5}) {
    const CapturedStepCounts counts = expect_parity(
        {.make_optimizer = optimizer_of<optim::RMSprop>(
             optim::RMSpropOptions(0.0625).momentum(momentum).centered(true))},
        24,
        /*tolerance=*/1e-5);
    EXPECT_EQ(counts.recorded, 1);
  }
}

TEST(CapturedSteps, DrawNewRandomNumbersInEachReplay) {
  expect_parity({.dropout = 0.5});
}

TEST(CapturedSteps, HaveAGraphForEachPlaceInAWindow) {
  const CapturedStepCounts counts =
      expect_parity({.accelerator = {.gradient_accumulation_steps = 3}}, 60);
  // The first micro-step makes gradients, the second adds, the third steps.
  EXPECT_EQ(counts.recorded, 3);
  EXPECT_GT(counts.replayed, 40);
}

TEST(CapturedSteps, SkipStepsWithInfiniteGradients) {
  for (const int window : {1, 2}) {
    for (const MakeOptimizer& make : {adamw, sgd}) {
      AcceleratorOptions options = fp16();
      options.gradient_accumulation_steps = window;
      const CapturedStepCounts counts = expect_parity(
          {.make_optimizer = make, .accelerator = options}, 40, 0, [](int i) {
            auto batch = batch_of(i);
            if (i % 11 == 10) batch.first.fill_(INFINITY);
            return batch;
          });
      EXPECT_EQ(counts.recorded, window);
    }
  }
}

TEST(CapturedSteps, KnowOnTheHostWhichStepsWereSkipped) {
  AcceleratorOptions scaled = fp16();
  scaled.grad_scaler = {.init_scale = 8};
  const Training training({.accelerator = scaled});
  const auto step = training.captured_step();
  for (int i = 0; i < 8; ++i) step(batch_of(i).first, batch_of(i).second);
  EXPECT_TRUE(step.captured());
  EXPECT_FALSE(training.optimizer().step_was_skipped());
  const auto before = training.weights();
  step(at::full({5, 4}, INFINITY), at::zeros({5, 2}));
  EXPECT_TRUE(step.captured());
  EXPECT_TRUE(training.optimizer().step_was_skipped());
  EXPECT_EQ(training.accelerator.gradient_state().scaler()->get_scale(), 4);
  expect_same(training.weights(), before);
  for (const auto& [parameter, state] : training.inner->state()) {
    EXPECT_EQ(
        static_cast<const torch::optim::AdamWParamState&>(*state).step(), 8);
  }
}

TEST(CapturedSteps, ReadRatesThatTheProgramSets) {
  for (const bool captures : {false, true}) {
    const Training training({.captures = captures, .make_optimizer = sgd});
    const auto step = training.accelerator.capture([&](const Tensor& x) {
      training.accelerator.backward(training.model()(x).sum());
      training.optimizer().step();
      training.optimizer().zero_grad();
    });
    const Tensor x = at::ones({1, 4});
    for (int i = 0; i < 5; ++i) step(x);
    EXPECT_EQ(step.captured(), captures);
    const float before = training.weights()[3][0].item<float>();
    training.optimizer().param_groups()[0].options().set_lr(2);
    step(x);
    EXPECT_EQ(step.captured(), captures);
    EXPECT_EQ(training.weights()[3][0].item<float>(), before - 2);
  }
}

TEST(CapturedSteps, ReturnTensorsOfTheirOwnMemory) {
  const Training training({});
  const auto step = training.captured_step();
  const Tensor loss = step(batch_of(0).first, batch_of(0).second);
  EXPECT_FALSE(loss.requires_grad());
  for (int i = 1; i < 6; ++i) step(batch_of(i).first, batch_of(i).second);
  const Tensor kept = step(batch_of(6).first, batch_of(6).second);
  const Tensor copy = kept.clone();
  const Tensor next = step(batch_of(7).first, batch_of(7).second);
  EXPECT_EQ(kept.data_ptr(), next.data_ptr());
  EXPECT_FALSE(copy.cpu().equal(kept.cpu()));
  EXPECT_FALSE(next.requires_grad());

  const Training cloning({.capture = {.clone_outputs = true}});
  const auto other = cloning.captured_step();
  for (int i = 0; i < 6; ++i) other(batch_of(i).first, batch_of(i).second);
  const Tensor first = other(batch_of(6).first, batch_of(6).second);
  EXPECT_NE(
      first.data_ptr(),
      other(batch_of(7).first, batch_of(7).second).data_ptr());
}

TEST(CapturedSteps, TakeAndReturnNestedValues) {
  using Batch = std::map<std::string, Tensor>;
  const Training training({});
  const auto step = training.accelerator.capture(
      [&](const Batch& batch,
          double factor) -> std::pair<Tensor, std::vector<Tensor>> {
        const Tensor out = training.model()(batch.at("x")) * factor;
        return {out.sum(), {out, batch.at("y") + 1}};
      });
  for (int i = 0; i < 8; ++i) {
    const auto [x, y] = batch_of(i);
    const double factor = i % 2 + 1;
    const auto [sum, rest] = step({{"x", x}, {"y", y}}, factor);
    const Tensor out =
        training.model()(x.to(pretend_device())).detach() * factor;
    expect_same(
        {sum.cpu(), rest.at(0).cpu(), rest.at(1).cpu()},
        {out.sum().cpu(), out.cpu(), y + 1});
  }
  // Each factor has its own graph.
  EXPECT_EQ(step.counts().recorded, 2);
}

TEST(CapturedSteps, DropGradientsFirstOrLast) {
  std::vector<std::vector<Tensor>> weights;
  for (const bool captures : {true, false}) {
    const Training training({.captures = captures, .make_optimizer = sgd});
    const auto step = training.accelerator.capture([&](const Tensor& x) {
      training.optimizer().zero_grad();
      training.accelerator.backward(training.model()(x).square().sum());
      training.optimizer().step();
    });
    for (int i = 0; i < 10; ++i) step(batch_of(i).first);
    EXPECT_EQ(step.captured(), captures) << step.reason();
    EXPECT_LE(step.counts().recorded, 1);
    weights.push_back(training.weights());
    for (const Tensor& weight : training.net->parameters())
      weights.back().push_back(weight.grad().cpu());
  }
  expect_same(weights[0], weights[1]);
}

TEST(CapturedSteps, KeepGradientsThatAreZeroedInPlace) {
  for (const bool captures : {true, false}) {
    const Training training({.captures = captures, .make_optimizer = sgd});
    const auto step = training.accelerator.capture([&](const Tensor& x) {
      training.optimizer().zero_grad(/*set_to_none=*/false);
      training.accelerator.backward(training.model()(x).sum());
      training.optimizer().step();
    });
    for (int i = 0; i < 8; ++i) step(at::full({2, 4}, static_cast<double>(i)));
    EXPECT_EQ(step.captured(), captures);
    EXPECT_EQ(training.net->parameters()[3].grad().cpu()[0].item<double>(), 2);
  }
}

// What changes between calls, and whether a new graph is needed.
struct Change {
  const char* name;
  std::function<void(Training&)> make;
  int num_recorded;
};

TEST(CapturedSteps, AreRecordedAnewWhenSomethingChanges) {
  const std::vector<Change> changes{
      {"nothing", [](Training&) {}, 1},
      {"a rate",
       [](Training& t) { t.inner->param_groups()[0].options().set_lr(0.5); },
       1},
      {"evaluation", [](Training& t) { t.net->eval(); }, 2},
      {"a frozen parameter",
       [](Training& t) { t.net->parameters()[0].set_requires_grad(false); },
       2},
      {"a parameter's memory",
       [](Training& t) {
         const torch::NoGradGuard no_grad;
         Tensor weight = t.net->parameters()[0];
         weight.set_data(weight.clone());
       },
       2},
      {"betas",
       [](Training& t) {
         static_cast<torch::optim::AdamWOptions&>(
             t.inner->param_groups()[0].options())
             .betas({0.5, 0.75});
       },
       2},
      {"the optimizer's state",
       [](Training& t) { t.inner->state().clear(); },
       2},
      {"another group",
       [](Training& t) {
         t.inner->add_param_group(
             torch::optim::OptimizerParamGroup({torch::zeros(
                 {2}, torch::requires_grad().device(pretend_device()))}));
       },
       2},
      {"a saved state that is loaded in place",
       [](Training& t) {
         const torch::NoGradGuard no_grad;
         for (Tensor& weight : t.net->parameters()) weight.mul_(0.5);
       },
       1},
      {"free_memory",
       [](Training& t) {
         t.accelerator.free_memory();
         t.prepared = t.accelerator.prepare(t.net, *t.inner, t.schedule);
       },
       2}};
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    std::vector<std::vector<Tensor>> weights;
    for (const bool captures : {true, false}) {
      Training training({.captures = captures});
      const auto step = training.captured_step();
      for (int i = 0; i < 16; ++i) {
        if (i == 8) change.make(training);
        step(batch_of(i).first, batch_of(i).second);
      }
      weights.push_back(training.weights());
      if (!captures) continue;
      EXPECT_EQ(step.reason(), "");
      EXPECT_EQ(step.counts().recorded, change.num_recorded);
    }
    expect_same(weights[0], weights[1]);
  }
}

TEST(CapturedSteps, HaveAGraphForEachShapeUpToABound) {
  const Training training({.capture = {.max_graphs = 2}});
  const auto step = training.captured_step();
  for (int i = 0; i < 40; ++i) {
    const auto [x, y] = batch_of(i, /*rows=*/2 + i / 10);
    step(x, y);
    EXPECT_LE(training.counts->alive, 2);
  }
  EXPECT_EQ(step.counts().recorded, 4);
  step.reset();
  EXPECT_EQ(training.counts->alive, 0);
  step(batch_of(0).first, batch_of(0).second);
  EXPECT_NE(step.reason().find("warms up"), std::string::npos);
}

TEST(CapturedSteps, StopRecordingWhatNeverRecurs) {
  const Training training({.capture = {.warmup_steps = 1, .max_graphs = 2}});
  const auto step = training.captured_step();
  for (int i = 0; i < 40; ++i) {
    const auto [x, y] = batch_of(i, /*rows=*/1 + i / 2);
    step(x, y);
  }
  EXPECT_NE(
      step.reason().find("changes with nearly every call"), std::string::npos)
      << step.reason();
  EXPECT_EQ(training.counts->alive, 0);
}

// What a step does besides training, and a part of the reason.
struct Obstacle {
  const char* reason;
  std::function<void(const Training&, const Tensor& loss)> act;
};

TEST(CapturedSteps, NameWhatCannotBeCapturedAndRunPlainly) {
  const std::vector<Obstacle> obstacles{
      {"aten::item", [](const auto&, const Tensor& loss) { loss.item(); }},
      {"aten::is_nonzero",
       [](const auto&, const Tensor& loss) {
         if ((loss > 0).is_nonzero()) return;
       }},
      {"aten::nonzero",
       [](const auto&, const Tensor& loss) { loss.nonzero(); }},
      {"aten::masked_select",
       [](const auto&, const Tensor& loss) { loss.masked_select(loss > 0); }},
      {"aten::to, which copies to the host's memory",
       [](const auto&, const Tensor& loss) { loss.to(at::kCPU); }},
      {"which copies from the host's memory",
       [](const auto&, const Tensor& loss) {
         static_cast<void>(loss + at::ones({1}).to(loss.device()));
       }}};
  for (const Obstacle& obstacle : obstacles) {
    SCOPED_TRACE(obstacle.reason);
    std::vector<std::vector<Tensor>> weights;
    for (const bool captures : {true, false}) {
      const Training training({.captures = captures});
      const auto step =
          training.accelerator.capture([&](const Tensor& x, const Tensor& y) {
            const Tensor loss = training.step(x, y);
            obstacle.act(training, loss);
            return loss;
          });
      for (int i = 0; i < 6; ++i) step(batch_of(i).first, batch_of(i).second);
      weights.push_back(training.weights());
      if (!captures) continue;
      EXPECT_NE(step.reason().find(obstacle.reason), std::string::npos)
          << step.reason();
      EXPECT_EQ(training.counts->begun, 0);
      EXPECT_EQ(step.counts().plain, 6);
    }
    expect_same(weights[0], weights[1]);
  }
}

// A step that does something else while it is recorded.
TEST(CapturedSteps, UndoARecordingThatFails) {
  const std::vector<Obstacle> obstacles{
      {"aten::item", [](const auto&, const Tensor& loss) { loss.item(); }},
      {"no luck",
       [](const auto&, const auto&) { throw std::runtime_error("no luck"); }},
      {"it throws", [](const auto&, const auto&) { throw 1; }}};
  for (const bool is_scaled : {false, true}) {
    for (const Obstacle& obstacle : obstacles) {
      SCOPED_TRACE(obstacle.reason);
      std::vector<std::vector<Tensor>> weights;
      for (const bool captures : {true, false}) {
        Training::Options options{.captures = captures};
        if (is_scaled) options.accelerator = fp16();
        options.accelerator.gradient_accumulation_steps = 2;
        const Training training(options);
        const auto step =
            training.accelerator.capture([&](const Tensor& x, const Tensor& y) {
              const Tensor loss = training.step(x, y);
              const PretendGraphCounts& counts = *training.counts;
              if (counts.begun > counts.ended + counts.abandoned)
                obstacle.act(training, loss);
              return loss;
            });
        for (int i = 0; i < 16; ++i)
          step(batch_of(i).first, batch_of(i).second);
        weights.push_back(training.weights());
        if (!captures) continue;
        EXPECT_NE(step.reason().find(obstacle.reason), std::string::npos)
            << step.reason();
        EXPECT_EQ(training.counts->begun, 1);
        EXPECT_EQ(training.counts->alive, 0);
        EXPECT_EQ(step.counts().replayed, 0);
        step.reset();
        for (int i = 0; i < 4; ++i) step(batch_of(i).first, batch_of(i).second);
        EXPECT_NE(step.reason().find("warms up"), std::string::npos);
      }
      expect_same(weights[0], weights[1]);
    }
  }
}

// An optimizer of the program's own, a subclass.
struct OwnAdamW : torch::optim::AdamW {
  using torch::optim::AdamW::AdamW;
};

TEST(CapturedSteps, RefuseStepsThatReadNumbersOnTheHost) {
  struct Case {
    const char* reason;
    Training::Options options;
    std::function<void(const Training&, const Tensor& x)> step;
  };
  const auto usual = [](const Training& t, const Tensor& x) {
    t.accelerator.backward(t.model()(x).square().mean());
    t.optimizer().step();
    t.optimizer().zero_grad();
  };
  const std::vector<Case> cases{
      {"only steps of fused AdamW",
       {.make_optimizer =
            optimizer_of<OwnAdamW>(torch::optim::AdamWOptions(0.0625))},
       usual},
      {"only steps of fused AdamW",
       {.accelerator = {.fused_optimizers = false}},
       usual},
      {"a step with a closure",
       {},
       [](const Training& t, const Tensor& x) {
         t.optimizer().step([&] {
           t.optimizer().zero_grad();
           const Tensor loss = t.model()(x).square().mean();
           t.accelerator.backward(loss);
           return loss;
         });
         t.optimizer().zero_grad();
       }},
      {"num_items cannot be captured",
       {.accelerator = {.gradient_accumulation_steps = 2}},
       [](const Training& t, const Tensor& x) {
         const auto micro_step = t.accelerator.accumulate(t.model());
         t.accelerator.backward(t.model()(x).square().mean(), {.num_items = 3});
         t.optimizer().step();
         t.optimizer().zero_grad();
       }},
      {"RMSprop cannot be recorded with fp16",
       {.make_optimizer = optimizer_of<torch::optim::RMSprop>(
            torch::optim::RMSpropOptions(0.0625)),
        .accelerator = fp16()},
       usual},
      {"at most one step of an optimizer",
       {.accelerator = fp16()},
       [usual](const Training& t, const Tensor& x) {
         usual(t, x);
         usual(t, x);
       }},
      {"without a step() of a prepared optimizer",
       {},
       [](const Training& t, const Tensor& x) {
         t.accelerator.backward(t.model()(x).square().mean());
         t.inner->step();
         t.inner->zero_grad();
       }},
      {"between fp16's unscaling",
       {.accelerator = fp16()},
       [](const Training& t, const Tensor& x) {
         t.optimizer().zero_grad();
         t.accelerator.backward(t.model()(x).square().mean());
         t.accelerator.unscale_gradients();
       }}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.reason);
    std::vector<std::vector<Tensor>> weights;
    for (const bool captures : {true, false}) {
      Training::Options options = each.options;
      options.captures = captures;
      const Training training(options);
      const auto step = training.accelerator.capture(
          [&](const Tensor& x) { each.step(training, x); });
      for (int i = 0; i < 12; ++i) step(batch_of(i).first);
      weights.push_back(training.weights());
      if (!captures) continue;
      EXPECT_NE(step.reason().find(each.reason), std::string::npos)
          << step.reason();
      EXPECT_EQ(step.counts().replayed, 0);
    }
    expect_same(weights[0], weights[1]);
  }
}

TEST(CapturedSteps, RunPlainlyWhereTheCallIsUnusual) {
  const Training training({});
  const auto step = training.captured_step();
  for (int i = 0; i < 6; ++i) step(batch_of(i).first, batch_of(i).second);
  EXPECT_TRUE(step.captured());
  const auto [x, y] = batch_of(7);
  step(x.clone().set_requires_grad(true), y);
  EXPECT_EQ(step.reason(), "an input requires gradients");
  step(x.to_sparse().to_dense(), y);
  EXPECT_TRUE(step.captured());
  {
    const c10::InferenceMode inference;
    const auto forward = training.accelerator.capture(
        [&](const Tensor& input) { return training.model()(input); });
    forward(x);
    EXPECT_EQ(forward.reason(), "it is in inference mode");
  }
  const auto outer = training.accelerator.capture(
      [&](const Tensor& input, const Tensor& target) {
        return step(input, target);
      });
  outer(x, y);
  EXPECT_EQ(step.reason(), "it is inside another one");
  training.accelerator.join_uneven_inputs([&, &inputs = x, &targets = y] {
    step(inputs, targets);
    EXPECT_EQ(step.reason(), "it is inside join_uneven_inputs()");
  });
  step(x, y);
  EXPECT_TRUE(step.captured());
}

TEST(CapturedSteps, LeaveModelsThatWorkOnTheHostAlone) {
  const Training training({.accelerator = {.master_weights = true}});
  const auto step = training.captured_step();
  for (int i = 0; i < 6; ++i) step(batch_of(i).first, batch_of(i).second);
  EXPECT_NE(
      step.reason().find("techniques that work on the host"), std::string::npos)
      << step.reason();
}

TEST(CapturedSteps, SurviveTheFunctionsExceptions) {
  bool throws = false;
  std::vector<std::vector<Tensor>> weights;
  for (const bool captures : {true, false}) {
    const Training training({.captures = captures});
    const auto step =
        training.accelerator.capture([&](const Tensor& x, const Tensor& y) {
          if (throws) throw std::runtime_error("the program's own");
          return training.step(x, y);
        });
    for (int i = 0; i < 10; ++i) {
      // In the warm-up, and while a new shape is seen.
      throws = i == 1 || i == 6;
      const auto [x, y] = batch_of(i, i == 6 ? 3 : 5);
      if (throws) {
        expect_error<std::runtime_error>(
            [&, &x = x, &y = y] { step(x, y); }, "the program's own");
      } else {
        step(x, y);
      }
    }
    EXPECT_EQ(step.captured(), captures);
    weights.push_back(training.weights());
  }
  expect_same(weights[0], weights[1]);
}

TEST(CapturedSteps, AreHandlesThatAreCopiedAndMoved) {
  Training training({});
  auto step = training.captured_step();
  const auto copy = step;
  const auto moved = std::move(step);
  for (int i = 0; i < 6; ++i) copy(batch_of(i).first, batch_of(i).second);
  moved(batch_of(6).first, batch_of(6).second);
  EXPECT_TRUE(moved.captured());
  // NOLINTNEXTLINE(bugprone-use-after-move)
  step(batch_of(7).first, batch_of(7).second);
  EXPECT_TRUE(step.captured());
  training.accelerator.free_memory();
  EXPECT_EQ(training.counts->alive, 0);
  expect_error<ConfigError>(
      [&] { step(batch_of(8).first, batch_of(8).second); }, "free_memory()");
}

TEST(CapturedSteps, OutliveTheirAccelerator) {
  auto counts = std::make_shared<PretendGraphCounts>();
  std::optional<CapturedStep<Tensor(Tensor)>> step;
  {
    const Training training({});
    training.optimizer().prepared()->session->capture.make_graph =
        testing::pretend_graphs(counts);
    step.emplace(
        training.accelerator.capture([](Tensor x) { return x.square(); }));
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE((*step)(at::full({2}, i)).cpu().equal(at::full({2}, i * i)));
  }
  EXPECT_TRUE(step->captured());
  step.reset();
  EXPECT_EQ(counts->alive, 0);
}

}  // namespace captured_step_test
}  // namespace accelerate
