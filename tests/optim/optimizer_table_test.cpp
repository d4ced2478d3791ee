// Every optimizer of this library takes the steps of LibTorch's in double
// precision, up to the rounding of the parameter's dtype, whatever the dtype,
// the size and the memory order of a parameter.
#include <accelerate/accelerate.h>

#include "support/table_sizes.h"

namespace accelerate {
namespace optimizer_table_test {

using torch::Tensor;

constexpr at::ScalarType kDtypes[] = {
    at::kFloat,
    at::kDouble,
    at::kBFloat16,
    at::kHalf,
    at::kComplexFloat,
    at::kComplexDouble};

// Away from zero, since squares of small numbers are none in fp16.
Tensor values(at::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  const Tensor places =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble) + phase;
  const auto part = [&](const Tensor& wave) {
    return (wave + 0.3 * wave.sign()).view(sizes);
  };
  const Tensor real = part(torch::sin(places));
  return at::isComplexType(dtype)
      ? torch::complex(real, part(torch::cos(places))).to(dtype)
      : real.to(dtype);
}

// Kernels treat full vectors, tails and chunks of a tensor differently.
std::vector<Tensor> parameters_of(at::ScalarType dtype) {
  std::vector<Tensor> all;
  double phase = 0;
  for (std::int64_t size = 1; size <= testing::largest_table_size(); ++size)
    all.push_back(values({size}, phase += 0.1, dtype));
  for (const std::int64_t size : {1000, 4099})
    all.push_back(values({size}, phase += 0.1, dtype));
  all.push_back(values({}, 5, dtype));
  all.push_back(values({0, 5}, 6, dtype));
  all.push_back(values({5, 7}, 6.1, dtype).t());
  all.push_back(values({5, 40}, 6.2, dtype).narrow(1, 2, 33));
  all.push_back(values({66}, 6.3, dtype).slice(0, 0, 66, 2));
  all.push_back(values({35}, 6.4, dtype).narrow(0, 1, 34));
  all.push_back(values({2, 3, 4, 4}, 6.5, dtype)
                    .contiguous(at::MemoryFormat::ChannelsLast));
  for (Tensor& parameter : all) parameter.requires_grad_();
  return all;
}

// Some have another memory order than their parameter, or are views whose
// conjugation or sign is still due.
void set_gradients(const std::vector<Tensor>& parameters, int step) {
  double phase = 10 * step;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i];
    const Tensor gradient =
        values(parameter.sizes(), phase += 0.7, parameter.scalar_type());
    parameter.mutable_grad() = gradient;
    if (i % 3 > 0) continue;
    if (parameter.is_complex()) {
      parameter.mutable_grad() = gradient.conj_physical().conj();
      ASSERT_TRUE(parameter.grad().is_conj());
    } else {
      parameter.mutable_grad() = torch::_neg_view(gradient.neg());
      ASSERT_TRUE(parameter.grad().is_neg());
    }
  }
}

// Complex numbers are pairs of real ones.
Tensor wide(const Tensor& tensor) {
  const Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return (plain.is_complex() ? torch::view_as_real(plain) : plain)
      .to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

double epsilon_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-7;
    case at::kHalf:
      return 0x1p-10;
    case at::kFloat:
    case at::kComplexFloat:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

// `found`, a step away from `before`, up to rounding.
void expect_rounded(
    const Tensor& found,
    const Tensor& expected,
    const Tensor& before,
    at::ScalarType dtype) {
  const double epsilon = epsilon_of(dtype);
  const Tensor allowed = 2 * epsilon * expected.abs().maximum(before.abs()) +
      32 * epsilon * (expected - before).abs() +
      (dtype == at::kHalf ? 1e-7 : 0);
  const Tensor error = (wide(found) - expected).abs();
  EXPECT_TRUE((error <= allowed).all().item<bool>())
      << "size " << found.sizes() << ", off by " << error.max().item<double>();
}

using States = std::vector<Tensor>;

States state_of(const torch::optim::SGDParamState& state) {
  return {state.momentum_buffer()};
}
template <class Adam>
States state_of(const Adam& state) {
  return {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
}
States state_of(const torch::optim::AdagradParamState& state) {
  return {state.sum()};
}

template <class State>
States state_of(torch::optim::Optimizer& optimizer, const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  return state_of(static_cast<const State&>(*found->second));
}

// Each step begins where ours has rounded to.
template <class Ours, class Theirs, class State, class Options>
void expect_steps(const Options& options, at::ScalarType dtype) {
  const std::vector<Tensor> parameters = parameters_of(dtype);
  std::vector<Tensor> references;
  for (const Tensor& parameter : parameters)
    references.push_back(wide(parameter).requires_grad_());
  Ours ours(parameters, options);
  Theirs theirs(references, options);
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < 2; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    set_gradients(parameters, step);
    std::vector<Tensor> before;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      before.push_back(wide(parameters[i]));
      references[i].mutable_grad() = wide(parameters[i].grad());
    }
    ours.step();
    theirs.step();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].numel() == 0) continue;
      expect_rounded(parameters[i], references[i], before[i], dtype);
      const States mine = state_of<State>(ours, parameters[i]);
      const States known = state_of<State>(theirs, references[i]);
      for (std::size_t s = 0; s < mine.size(); ++s) {
        if (!mine[s].defined()) continue;
        expect_rounded(
            mine[s], known[s].clone(), torch::ones_like(known[s]), dtype);
        known[s].copy_(wide(mine[s]));
      }
      references[i].copy_(wide(parameters[i]));
    }
  }
}

template <class Ours, class Theirs, class State, class Options>
void expect_steps_in_all_dtypes(const std::vector<Options>& all) {
  for (const at::ScalarType dtype : kDtypes) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(
          ::testing::Message() << c10::toString(dtype) << ", options " << i);
      expect_steps<Ours, Theirs, State>(all[i], dtype);
    }
  }
}

TEST(OptimizerTable, SgdStepsInEveryDtype) {
  using Options = torch::optim::SGDOptions;
  expect_steps_in_all_dtypes<
      optim::SGD,
      torch::optim::SGD,
      torch::optim::SGDParamState>(std::vector<Options>{
      Options(0.1),
      Options(0.1).weight_decay(0.3),
      Options(0.1).momentum(0.9).weight_decay(0.1),
      Options(0.1).momentum(0.8).dampening(0.3),
      Options(0.1).momentum(0.9).nesterov(true)});
}

TEST(OptimizerTable, AdamWStepsInEveryDtype) {
  using Options = torch::optim::AdamWOptions;
  expect_steps_in_all_dtypes<
      optim::AdamW,
      torch::optim::AdamW,
      torch::optim::AdamWParamState>(std::vector<Options>{
      Options(0.1),
      Options(0.1).weight_decay(0.3).betas({0.8, 0.9}),
      Options(0.1).amsgrad(true).eps(1e-4)});
}

TEST(OptimizerTable, AdamStepsInEveryDtype) {
  using Options = torch::optim::AdamOptions;
  expect_steps_in_all_dtypes<
      optim::Adam,
      torch::optim::Adam,
      torch::optim::AdamParamState>(std::vector<Options>{
      Options(0.1),
      // No gradient here is as large as its parameter's decay, which would make
      // a step of 0/0, up to rounding.
      Options(0.1).weight_decay(0.309017).betas({0.8, 0.9}),
      Options(0.1).amsgrad(true).eps(1e-4)});
}

TEST(OptimizerTable, AdagradStepsInEveryDtype) {
  using Options = torch::optim::AdagradOptions;
  expect_steps_in_all_dtypes<
      optim::Adagrad,
      torch::optim::Adagrad,
      torch::optim::AdagradParamState>(std::vector<Options>{
      Options(0.1),
      Options(0.1).lr_decay(0.1).weight_decay(0.01),
      Options(0.1).initial_accumulator_value(0.5).eps(1e-3)});
}

// In double precision, by the formulas of the papers.
class LomoByHand {
 public:
  LomoByHand(std::vector<Tensor> parameters, bool is_adaptive)
      : parameters_(std::move(parameters)),
        moments_(parameters_.size()),
        is_adaptive_(is_adaptive) {}

  void step(
      std::vector<Tensor> gradients,
      const optim::LomoOptions& options,
      double rate) {
    ++step_;
    double square = 0;
    for (Tensor& gradient : gradients) {
      if (const auto bound = options.clip_grad_value)
        gradient = gradient.clamp(-*bound, *bound);
      square += gradient.square().sum().item<double>();
    }
    const double factor = options.clip_grad_norm
        ? std::min(1.0, *options.clip_grad_norm / (std::sqrt(square) + 1e-6))
        : 1;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Tensor& p = parameters_[i];
      if (p.numel() == 0) continue;
      Tensor update = gradients[i] * factor;
      double scale = rate;
      if (is_adaptive_) {
        update = adapted(i, update);
        scale = rate * std::max(1e-3, root_mean_square(p));
      }
      p.mul_(1 - scale * options.weight_decay).sub_(update * scale);
    }
  }

  std::vector<Tensor>& parameters() { return parameters_; }

 private:
  static double root_mean_square(const Tensor& tensor) {
    return std::sqrt(tensor.square().mean().item<double>());
  }

  Tensor adapted(std::size_t i, const Tensor& gradient) {
    const double keep = 1 - std::pow(step_, -0.8);
    Tensor& moment = moments_[i];
    const Tensor square = gradient.square() + 1e-30;
    if (!moment.defined()) moment = torch::zeros_like(square);
    moment = keep * moment + (1 - keep) * square;
    Tensor size = moment;
    if (gradient.dim() > 1) {
      size = moment.mean(-1, true) * moment.mean(-2, true) /
          moment.mean({-1, -2}, true);
    }
    const Tensor update = gradient / size.sqrt();
    return update / std::max(1.0, root_mean_square(update));
  }

  std::vector<Tensor> parameters_;
  std::vector<Tensor> moments_;
  bool is_adaptive_;
  int step_ = 0;
};

// A row of complex numbers is one of twice as many real ones.
Tensor wide_rows(const Tensor& tensor) {
  const Tensor real = wide(tensor);
  return tensor.is_complex() && real.dim() > 1 ? real.flatten(-2) : real;
}

template <class Lomo>
void expect_lomo(
    Lomo& lomo,
    const std::vector<Tensor>& parameters,
    const optim::LomoOptions& options) {
  std::vector<Tensor> start;
  for (const Tensor& parameter : parameters)
    start.push_back(wide_rows(parameter));
  LomoByHand hand(start, std::is_same_v<Lomo, optim::AdaLomo>);
  const at::ScalarType dtype = parameters[0].scalar_type();
  for (int step = 0; step < 2; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    Tensor loss = torch::zeros({}, c10::toRealValueType(dtype));
    std::vector<Tensor> gradients, before;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor gradient = values(
          parameters[i].sizes(), static_cast<double>(i) + 10 * step, dtype);
      gradients.push_back(wide_rows(gradient));
      before.push_back(wide_rows(parameters[i]));
      const Tensor sum = (parameters[i] * gradient.conj()).sum();
      loss = loss + (sum.is_complex() ? torch::real(sum) : sum);
    }
    lomo.fused_backward(loss, 0.1);
    const torch::NoGradGuard no_grad;
    hand.step(gradients, options, 0.1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].numel() == 0) continue;
      Tensor& expected = hand.parameters()[i];
      expect_rounded(
          parameters[i],
          expected.view(wide(parameters[i]).sizes()),
          before[i].view(wide(parameters[i]).sizes()),
          dtype);
      expected.copy_(wide_rows(parameters[i]));
    }
  }
}

TEST(OptimizerTable, LomoStepsInEveryDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const optim::LomoOptions& options : std::vector<optim::LomoOptions>{
             {},
             {.weight_decay = 0.3},
             {.clip_grad_norm = 0.5},
             {.clip_grad_value = 0.7}}) {
      SCOPED_TRACE(c10::toString(dtype));
      const std::vector<Tensor> parameters = parameters_of(dtype);
      optim::Lomo lomo(parameters, options);
      expect_lomo(lomo, parameters, options);
      const std::vector<Tensor> others = parameters_of(dtype);
      optim::AdaLomo adalomo(
          others,
          {.weight_decay = options.weight_decay,
           .clip_grad_norm = options.clip_grad_norm,
           .clip_grad_value = options.clip_grad_value});
      expect_lomo(adalomo, others, options);
    }
  }
}

}  // namespace optimizer_table_test
}  // namespace accelerate
