#include <accelerate/activation_checkpointing.h>

#include <torch/library.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace checkpoint_test {

using testing::expect_error;
using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

// An operator that counts how often it runs; it saves nothing.
int num_counted = 0;
Tensor counted(const Tensor& tensor) {
  ++num_counted;
  return tensor + 1;
}
TORCH_LIBRARY(checkpoint_test, library) {
  library.def("counted(Tensor x) -> Tensor", &counted);
}
Tensor call_counted(const Tensor& tensor) {
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("checkpoint_test::counted", "")
          .typed<Tensor(const Tensor&)>();
  return operation.call(tensor);
}

struct Run {
  Tensor output;
  std::vector<Tensor> gradients;
  std::vector<Tensor> buffers;
};

Run run(
    nn::Module& module,
    const Tensor& input,
    const std::function<Tensor(const Tensor&)>& forward,
    bool checkpoints,
    const CheckpointOptions& options = {}) {
  torch::manual_seed(7);
  const Tensor x = input.is_floating_point()
      ? input.clone().requires_grad_(true)
      : input.clone();
  const Tensor output = checkpoints
      ? checkpoint([&] { return forward(x); }, options)
      : forward(x);
  // Random numbers drawn in between must not matter.
  const Tensor other = torch::rand({5});
  output.pow(2).sum().backward();
  Run result{output.detach().clone(), {}, {}};
  for (const Tensor& parameter : module.parameters()) {
    result.gradients.push_back(
        parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  }
  if (x.grad().defined()) result.gradients.push_back(x.grad().clone());
  result.gradients.push_back(other);
  result.gradients.push_back(torch::rand({3}));
  module.zero_grad();
  for (const Tensor& buffer : module.buffers())
    result.buffers.push_back(buffer.clone());
  return result;
}

void expect_equal(const Run& found, const Run& expected) {
  EXPECT_TRUE(torch::equal(found.output, expected.output));
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i) {
    ASSERT_EQ(found.gradients[i].defined(), expected.gradients[i].defined());
    if (!found.gradients[i].defined()) continue;
    EXPECT_TRUE(torch::equal(found.gradients[i], expected.gradients[i])) << i;
  }
  for (std::size_t i = 0; i < found.buffers.size(); ++i)
    EXPECT_TRUE(torch::equal(found.buffers[i], expected.buffers[i])) << i;
}

// Whether LibTorch has kernels for such a call on this processor: not every
// processor has an LSTM in bf16.
bool has_kernels(
    const std::function<Tensor(const Tensor&)>& call,
    const Tensor& x) {
  try {
    call(x.clone().requires_grad_(x.is_floating_point()));
    return true;
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("primitive descriptor") ==
        std::string_view::npos)
      throw;
    return false;
  }
}

// Runs three times, so that later runs use what the first one learned.
void expect_same_with_checkpoint(
    const std::function<std::shared_ptr<nn::Module>()>& make,
    const Tensor& input,
    const std::function<Tensor(nn::Module&, const Tensor&)>& forward) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16 ? "under autocast" : "in fp32");
    torch::manual_seed(1);
    const auto plain = make();
    torch::manual_seed(1);
    const auto checkpointed = make();
    const auto call = [&](nn::Module& module) {
      return [&, bf16](const Tensor& x) {
        std::optional<AutocastScope> autocast;
        if (bf16) autocast.emplace(torch::kCPU, torch::kBFloat16);
        return forward(module, x).to(torch::kFloat);
      };
    };
    if (bf16 && !has_kernels(call(*make()), input)) continue;
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(step);
      expect_equal(
          run(*checkpointed, input, call(*checkpointed), true),
          run(*plain, input, call(*plain), false));
    }
  }
}

TEST(Checkpoint, GivesTheSameResultsBitwise) {
  {
    SCOPED_TRACE("MLP with dropout");
    expect_same_with_checkpoint(
        [] {
          return nn::Sequential(
                     nn::Linear(8, 16),
                     nn::GELU(),
                     nn::Dropout(0.5),
                     nn::Linear(16, 4),
                     nn::ReLU(nn::ReLUOptions().inplace(true)))
              .ptr();
        },
        torch::randn({6, 8}),
        [](nn::Module& module, const Tensor& x) {
          return module.as<nn::Sequential>()->forward(x);
        });
  }
  {
    SCOPED_TRACE("convolution, batch normalisation");
    expect_same_with_checkpoint(
        [] {
          return nn::Sequential(
                     nn::Conv2d(3, 4, 3),
                     nn::BatchNorm2d(4),
                     nn::ReLU(),
                     nn::MaxPool2d(2),
                     nn::Conv2d(4, 2, 3),
                     nn::GroupNorm(1, 2))
              .ptr();
        },
        torch::randn({2, 3, 10, 10}),
        [](nn::Module& module, const Tensor& x) {
          return module.as<nn::Sequential>()->forward(x);
        });
  }
  {
    SCOPED_TRACE("LSTM");
    expect_same_with_checkpoint(
        [] {
          return nn::LSTM(nn::LSTMOptions(5, 7).num_layers(2).dropout(0.3))
              .ptr();
        },
        torch::randn({4, 3, 5}),
        [](nn::Module& module, const Tensor& x) {
          return std::get<0>(module.as<nn::LSTM>()->forward(x));
        });
  }
  {
    SCOPED_TRACE("transformer");
    expect_same_with_checkpoint(
        [] {
          return nn::TransformerEncoder(
                     nn::TransformerEncoderOptions(
                         nn::TransformerEncoderLayerOptions(8, 2)
                             .dim_feedforward(16)
                             .dropout(0.1),
                         2))
              .ptr();
        },
        torch::randn({5, 2, 8}),
        [](nn::Module& module, const Tensor& x) {
          return module.as<nn::TransformerEncoder>()->forward(x);
        });
  }
  {
    SCOPED_TRACE("embedding, attention, indexing");
    expect_same_with_checkpoint(
        [] { return nn::Embedding(11, 8).ptr(); },
        torch::arange(6).view({2, 3}),
        [](nn::Module& module, const Tensor& x) {
          const Tensor h = module.as<nn::Embedding>()->forward(x);
          const Tensor a = at::scaled_dot_product_attention(h, h, h);
          Tensor mask = torch::zeros_like(a);
          mask.index_put_({torch::indexing::Slice(), 1}, 1.0);
          const Tensor picked =
              a.index({torch::tensor({true, false}), torch::indexing::Slice()});
          return torch::cat({a * mask, picked}, 0).slice(0, 0, 2);
        });
  }
}

TEST(Checkpoint, RunsTheFunctionOnceAndStopsEarly) {
  const Tensor w = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = torch::randn({4, 4}, torch::requires_grad());
  int num_calls = 0;
  num_counted = 0;
  const Tensor y = checkpoint([&] {
    ++num_calls;
    const Tensor a = call_counted(x);
    const Tensor b = torch::tanh(a.matmul(w));
    return call_counted(b);
  });
  EXPECT_EQ(num_counted, 2);
  y.sum().backward();
  EXPECT_EQ(num_calls, 1);
  // The second operator runs after the last operator that saved tensors.
  EXPECT_EQ(num_counted, 3);
}

TEST(Checkpoint, FreesSavedTensorsUntilBackward) {
  const Tensor w = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = torch::randn({4, 4}, torch::requires_grad());
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> middle;
  Tensor y = checkpoint([&] {
    const Tensor a = torch::tanh(x.matmul(w));
    middle = a.storage().getWeakStorageImpl();
    return torch::tanh(a.matmul(w));
  });
  EXPECT_TRUE(middle->expired());
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Checkpoint, HandlesChangesInPlace) {
  const Tensor w = torch::randn({3, 3}, torch::requires_grad());
  const Tensor x0 = torch::randn({3, 3});
  const auto forward = [&](const Tensor& x) {
    Tensor h = x * 2;  // from outside, changed by the function
    const auto inner = [&] {
      const Tensor p = h * w;  // saves the current h
      Tensor q = torch::zeros({3, 3});
      q.copy_(p);
      q[0] = p[1] * p[1];
      q.add_(h);
      return q;
    };
    return std::function<Tensor()>(inner)();
  };
  const auto gradient = [&](bool checkpoints) {
    const Tensor x = x0.clone().requires_grad_(true);
    const Tensor y =
        checkpoints ? checkpoint([&] { return forward(x); }) : forward(x);
    y.pow(3).sum().backward();
    const Tensor of_w = w.grad().clone();
    w.mutable_grad().reset();
    return std::pair(x.grad(), of_w);
  };
  EXPECT_TRUE(torch::equal(gradient(true).first, gradient(false).first));
  EXPECT_TRUE(torch::equal(gradient(true).second, gradient(false).second));
}

TEST(Checkpoint, ChangesTensorsFromOutsideOnce) {
  const Tensor w = torch::randn({3}, torch::requires_grad());
  const Tensor counter = torch::zeros({3});
  const Tensor row = counter.view({1, 3});
  const auto forward = [&] {
    row.add_(1);
    return torch::exp(w * counter) * counter;
  };
  for (int step = 1; step <= 3; ++step) {
    checkpoint(forward).sum().backward();
    EXPECT_TRUE(torch::equal(counter, torch::full({3}, double(step))));
    const Tensor c = counter.clone();
    const Tensor expected = c * c * torch::exp(w.detach() * c);
    EXPECT_TRUE(torch::allclose(w.grad(), expected)) << step;
    w.mutable_grad().reset();
  }
}

TEST(Checkpoint, RefusesWhatWasChangedSince) {
  const Tensor w = torch::randn({3}, torch::requires_grad());
  const Tensor x = torch::randn({3});
  const Tensor y = checkpoint([&] { return (x * w).exp(); });
  x.add_(1);
  expect_error<Error>(
      [&] { y.sum().backward(); }, "changed in place before the backward");
}

TEST(Checkpoint, NamesTheOperatorAfterWhichMemoryWasWrittenOtherwise) {
  const Tensor w = torch::randn({3}, torch::requires_grad());
  const auto forward = [&] {
    Tensor a = torch::empty({3});
    for (int i = 0; i < 3; ++i) a.data_ptr<float>()[i] = 1000.F + float(i);
    return a * w;
  };
  {
    const Tensor y = checkpoint(forward);
    expect_error<Error>(
        [&] { y.sum().backward(); },
        "aten::mul in checkpoint() saved for backward must be the same when "
        "recomputed");
  }
  const Tensor y = checkpoint(forward, {.compare = CompareRecomputed::never});
  EXPECT_NO_THROW(y.sum().backward());
}

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    const Tensor middle = x * 2;
    context->save_for_backward({x, middle, middle});
    return middle * x / 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * (saved[1] + saved[2]) / 2};
  }
};

TEST(Checkpoint, TakesFunctionsOfTheUser) {
  const Tensor w = torch::randn({3}, torch::requires_grad());
  const Tensor x = torch::randn({3}, torch::requires_grad());
  const auto forward = [&] {
    return torch::tanh(Square::apply(torch::sin(x * w)));
  };
  forward().sum().backward();
  const Tensor of_x = x.grad().clone(), of_w = w.grad().clone();
  x.mutable_grad().reset();
  w.mutable_grad().reset();
  checkpoint(forward).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), of_x));
  EXPECT_TRUE(torch::equal(w.grad(), of_w));
}

TEST(Checkpoint, AllowsBackwardTwiceAndHigherDerivatives) {
  const Tensor x = torch::randn({4}, torch::requires_grad());
  const Tensor w = torch::randn({4}, torch::requires_grad());
  const auto forward = [&] { return torch::tanh(x * w).pow(3); };
  {
    const Tensor y = checkpoint(forward).sum();
    y.backward({}, /*retain_graph=*/true);
    const Tensor once = w.grad().clone();
    y.backward();
    EXPECT_TRUE(torch::equal(w.grad(), once * 2));
  }
  const auto penalty = [&](bool checkpoints) {
    x.mutable_grad().reset();
    w.mutable_grad().reset();
    const Tensor y = checkpoints ? checkpoint(forward) : forward();
    const Tensor slope = torch::autograd::grad(
        {y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    slope.pow(2).sum().backward();
    return w.grad().clone();
  };
  EXPECT_TRUE(torch::allclose(penalty(true), penalty(false)));
}

TEST(Checkpoint, HoldsGradientsTakenInside) {
  const Tensor x = torch::randn({4}, torch::requires_grad());
  const Tensor w = torch::randn({4}, torch::requires_grad());
  const auto forward = [&] {
    const Tensor y = torch::tanh(x * w).pow(3).sum();
    const Tensor slope =
        torch::autograd::grad({y}, {x}, {}, std::nullopt, true)[0];
    return (slope * w).pow(2) + y;
  };
  const auto gradient = [&](bool checkpoints) {
    w.mutable_grad().reset();
    (checkpoints ? checkpoint(forward) : forward()).sum().backward();
    return w.grad().clone();
  };
  EXPECT_TRUE(torch::allclose(gradient(true), gradient(false)));
}

TEST(Checkpoint, PassesExceptionsOnAndSurvivesThoseInside) {
  const Tensor x = torch::randn({4}, torch::requires_grad());
  EXPECT_THROW(
      checkpoint([&]() -> Tensor {
        const Tensor y = x.exp();
        throw std::runtime_error("no");
      }),
      std::runtime_error);
  const auto forward = [&] {
    Tensor y = x.exp();
    try {
      y = y.matmul(torch::ones({3, 3}));
    } catch (const std::exception&) {
      y = y.sin();
    }
    return y;
  };
  checkpoint(forward).sum().backward();
  const Tensor found = x.grad().clone();
  x.mutable_grad().reset();
  forward().sum().backward();
  EXPECT_TRUE(torch::equal(found, x.grad()));
}

TEST(Checkpoint, DoesNothingMoreInsideAnotherAndWithoutGradients) {
  const Tensor x = torch::randn({4}, torch::requires_grad());
  num_counted = 0;
  const Tensor y = checkpoint(
      [&] { return checkpoint([&] { return call_counted(x).exp(); }).exp(); });
  y.sum().backward();
  EXPECT_EQ(num_counted, 2);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint([&] { return x.exp(); }).requires_grad());
}

TEST(Checkpoint, ReturnsWhatTheFunctionDoes) {
  int calls = 0;
  checkpoint([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  const auto [a, b] =
      checkpoint([] { return std::pair(torch::ones({2}), std::string("b")); });
  EXPECT_EQ(b, "b");
  EXPECT_EQ(a.numel(), 2);
}

TEST(Checkpoint, KeepsEmptyAndNonContiguousTensors) {
  const Tensor x = torch::randn({4, 6}, torch::requires_grad());
  const Tensor none = torch::randn({0, 6}, torch::requires_grad());
  const auto forward = [&] {
    const Tensor t = x.t().slice(0, 0, 6, 2).exp();
    return torch::cat({t.sum(0), none.exp().sum(0)}).pow(2);
  };
  checkpoint(forward).sum().backward();
  const Tensor found = x.grad().clone();
  x.mutable_grad().reset();
  forward().sum().backward();
  EXPECT_TRUE(torch::equal(found, x.grad()));
  EXPECT_EQ(none.grad().numel(), 0);
}

struct NetImpl : nn::Module {
  NetImpl() {
    embed = register_module("embed", nn::Linear(6, 8));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(nn::Sequential(
          nn::LayerNorm(nn::LayerNormOptions({8})),
          nn::Linear(8, 16),
          nn::Tanh(),
          nn::Dropout(0.2),
          nn::Linear(16, 8)));
    }
    head = register_module("head", nn::Linear(8, 2));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = embed(x);
    for (const auto& block : *blocks)
      h = h + call_counted(block->as<nn::Sequential>()->forward(h));
    return head(h);
  }
  nn::Linear embed{nullptr}, head{nullptr};
  nn::ModuleList blocks{nullptr};
};
TORCH_MODULE(Net);

std::vector<Tensor> train(
    const std::optional<ActivationCheckpointingOptions>& checkpointing) {
  torch::manual_seed(3);
  AcceleratorOptions options{.cpu = true};
  options.parallel.activation_checkpointing = checkpointing;
  const Accelerator accelerator(options);
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = model(torch::randn({5, 6})).pow(2).mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<Tensor> weights;
  for (const Tensor& parameter : net->parameters())
    weights.push_back(parameter.detach().clone());
  return weights;
}

TEST(ActivationCheckpointing, OfUnmodifiedModulesChangesNothing) {
  num_counted = 0;
  const auto expected = train(std::nullopt);
  EXPECT_EQ(num_counted, 9);
  const auto found = train(ActivationCheckpointingOptions());
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
  // The last operator of a block runs after all operators that saved tensors.
  EXPECT_EQ(num_counted, 18);
  const auto by_class = train(ActivationCheckpointingOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap = {"Sequential"}});
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::equal(by_class[i], expected[i])) << i;
}

TEST(ActivationCheckpointing, RefusesAPolicyThatChoosesNothing) {
  expect_error<ConfigError>(
      [] {
        train(ActivationCheckpointingOptions{
            .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
            .min_num_params = 1'000'000});
      },
      "chose no module");
}

}  // namespace checkpoint_test
}  // namespace accelerate
