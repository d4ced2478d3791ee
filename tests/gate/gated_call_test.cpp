// Keepers that run an operator on different arguments, replace it, or change
// its result. Each case compares forward and backward with a model written that
// way.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "gate/gate.h"

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace gated_call_test {

using testing::expect_error;
using torch::Tensor;
namespace nn = torch::nn;
using Call = std::function<void(GateKeeper&, GatedCall&)>;

std::string name_of(const GatedCall& call) {
  return call.operation().operator_name().name;
}

/// Keeps `tensors` by their index, and calls a test's function.
class Keeper : public GateKeeper {
 public:
  Keeper(const std::vector<Tensor>& tensors, Call on_call)
      : on_call_(std::move(on_call)) {
    for (const Tensor& tensor : tensors) {
      gates_.push_back(std::make_unique<GatedTensor>(
          tensor,
          UnavailableMessages{"not here", "gone"},
          *this,
          gates_.size()));
    }
  }
  void call(GatedCall& call) override { on_call_(*this, call); }
  void release() {
    for (const auto& gate : gates_) gate->release();
  }

 private:
  Call on_call_;
  std::vector<std::unique_ptr<GatedTensor>> gates_;
};

/// A weight in int8, with one scale per row.
struct Quantised {
  explicit Quantised(const Tensor& weight)
      : scale(weight.detach().abs().amax(1, true) / 127),
        values((weight.detach() / scale).round().to(torch::kChar)) {}
  Tensor full() const { return values.to(torch::kFloat) * scale; }
  /// The view of the dequantised weight that corresponds to `view`.
  Tensor like(const Tensor& view) const {
    return full().as_strided(
        view.sizes(), view.strides(), view.storage_offset());
  }
  Tensor scale, values;
};

bool is_view(const GatedCall& call) {
  return call.operation().schema().returns().front().alias_info() != nullptr;
}

struct Result {
  Tensor output, input_grad, weight_grad, bias_grad;
};

Result run(nn::Linear linear, const Tensor& input) {
  const Tensor x = input.detach().clone().requires_grad_();
  const Tensor output = linear(x);
  output.pow(2).sum().backward();
  return {output, x.grad(), linear->weight.grad(), linear->bias.grad()};
}

void expect_equal(const Result& found, const Result& expected) {
  EXPECT_TRUE(torch::equal(found.output, expected.output));
  EXPECT_TRUE(torch::equal(found.input_grad, expected.input_grad));
  EXPECT_TRUE(torch::equal(found.bias_grad, expected.bias_grad));
  ASSERT_EQ(found.weight_grad.defined(), expected.weight_grad.defined());
  if (expected.weight_grad.defined()) {
    EXPECT_TRUE(torch::equal(found.weight_grad, expected.weight_grad));
  }
}

std::pair<nn::Linear, Quantised> quantised_linear(bool is_trained) {
  torch::manual_seed(5);
  nn::Linear linear(6, 4);
  const Quantised quantised(linear->weight);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(quantised.full());
  }
  linear->weight.set_requires_grad(is_trained);
  return {linear, quantised};
}

// Matrices are multiplied by addmm, other inputs by matmul.
const std::vector<std::vector<std::int64_t>> kInputs{{3, 6}, {2, 3, 6}};

TEST(GatedCall, RunsOnADequantisedCopyOfAFrozenWeight) {
  for (const auto& sizes : kInputs) {
    auto [linear, quantised] = quantised_linear(/*is_trained=*/false);
    const Tensor x = torch::randn(sizes);
    const Result expected = run(linear, x);
    linear->bias.mutable_grad().reset();
    std::vector<std::string> names;
    Keeper keeper(
        {linear->weight},
        [&, &codes = quantised](GateKeeper& self, GatedCall& call) {
          names.push_back(name_of(call));
          for (c10::IValue& argument : call.arguments()) {
            if (!is_view(call) && GatedTensor::unit_of(argument, self))
              argument = codes.like(argument.toTensor());
          }
          call.run();
        });
    keeper.release();
    expect_equal(run(linear, x), expected);
    EXPECT_EQ(names.size(), 2u) << "the view and the product; autograd saved "
                                   "the copy, so the backward calls no keeper";
  }
}

// Keeps the graph to the weight, and dequantises again in backward.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      const Tensor& weight_t,
      const Tensor& bias,
      std::int64_t quantised) {
    context->save_for_backward({x});
    context->saved_data["weight"] = quantised;
    return torch::addmm(bias, x, from(quantised).like(weight_t));
  }
  static std::vector<Tensor> backward(
      torch::autograd::AutogradContext* context,
      std::vector<Tensor> gradients) {
    const Quantised& weight = from(context->saved_data["weight"].toInt());
    const Tensor x = context->get_saved_variables()[0];
    const Tensor& g = gradients[0];
    return {g.mm(weight.full()), x.t().mm(g), g.sum(0), Tensor()};
  }
  static const Quantised& from(std::int64_t address) {
    return *reinterpret_cast<const Quantised*>(address);
  }
};

TEST(GatedCall, ReplacesTheProductOfATrainedWeight) {
  auto [linear, quantised] = quantised_linear(/*is_trained=*/true);
  const auto address = reinterpret_cast<std::int64_t>(&quantised);
  const Tensor x = torch::randn(kInputs[0]);
  const Result expected = run(linear, x);
  linear->zero_grad();
  Keeper keeper({linear->weight}, [&](GateKeeper&, GatedCall& call) {
    if (name_of(call) != "aten::addmm") return call.run();
    const auto arguments = call.arguments();
    call.replace(Product::apply(
        arguments[1].toTensor(),
        arguments[2].toTensor(),
        arguments[0].toTensor(),
        address));
  });
  keeper.release();
  expect_equal(run(linear, x), expected);
}

TEST(GatedCall, ReplacesTheResultAboveAutograd) {
  torch::manual_seed(5);
  nn::Linear linear(6, 4);
  const Tensor a = torch::randn({6, 2}).requires_grad_();
  const Tensor b = torch::randn({2, 4}).requires_grad_();
  const Tensor x = torch::randn({3, 6}).requires_grad_();
  const auto gradients = [&](const Tensor& output) {
    return torch::autograd::grad(
        {output.pow(2).sum()}, {x, a, b, linear->weight, linear->bias});
  };
  const Tensor expected = linear(x) + x.mm(a).mm(b);
  const auto expected_gradients = gradients(expected);

  int num_backward = 0;
  // A low-rank adapter for an unmodified module.
  Keeper keeper({linear->weight}, [&](GateKeeper&, GatedCall& call) {
    if (!torch::GradMode::is_enabled()) ++num_backward;
    if (name_of(call) != "aten::addmm") return call.run();
    const Tensor input = call.arguments()[1].toTensor();
    call.run();
    EXPECT_TRUE(call.arguments().empty());
    const Tensor product = call.results()[0].toTensor();
    EXPECT_TRUE(product.requires_grad()) << "autograd has recorded it";
    call.results()[0] = product + input.mm(a).mm(b);
  });
  const Tensor output = linear(x);
  EXPECT_TRUE(torch::equal(output, expected));
  const auto found = gradients(output);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::equal(found[i], expected_gradients[i])) << i;
  EXPECT_GT(num_backward, 0) << "the backward reads the kept weight";
}

TEST(GatedCall, ComesBeforeAutocast) {
  nn::Linear linear(6, 4);
  std::vector<at::ScalarType> seen;
  Keeper keeper({linear->weight}, [&](GateKeeper& self, GatedCall& call) {
    for (const c10::IValue& argument : call.arguments()) {
      if (GatedTensor::unit_of(argument, self))
        seen.push_back(argument.toTensor().scalar_type());
    }
    call.run();
    seen.push_back(call.results()[0].toTensor().scalar_type());
  });
  at::autocast::set_autocast_enabled(at::kCPU, true);
  linear(torch::randn({3, 6}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(
      seen,
      (std::vector<at::ScalarType>{
          at::kFloat, at::kFloat, at::kFloat, at::kBFloat16}));
}

TEST(GatedCall, CallsSeveralKeepersInTheOrderOfTheArguments) {
  nn::Linear linear(6, 4);
  std::vector<std::string> calls;
  const auto recorder = [&](const std::string& name) {
    return [&calls, name](GateKeeper& self, GatedCall& call) {
      if (name_of(call) != "aten::addmm") return call.run();
      EXPECT_EQ(
          GatedTensor::unit_of(call.arguments()[0], self).has_value(),
          name == "bias");
      calls.push_back(name);
      call.run();
      calls.push_back(name + " done");
    };
  };
  Keeper weight_keeper({linear->weight}, recorder("weight"));
  Keeper bias_keeper({linear->bias}, recorder("bias"));
  linear(torch::randn({3, 6}));
  EXPECT_EQ(
      calls,
      (std::vector<std::string>{"bias", "weight", "weight done", "bias done"}));
}

TEST(GatedCall, IsBypassedByTheKeepersOwnOperators) {
  const Tensor kept = torch::ones({3});
  int num_calls = 0;
  Keeper keeper({kept}, [&](GateKeeper&, GatedCall& call) {
    ++num_calls;
    kept.add_(1);
    call.run();
  });
  EXPECT_EQ(kept.sum().item<float>(), 6);
  EXPECT_EQ(num_calls, 1);
}

TEST(GatedCall, IsRunOnceOrReplaced) {
  const Tensor kept = torch::ones({3});
  int num_runs = 0;
  Keeper keeper({kept}, [&](GateKeeper&, GatedCall& call) {
    for (int i = 0; i < num_runs; ++i) call.run();
  });
  expect_error<InternalError>([&] { kept.sum(); }, "neither ran aten::sum");
  num_runs = 2;
  expect_error<InternalError>([&] { kept.sum(); }, "but ran it twice");
  num_runs = 1;
  EXPECT_EQ(kept.sum().item<float>(), 3);
}

}  // namespace gated_call_test
}  // namespace accelerate::detail
