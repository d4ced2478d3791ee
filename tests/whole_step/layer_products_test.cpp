// Prepared linear layers add their bias within the product, whatever the
// number of dimensions, and nothing else changes.
#include <atomic>
#include <thread>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/counted_operators.h"

namespace accelerate {
namespace layer_products_test {

using testing::CountedOperators;
using torch::Tensor;

Tensor values(at::IntArrayRef sizes, double phase = 0) {
  const Tensor places =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble) * 0.7;
  return torch::sin(places + phase).view(sizes).to(torch::kFloat);
}

// A block as programs write it.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    torch::manual_seed(1);
    up = register_module("up", torch::nn::Linear(8, 24));
    down = register_module("down", torch::nn::Linear(24, 8));
    plain = register_module(
        "plain", torch::nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)));
  }
  Tensor forward(const Tensor& x) {
    return plain(x + down(torch::gelu(up(x))));
  }
  torch::nn::Linear up = nullptr, down = nullptr, plain = nullptr;
};
TORCH_MODULE(Block);

struct Outcome {
  Tensor output;
  std::vector<Tensor> gradients;
  std::map<std::string, int> operators;

  [[nodiscard]] int count(const std::string& name) const {
    const auto found = operators.find(name);
    return found == operators.end() ? 0 : found->second;
  }
};

// Returns the outcome of the last step.
template <class Net>
Outcome run(
    Net net,
    at::IntArrayRef sizes,
    AcceleratorOptions options,
    int num_steps = 3) {
  options.cpu = true;
  const Accelerator accelerator(options);
  const auto model = accelerator.prepare(net);
  Outcome outcome;
  for (int step = 0; step < num_steps; ++step) {
    for (auto& each : net->parameters()) each.mutable_grad() = Tensor();
    Tensor x = values(sizes, 0.1).requires_grad_();
    const CountedOperators counted;
    outcome.output = model(x);
    accelerator.backward(outcome.output.square().sum());
    outcome.operators = counted.all();
    outcome.gradients = {x.grad()};
    for (const Tensor& each : net->parameters())
      outcome.gradients.push_back(each.grad());
  }
  return outcome;
}

void expect_close(const Outcome& a, const Outcome& b, double tolerance) {
  EXPECT_TRUE(torch::allclose(a.output, b.output, tolerance, tolerance));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(
        torch::allclose(a.gradients[i], b.gradients[i], tolerance, tolerance))
        << "gradient " << i;
  }
}

TEST(LayerProducts, AddNoBiasAfterProducts) {
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{2, 3, 8}, {2, 2, 3, 8}}) {
    const Outcome fused = run(Block(), sizes, {});
    const Outcome plain = run(Block(), sizes, {.fused_linear = false});
    EXPECT_EQ(plain.count("aten::addmm"), 0);
    EXPECT_EQ(fused.count("aten::addmm"), 2);
    EXPECT_EQ(fused.count("aten::mm"), plain.count("aten::mm") - 2);
    // The program calls the operator, which does nothing.
    EXPECT_EQ(fused.count("aten::add_"), plain.count("aten::add_"));
    expect_close(fused, plain, 1e-5);
  }
}

struct RecomputedBlockImpl : BlockImpl {
  Tensor forward(const Tensor& x) {
    return checkpoint(
        [&] { return BlockImpl::forward(x); },
        {.compare = CompareRecomputed::always});
  }
};
TORCH_MODULE(RecomputedBlock);

TEST(LayerProducts, AreRecomputedWithTheirBias) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    const AcceleratorOptions options{.mixed_precision = precision};
    const Outcome kept = run(Block(), {2, 3, 8}, options);
    const Outcome recomputed = run(RecomputedBlock(), {2, 3, 8}, options);
    EXPECT_EQ(kept.count("aten::addmm"), 2);
    EXPECT_EQ(recomputed.count("aten::addmm"), 4);
    EXPECT_TRUE(recomputed.output.equal(kept.output));
    for (std::size_t i = 0; i < kept.gradients.size(); ++i) {
      ASSERT_EQ(recomputed.gradients[i].defined(), kept.gradients[i].defined());
      if (kept.gradients[i].defined()) {
        EXPECT_TRUE(recomputed.gradients[i].equal(kept.gradients[i])) << i;
      }
    }
  }
}

TEST(LayerProducts, FoldInSegmentsOfModels) {
  const Outcome kept = run(Block(), {2, 3, 8}, {});
  AcceleratorOptions options;
  options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
      .custom_auto_wrap_policy = [](const std::string& name,
                                    const torch::nn::Module&) {
        return name == "up" || name == "down";
      }};
  const Outcome recomputed = run(Block(), {2, 3, 8}, options);
  EXPECT_EQ(recomputed.count("aten::addmm"), 4);
  EXPECT_TRUE(recomputed.output.equal(kept.output));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(recomputed.gradients[i].equal(kept.gradients[i])) << i;
}

// The reference multiplies as Python does.
struct PythonsBlockImpl : BlockImpl {
  Tensor forward(const Tensor& x) {
    const auto linear = [](const torch::nn::Linear& layer, const Tensor& y) {
      return torch::linear(y, layer->weight, layer->bias);
    };
    return linear(plain, x + linear(down, torch::gelu(linear(up, x))));
  }
};
TORCH_MODULE(PythonsBlock);

TEST(LayerProducts, ComputeAsPythonDoes) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    const Outcome fused =
        run(Block(), {2, 3, 8}, {.mixed_precision = precision});
    const Outcome python =
        run(PythonsBlock(),
            {2, 3, 8},
            {.mixed_precision = precision, .fused_linear = false});
    EXPECT_TRUE(fused.output.equal(python.output));
    for (std::size_t i = 0; i < fused.gradients.size(); ++i) {
      if (fused.gradients[i].defined()) {
        EXPECT_TRUE(fused.gradients[i].equal(python.gradients[i])) << i;
      }
    }
  }
}

TEST(LayerProducts, LeaveOtherShapesAlone) {
  const Outcome fused = run(Block(), {5, 8}, {});
  const Outcome plain = run(Block(), {5, 8}, {.fused_linear = false});
  EXPECT_EQ(fused.operators, plain.operators);
  EXPECT_TRUE(fused.output.equal(plain.output));
}

// Uses products in ways that do not add the bias at once.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    torch::manual_seed(2);
    layer = register_module("layer", torch::nn::Linear(4, 4));
    other = register_parameter("other", torch::ones({4}));
  }
  Tensor forward(Tensor x) {
    const Tensor usual = layer(x);
    Tensor product = x.matmul(layer->weight.t());
    switch (way) {
      case 0:  // used before
        return usual + product * 2 + product.add_(layer->bias);
      case 1:  // another vector
        return usual + product.add_(other);
      case 2:  // a multiple
        return usual + product.add_(layer->bias, 2);
      case 3:  // the input changes first
        x.mul_(2);
        return usual + product.add_(layer->bias);
      case 4:  // the input changes first, and no bias is added
        x.mul_(2);
        return usual + product * 2;
      case 5:  // a view
        return usual + product.view({-1, 4}).add_(layer->bias).view_as(usual);
      case 6:  // added to something else
        return usual + torch::ones_like(product).add_(product);
      default:  // not used by an operator
        return product;
    }
  }
  int way = 0;
  torch::nn::Linear layer = nullptr;
  Tensor other;
};
TORCH_MODULE(Odd);

struct OddOutcome {
  std::vector<Tensor> outputs, gradients;
};

OddOutcome run_odd(int way, bool is_fused, bool is_recomputed) {
  const Accelerator accelerator({.fused_linear = is_fused, .cpu = true});
  Odd net;
  const auto model = accelerator.prepare(net);
  OddOutcome outcome;
  // LibTorch's backward refuses changed inputs.
  const bool changes_the_input = way == 3 || way == 4;
  const torch::AutoGradMode mode(!changes_the_input);
  const auto step = [&](const auto& forward) {
    net->zero_grad();
    const Tensor y = model.call([&](OddImpl& odd) {
      return is_recomputed ? checkpoint([&] { return forward(odd); })
                           : forward(odd);
    });
    outcome.outputs.push_back(y.detach());
    if (changes_the_input) return;
    accelerator.backward(y.square().sum());
    for (const Tensor& each : net->parameters())
      outcome.gradients.push_back(
          each.grad().defined() ? each.grad().clone() : torch::zeros({1}));
  };
  for (int i = 0; i < 2; ++i) {
    // Only the usual product comes first.
    step([](OddImpl& odd) { return odd.layer(values({2, 3, 4})); });
  }
  net->way = way;
  for (int i = 0; i < 2; ++i)
    step([](OddImpl& odd) { return odd.forward(values({2, 3, 4}, 0.5)); });
  return outcome;
}

TEST(LayerProducts, AreExactWhateverFollows) {
  for (int way = 0; way < 8; ++way) {
    SCOPED_TRACE(::testing::Message() << "way " << way);
    const OddOutcome plain = run_odd(way, false, false);
    for (const bool is_recomputed : {false, true}) {
      SCOPED_TRACE(is_recomputed ? "recomputed" : "kept");
      const OddOutcome fused = run_odd(way, true, is_recomputed);
      for (std::size_t i = 0; i < plain.outputs.size(); ++i)
        EXPECT_TRUE(
            torch::allclose(fused.outputs[i], plain.outputs[i], 1e-5, 1e-6))
            << i;
      ASSERT_EQ(fused.gradients.size(), plain.gradients.size());
      for (std::size_t i = 0; i < plain.gradients.size(); ++i)
        EXPECT_TRUE(
            torch::allclose(fused.gradients[i], plain.gradients[i], 1e-5, 1e-6))
            << i;
    }
  }
}

// Nothing has read the product when the forward ends.
TEST(LayerProducts, HaveMemoryWhenTheForwardEnds) {
  const Accelerator accelerator({.cpu = true});
  Odd net;
  const auto model = accelerator.prepare(net);
  const torch::NoGradGuard no_grad;
  const Tensor x = values({2, 3, 4}, 0.5);
  for (int step = 0; step < 2; ++step) {
    const Tensor product = model.call(
        [&](OddImpl& odd) { return torch::matmul(x, odd.layer->weight.t()); });
    EXPECT_NE(product.const_data_ptr<float>(), nullptr);
    EXPECT_TRUE(product.equal(torch::matmul(x, net->layer->weight.t())));
    model.call([&](OddImpl& odd) { return odd.layer(x); });
  }
}

TEST(LayerProducts, ServeSeveralThreads) {
  const Accelerator accelerator({.cpu = true});
  Block net;
  const auto model = accelerator.prepare(net);
  const Tensor x = values({2, 3, 8});
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  const Tensor expected = [&] {
    const torch::NoGradGuard no_grad;
    return net->forward(x);
  }();
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 20; ++i)
        num_right += torch::allclose(model(x), expected, 1e-5, 1e-6) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 80);
}

TEST(LayerProducts, FollowWeightsThatAreReplaced) {
  const Accelerator accelerator({.cpu = true});
  Block net;
  const auto model = accelerator.prepare(net);
  for (int step = 0; step < 2; ++step) model(values({2, 3, 8}));
  const auto expect_python = [&] {
    const auto plain = [&](const torch::nn::Linear& layer, const Tensor& y) {
      return torch::linear(y, layer->weight, layer->bias);
    };
    const Tensor x = values({2, 3, 8}).to(net->up->weight.scalar_type());
    const Tensor expected =
        plain(net->plain, x + plain(net->down, torch::gelu(plain(net->up, x))));
    EXPECT_TRUE(model(x).equal(expected));
  };
  expect_python();
  const torch::NoGradGuard no_grad;
  net->up->weight.set_data(values({24, 8}, 3));
  expect_python();
  net->up->weight.mul_(2);
  net->up->bias.add_(1);
  expect_python();
  net->to(torch::kDouble);
  expect_python();
}

TEST(LayerProducts, AddTheBiasOfAttention) {
  const auto options = torch::nn::TransformerEncoderLayerOptions(8, 2)
                           .dim_feedforward(16)
                           .dropout(0);
  const auto make = [&] {
    torch::manual_seed(4);
    return torch::nn::TransformerEncoderLayer(options);
  };
  const Outcome fused = run(make(), {5, 2, 8}, {});
  const Outcome plain = run(make(), {5, 2, 8}, {.fused_linear = false});
  EXPECT_EQ(plain.count("aten::addmm"), 0);
  EXPECT_EQ(fused.count("aten::addmm"), 4);
  expect_close(fused, plain, 1e-5);
}

TEST(LayerProducts, AreDifferentiableTwice) {
  std::vector<Tensor> found;
  for (const bool is_fused : {true, false}) {
    const Accelerator accelerator({.fused_linear = is_fused, .cpu = true});
    torch::manual_seed(5);
    torch::nn::Linear net(4, 4);
    const auto model = accelerator.prepare(net);
    Tensor last;
    for (int step = 0; step < 3; ++step) {
      Tensor x = values({2, 3, 4}).requires_grad_();
      const Tensor y = torch::tanh(model(x)).sum();
      const auto first = torch::autograd::grad({y}, {x}, {}, true, true);
      last = torch::autograd::grad({first[0].square().sum()}, {net->weight})[0];
    }
    found.push_back(last);
  }
  EXPECT_TRUE(torch::allclose(found[0], found[1], 1e-5, 1e-6));
}

TEST(LayerProducts, WorkWithoutGradients) {
  std::vector<Tensor> found;
  for (const bool is_fused : {true, false}) {
    const Accelerator accelerator({.fused_linear = is_fused, .cpu = true});
    Block net;
    const auto model = accelerator.prepare(net);
    for (int step = 0; step < 3; ++step) {
      const c10::InferenceMode inference(step % 2 == 0);
      const torch::NoGradGuard no_grad;
      const CountedOperators counted;
      found.push_back(model(values({2, 3, 8})));
      if (step > 0) {
        EXPECT_EQ(counted.of("aten::addmm"), is_fused ? 2 : 0);
      }
    }
  }
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::allclose(found[i], found[3 + i], 1e-5, 1e-6));
}

}  // namespace layer_products_test
}  // namespace accelerate
