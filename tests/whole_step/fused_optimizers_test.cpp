// Prepared optimizers of LibTorch take fused steps on their own options and
// state.
#include <sstream>

#include <accelerate/accelerate.h>

#include "support/counted_operators.h"

namespace accelerate {
namespace fused_optimizers_test {

using testing::CountedOperators;
using torch::Tensor;

Tensor values(at::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  const Tensor places =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble) * 0.7;
  return (torch::sin(places + phase) * 0.5).view(sizes).to(dtype);
}

// Whole vectors, tails, another memory order, a slice, a scalar, none.
std::vector<Tensor> parameters_of(at::ScalarType dtype) {
  std::vector<Tensor> all;
  double phase = 0;
  for (const std::int64_t size : {1, 2, 7, 8, 15, 16, 17, 33, 1000, 4099})
    all.push_back(values({size}, phase += 0.3, dtype));
  all.push_back(values({}, 5, dtype));
  all.push_back(values({0, 3}, 6, dtype));
  all.push_back(values({5, 7}, 6.1, dtype).t());
  all.push_back(values({5, 40}, 6.2, dtype).narrow(1, 2, 33));
  for (Tensor& each : all) each.requires_grad_();
  return all;
}

void set_gradients(const std::vector<Tensor>& parameters, int step) {
  double phase = 10 * step;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i];
    // One has none at first, one never.
    if ((i == 3 && step < 2) || i == 5) continue;
    parameter.mutable_grad() =
        values(parameter.sizes(), phase += 0.7, parameter.scalar_type());
  }
}

// The units in the last place by which `a` differs from `b`, at most; the units
// are those of the larger one of where a step began and where it ended.
double units_between(const Tensor& a, const Tensor& b, const Tensor& before) {
  if (a.numel() == 0) return 0;
  const int digits = a.scalar_type() == at::kDouble ? 53 : 24;
  const auto wide = [](const Tensor& tensor) {
    return tensor.detach().to(at::kDouble);
  };
  const Tensor exponent =
      std::get<1>(torch::frexp(wide(b).abs().maximum(wide(before).abs())));
  const Tensor unit =
      torch::ldexp(torch::ones_like(wide(b)), exponent - digits);
  return ((wide(a) - wide(b)).abs() / unit).max().item<double>();
}

// Two groups with options of their own.
template <class Class, class Options>
std::unique_ptr<Class> make(
    const std::vector<Tensor>& parameters,
    const Options& options) {
  const auto middle = parameters.begin() + 6;
  Options other = options;
  other.set_lr(options.get_lr() * 0.5);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>(parameters.begin(), middle));
  groups.emplace_back(
      std::vector<Tensor>(middle, parameters.end()),
      std::make_unique<Options>(other));
  return std::make_unique<Class>(groups, options);
}

// Each step begins where LibTorch's own has ended, states included.
template <class Class, class Options>
void expect_libtorchs_steps(const std::vector<Options>& all) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(
          ::testing::Message() << c10::toString(dtype) << ", options " << i);
      const auto ours = parameters_of(dtype), theirs = parameters_of(dtype);
      const Accelerator accelerator;
      const auto own = make<Class>(theirs, all[i]);
      const auto given = make<Class>(ours, all[i]);
      const Optimizer prepared = accelerator.prepare(*given);
      for (int step = 0; step < 4; ++step) {
        set_gradients(ours, step);
        set_gradients(theirs, step);
        std::vector<Tensor> before;
        for (const Tensor& each : ours) before.push_back(each.detach().clone());
        prepared.step();
        own->step();
        const torch::NoGradGuard no_grad;
        for (std::size_t p = 0; p < ours.size(); ++p) {
          EXPECT_LE(units_between(ours[p], theirs[p], before[p]), 2)
              << "step " << step << ", size " << ours[p].sizes();
          ours[p].copy_(theirs[p]);
        }
      }
    }
  }
}

TEST(PreparedOptimizers, StepLikeLibTorchsWithinTwoUnits) {
  using AdamW = torch::optim::AdamWOptions;
  expect_libtorchs_steps<torch::optim::AdamW>(std::vector<AdamW>{
      AdamW(1e-3),
      AdamW(1e-3).weight_decay(0.3).betas({0.8, 0.9}),
      AdamW(1e-3).amsgrad(true).eps(1e-4)});
  using Adam = torch::optim::AdamOptions;
  expect_libtorchs_steps<torch::optim::Adam>(std::vector<Adam>{
      Adam(1e-3),
      Adam(1e-3).weight_decay(0.3).betas({0.8, 0.9}),
      Adam(1e-3).amsgrad(true)});
  using SGD = torch::optim::SGDOptions;
  expect_libtorchs_steps<torch::optim::SGD>(std::vector<SGD>{
      SGD(1e-3),
      SGD(1e-3).momentum(0.9).weight_decay(0.1),
      SGD(1e-3).momentum(0.8).dampening(0.3),
      SGD(1e-3).momentum(0.9).nesterov(true)});
  using Adagrad = torch::optim::AdagradOptions;
  expect_libtorchs_steps<torch::optim::Adagrad>(std::vector<Adagrad>{
      Adagrad(1e-3),
      Adagrad(1e-3).lr_decay(0.1).weight_decay(0.01),
      Adagrad(1e-3).initial_accumulator_value(0.5)});
  using RMSprop = torch::optim::RMSpropOptions;
  expect_libtorchs_steps<torch::optim::RMSprop>(std::vector<RMSprop>{
      RMSprop(1e-3),
      RMSprop(1e-3).weight_decay(0.1).momentum(0.9),
      RMSprop(1e-3).centered(true).alpha(0.9),
      RMSprop(1e-3).centered(true).momentum(0.8)});
}

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(8, 32));
    second = register_module("second", torch::nn::Linear(32, 1));
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = nullptr, second = nullptr;
};

template <class Class, class Options>
std::vector<double> curve(const Options& options, bool is_fused) {
  const Accelerator accelerator({.fused_optimizers = is_fused});
  const auto net = std::make_shared<Net>();
  Class optimizer(net->parameters(), options);
  const auto prepared = accelerator.prepare(optimizer);
  torch::manual_seed(4);
  const Tensor x = torch::randn({64, 8});
  const Tensor y = torch::sin(x.sum(1, true));
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    const Tensor loss = torch::mse_loss(net->forward(x), y);
    accelerator.backward(loss);
    prepared.step();
    prepared.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

template <class Class, class Options>
void expect_same_curve(const Options& options) {
  const auto fused = curve<Class>(options, true);
  const auto own = curve<Class>(options, false);
  for (std::size_t i = 0; i < fused.size(); ++i)
    ASSERT_NEAR(fused[i], own[i], 1e-4 * own[i] + 1e-6) << "step " << i;
  EXPECT_LT(fused.back(), 0.5 * fused.front());
}

TEST(PreparedOptimizers, FollowLibTorchsCurve) {
  expect_same_curve<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  expect_same_curve<torch::optim::Adam>(
      torch::optim::AdamOptions(1e-2).amsgrad(true));
  expect_same_curve<torch::optim::SGD>(
      torch::optim::SGDOptions(1e-2).momentum(0.9));
  expect_same_curve<torch::optim::Adagrad>(torch::optim::AdagradOptions(3e-2));
  expect_same_curve<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3));
}

// Parameters with gradients.
std::vector<Tensor> many(at::ScalarType dtype, int num) {
  std::vector<Tensor> all;
  for (int i = 0; i < num; ++i) {
    all.push_back(torch::ones({3, 2}, dtype).requires_grad_());
    all.back().mutable_grad() = torch::ones({3, 2}, dtype);
  }
  return all;
}

template <class Class>
int operators_of_a_step(Class& optimizer, const AcceleratorOptions& options) {
  const Accelerator accelerator(options);
  const Optimizer prepared = accelerator.prepare(optimizer);
  prepared.step();
  const CountedOperators counted;
  prepared.step();
  return counted.total();
}

TEST(PreparedOptimizers, TakeTwoOperatorsPerGroupAndDtype) {
  auto first = many(at::kFloat, 200);
  const auto wide = many(at::kDouble, 50);
  first.insert(first.end(), wide.begin(), wide.end());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(first);
  groups.emplace_back(many(at::kFloat, 50));
  torch::optim::AdamW adamw(groups, torch::optim::AdamWOptions(0.1));
  EXPECT_LE(operators_of_a_step(adamw, {}), 2 * 3);
  EXPECT_GT(operators_of_a_step(adamw, {.fused_optimizers = false}), 300 * 5);
  torch::optim::SGD sgd(
      many(at::kFloat, 300), torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_LE(operators_of_a_step(sgd, {}), 2);
  torch::optim::Adagrad adagrad(many(at::kFloat, 300), 0.1);
  EXPECT_LE(operators_of_a_step(adagrad, {}), 2);
  torch::optim::RMSprop rmsprop(many(at::kFloat, 300), 0.1);
  EXPECT_LE(operators_of_a_step(rmsprop, {}), 5);
}

// A class of the program's own, whose step counts.
struct Counting : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    ++num_steps;
    return torch::optim::SGD::step(closure);
  }
  int num_steps = 0;
};

TEST(PreparedOptimizers, LeaveSubclassesAlone) {
  Counting optimizer(many(at::kFloat, 3), 0.1);
  operators_of_a_step(optimizer, {});
  EXPECT_EQ(optimizer.num_steps, 2);
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  return out.str();
}

TEST(PreparedOptimizers, KeepLibTorchsState) {
  const auto ours = many(at::kFloat, 4), theirs = many(at::kFloat, 4);
  torch::optim::AdamW optimizer(ours, torch::optim::AdamWOptions(0.1));
  torch::optim::AdamW own(theirs, torch::optim::AdamWOptions(0.1));
  optimizer.step();  // LibTorch's state before prepare()
  own.step();
  const Accelerator accelerator;
  accelerator.prepare(optimizer).step();
  own.step();
  using State = torch::optim::AdamWParamState;
  const auto& state = static_cast<const State&>(
      *optimizer.state().at(ours[0].unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 2);
  EXPECT_FALSE(state.max_exp_avg_sq().defined());
  // What LibTorch saves can be loaded into an optimizer that nobody prepared.
  std::istringstream in(saved(optimizer));
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  torch::optim::AdamW fresh(theirs, torch::optim::AdamWOptions(0.5));
  fresh.load(archive);
  fresh.step();
  own.step();
  EXPECT_TRUE(torch::allclose(ours[1] + (theirs[1] - ours[1]), theirs[1]));
  const auto& loaded = static_cast<const State&>(
      *fresh.state().at(theirs[0].unsafeGetTensorImpl()));
  EXPECT_EQ(loaded.step(), 3);
}

TEST(PreparedOptimizers, LeaveSparseAndComplexOnesToLibTorch) {
  const auto make_net = [] {
    torch::manual_seed(5);
    return torch::nn::Embedding(
        torch::nn::EmbeddingOptions(10, 3).sparse(true));
  };
  const auto run = [&](bool is_fused) {
    const Accelerator accelerator({.fused_optimizers = is_fused});
    auto net = make_net();
    Tensor phase = torch::complex(torch::ones({3}), torch::ones({3}));
    phase.requires_grad_();
    auto parameters = net->parameters();
    parameters.push_back(phase);
    torch::optim::SGD sgd(parameters, 0.1);
    const Optimizer prepared = accelerator.prepare(sgd);
    for (int step = 0; step < 3; ++step) {
      const Tensor loss =
          net(torch::tensor({1, 2, 2})).square().sum() + phase.abs().sum();
      accelerator.backward(loss);
      EXPECT_TRUE(net->weight.grad().is_sparse());
      prepared.step();
      prepared.zero_grad();
    }
    return torch::cat(
        {net->weight.detach().flatten(),
         torch::view_as_real(phase.detach()).flatten()});
  };
  EXPECT_TRUE(run(true).equal(run(false)));
}

TEST(PreparedOptimizers, RunAClosureOnce) {
  const auto parameters = many(at::kFloat, 2);
  torch::optim::SGD sgd(parameters, 0.5);
  const Accelerator accelerator;
  const Optimizer prepared = accelerator.prepare(sgd);
  int num_calls = 0;
  for (int step = 0; step < 2; ++step) {
    const Tensor loss = prepared.step([&] {
      ++num_calls;
      EXPECT_TRUE(torch::GradMode::is_enabled());
      prepared.zero_grad();
      Tensor computed = (parameters[0] + parameters[1]).sum();
      accelerator.backward(computed);
      return computed;
    });
    EXPECT_EQ(loss.item<float>(), 12 - step * 6);
  }
  EXPECT_EQ(num_calls, 2);
}

TEST(PreparedOptimizers, StepWithAScaler) {
  const auto run = [](bool is_fused) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp16,
         .fused_optimizers = is_fused,
         .cpu = true});
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto prepared = accelerator.prepare(sgd);
    for (int step = 0; step < 3; ++step) {
      Tensor loss = net->forward(torch::ones({2, 8})).sum();
      // The second step's gradients are not finite.
      if (step == 1) loss = loss * std::numeric_limits<float>::infinity();
      accelerator.backward(loss);
      prepared.step();
      EXPECT_EQ(prepared.step_was_skipped(), step == 1);
      prepared.zero_grad();
    }
    return net->first->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(run(true), run(false), 1e-6, 1e-7));
}

}  // namespace fused_optimizers_test
}  // namespace accelerate
