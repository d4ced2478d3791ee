// optimizer.step({.max_norm = ...}) is clip_grad_norm_() and step().
#include <functional>
#include <limits>

#include <accelerate/accelerate.h>

#include "support/counted_operators.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace clipped_step_test {

using testing::CountedOperators;
using torch::Tensor;

Tensor values(at::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  const Tensor places =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble) * 0.7;
  return torch::sin(places + phase).view(sizes).to(dtype);
}

std::vector<Tensor> parameters_of(at::ScalarType dtype) {
  std::vector<Tensor> all;
  for (const std::int64_t size : {1, 3, 17, 40, 1000})
    all.push_back(values({size}, static_cast<double>(size), dtype));
  all.push_back(values({5, 7}, 0.1, dtype).t());
  all.push_back(values({}, 0.2, dtype));
  for (Tensor& each : all) each.requires_grad_();
  return all;
}

void set_gradients(const std::vector<Tensor>& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    // One has no gradient at first.
    if (i == 2 && step == 0) continue;
    Tensor parameter = parameters[i];
    parameter.mutable_grad() = values(
        parameter.sizes(),
        10 * step + static_cast<double>(i),
        parameter.scalar_type());
  }
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<Tensor>&)>;

template <class Class, class Options>
Make maker(Options options) {
  return [options](const std::vector<Tensor>& parameters) {
    const auto middle = parameters.begin() + 3;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<Tensor>(parameters.begin(), middle));
    groups.emplace_back(std::vector<Tensor>(middle, parameters.end()));
    return std::make_unique<Class>(groups, options);
  };
}

std::map<std::string, Make> all_makers() {
  using namespace torch::optim;
  return {
      {"AdamW", maker<AdamW>(AdamWOptions(1e-2))},
      {"Adam", maker<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9))},
      {"plain SGD", maker<SGD>(SGDOptions(0.1))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(1e-2))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(1e-2))},
      {"ours", maker<optim::AdamW>(AdamWOptions(1e-2))}};
}

double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-14;
  return dtype == at::kBFloat16 ? 1e-2 : 1e-6;
}

TEST(ClippedSteps, AreClippingAndAStep) {
  for (const auto& [name, make] : all_makers()) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const double max_norm : {0.5, 1e6}) {
        for (const double norm_type :
             {2.0, std::numeric_limits<double>::infinity()}) {
          SCOPED_TRACE(
              ::testing::Message()
              << name << ", " << c10::toString(dtype) << ", " << max_norm);
          const Accelerator accelerator({.cpu = true});
          const auto ours = parameters_of(dtype), theirs = parameters_of(dtype);
          const auto our_inner = make(ours), their_inner = make(theirs);
          const Optimizer at_once = accelerator.prepare(*our_inner);
          const Optimizer apart = accelerator.prepare(*their_inner);
          for (int step = 0; step < 3; ++step) {
            set_gradients(ours, step);
            set_gradients(theirs, step);
            const Tensor norm =
                at_once.step({.max_norm = max_norm, .norm_type = norm_type});
            const Tensor expected = accelerator.clip_grad_norm_(
                theirs, max_norm, {.norm_type = norm_type});
            apart.step();
            EXPECT_TRUE(norm.equal(expected));
          }
          const double tolerance = tolerance_of(dtype);
          for (std::size_t i = 0; i < ours.size(); ++i)
            EXPECT_TRUE(
                torch::allclose(ours[i], theirs[i], tolerance, tolerance))
                << i;
        }
      }
    }
  }
}

TEST(ClippedSteps, TakeNoPassOfTheirOwn) {
  const Accelerator accelerator({.cpu = true});
  const auto parameters = parameters_of(at::kFloat);
  torch::optim::AdamW adamw(parameters);
  const Optimizer prepared = accelerator.prepare(adamw);
  set_gradients(parameters, 1);
  const CountedOperators counted;
  prepared.step({.max_norm = 0.1});
  EXPECT_EQ(counted.of("aten::_fused_adamw_"), 1);
  EXPECT_EQ(counted.of("aten::_foreach_mul_"), 0);
}

TEST(ClippedSteps, WaitForTheEndOfAWindow) {
  const Accelerator accelerator(
      {.gradient_accumulation_steps = 2, .cpu = true});
  torch::nn::Linear net(3, 2);
  const auto model = accelerator.prepare(net);
  torch::optim::AdamW adamw(net->parameters());
  const Optimizer prepared = accelerator.prepare(adamw);
  for (int step = 0; step < 4; ++step) {
    const auto micro_step = accelerator.accumulate(model);
    const Tensor before = net->weight.detach().clone();
    accelerator.backward(model(torch::ones({2, 3})).square().sum());
    const Tensor norm = prepared.step({.max_norm = 0.1});
    EXPECT_EQ(norm.defined(), step % 2 == 1);
    EXPECT_EQ(net->weight.equal(before), step % 2 == 0);
    prepared.zero_grad();
  }
}

TEST(ClippedSteps, RefuseWhatCannotBe) {
  const Accelerator accelerator({.cpu = true});
  const auto parameters = parameters_of(at::kFloat);
  torch::optim::AdamW adamw(parameters);
  const Optimizer prepared = accelerator.prepare(adamw);
  set_gradients(parameters, 1);
  for (const double max_norm :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const ClippedStepOptions options{.max_norm = max_norm};
    EXPECT_THROW(prepared.step(options), ConfigError);
  }
  Tensor first = parameters[0];
  first.mutable_grad().fill_(std::numeric_limits<float>::infinity());
  const Tensor before = parameters[4].detach().clone();
  const ClippedStepOptions strict{.error_if_nonfinite = true};
  EXPECT_THROW(prepared.step(strict), ConfigError);
  EXPECT_TRUE(parameters[4].equal(before));
}

// Gradients that LibTorch steps on itself are clipped before.
TEST(ClippedSteps, ClipSparseGradients) {
  const auto run = [](bool at_once) {
    const Accelerator accelerator({.cpu = true});
    torch::manual_seed(3);
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(6, 4).sparse(true));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const Optimizer prepared = accelerator.prepare(sgd);
    const Tensor loss = net->forward(torch::tensor({1, 2, 1})).square().sum();
    accelerator.backward(loss);
    if (at_once) {
      prepared.step({.max_norm = 0.1});
    } else {
      accelerator.clip_grad_norm_(net->parameters(), 0.1);
      prepared.step();
    }
    return net->weight.detach().clone();
  };
  EXPECT_TRUE(run(true).equal(run(false)));
}

TEST(ClippedSteps, AreSkippedByAScaler) {
  const auto run = [](bool at_once) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp16, .cpu = true});
    torch::manual_seed(3);
    torch::nn::Linear net(3, 2);
    const auto model = accelerator.prepare(net);
    torch::optim::AdamW adamw(net->parameters());
    const Optimizer prepared = accelerator.prepare(adamw);
    for (int step = 0; step < 3; ++step) {
      Tensor loss = model(torch::ones({2, 3})).sum() * 0.01;
      if (step == 1) loss = loss * std::numeric_limits<float>::infinity();
      accelerator.backward(loss);
      if (at_once) {
        prepared.step({.max_norm = 0.1});
      } else {
        accelerator.clip_grad_norm_(net->parameters(), 0.1);
        prepared.step();
      }
      EXPECT_EQ(prepared.step_was_skipped(), step == 1);
      prepared.zero_grad();
    }
    return net->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(run(true), run(false), 1e-6, 1e-7));
}

// The gradients are clipped that the closure computes, not those before it.
TEST(ClippedSteps, OfTheSessionClipWhatClosuresCompute) {
  AcceleratorOptions options{.cpu = true};
  options.parallel.megatron_lm = MegatronLMOptions{.gradient_clipping = 0.5};
  const Accelerator accelerator(options);
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const auto model = accelerator.prepare(net);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const Optimizer prepared = accelerator.prepare(sgd);
  const float before = net->weight.item<float>();
  prepared.step([&] {
    prepared.zero_grad();
    Tensor loss = model(torch::full({1, 1}, 3.0)).sum();
    accelerator.backward(loss);
    return loss.detach();
  });
  EXPECT_NEAR(net->weight.item<float>(), before - 0.5F, 1e-6);
}

// The norm is that of full gradients, however ranks divide them.
TEST(ClippedSteps, AreThoseOfOneRank) {
  struct Result {
    Tensor weight, norm;
  };
  const auto run = [](const AcceleratorOptions& options, bool at_once) {
    const Accelerator accelerator(options);
    torch::nn::Sequential net(
        torch::nn::Linear(5, 7), torch::nn::GELU(), torch::nn::Linear(7, 3));
    {
      // Ranks are threads, which share the generator of random numbers.
      const torch::NoGradGuard no_grad;
      double phase = 0;
      for (Tensor& each : net->parameters())
        each.copy_(values(each.sizes(), ++phase, at::kFloat) * 0.4);
    }
    const auto model = accelerator.prepare(net);
    torch::optim::AdamW adamw(net->parameters());
    const Optimizer prepared = accelerator.prepare(adamw);
    Tensor norm;
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(
          model(values({4, 5}, step, at::kFloat)).square().sum());
      if (at_once) {
        norm = prepared.step({.max_norm = 0.1});
      } else {
        norm = accelerator.clip_grad_norm_(net->parameters(), 0.1);
        prepared.step();
      }
      prepared.zero_grad();
    }
    Tensor all;
    const auto whole = model.full_parameters();
    for (const Tensor& each : net->parameters()) {
      const Tensor flat = each.detach().flatten().clone();
      all = all.defined() ? torch::cat({all, flat}) : flat;
    }
    return Result{all, norm};
  };
  const Result expected = run({.cpu = true}, false);
  for (const bool is_sharded : {false, true}) {
    testing::run_on_ranks(3, [&](const WorldOptions& world) {
      AcceleratorOptions options{.cpu = true};
      options.world = world;
      if (is_sharded) options.parallel.shard = 3;
      const Result found = run(options, true);
      EXPECT_TRUE(torch::allclose(found.weight, expected.weight, 1e-5, 1e-6));
      EXPECT_TRUE(torch::allclose(found.norm, expected.norm, 1e-5, 1e-6));
    });
  }
}

}  // namespace clipped_step_test
}  // namespace accelerate
