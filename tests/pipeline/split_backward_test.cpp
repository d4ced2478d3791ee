#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/record_function.h>

#include <accelerate/activation_checkpointing.h>

#include "pipeline/split_backward.h"

namespace accelerate::detail {
namespace split_backward_test {

using at::Tensor;
using ::testing::ElementsAre;

// Counts how often an operator runs on this thread.
class OperatorCount {
 public:
  explicit OperatorCount(std::string name)
      : before_(count),
        handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&OperatorCount::see)
                .scopes({at::RecordScope::FUNCTION}))) {
    wanted = std::move(name);
  }
  ~OperatorCount() { at::removeCallback(handle_); }
  [[nodiscard]] int value() const { return count - before_; }

 private:
  static std::unique_ptr<at::ObserverContext> see(
      const at::RecordFunction& function) {
    if (wanted == function.name()) ++count;
    return nullptr;
  }

  static inline thread_local int count = 0;
  static inline thread_local std::string wanted;
  int before_;
  at::CallbackHandle handle_;
};

// Layers whose nodes compute gradients of inputs and of parameters, a node for
// a parameter only, and a weight that is used twice.
struct Layers {
  torch::nn::Linear first{4, 4};
  torch::nn::Linear second{4, 4};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({4})};
  Tensor scale = torch::full({4}, 1.5).requires_grad_();

  Layers() {
    const torch::NoGradGuard no_grad;
    for (const Tensor& tensor : parameters())
      tensor.copy_(
          torch::sin(torch::arange(tensor.numel())).view_as(tensor) + 0.1);
  }
  [[nodiscard]] std::vector<Tensor> parameters() const {
    return {
        first->weight,
        first->bias,
        second->weight,
        second->bias,
        norm->weight,
        norm->bias,
        scale};
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = torch::tanh(first(x));
    const Tensor g = norm(second(h) + x);
    // Uses the first weight again, and adds a term that no input leads to.
    return g.matmul(first->weight) + scale.exp();
  }
};

std::vector<Tensor> gradients_of(const Layers& layers) {
  std::vector<Tensor> gradients;
  for (const Tensor& tensor : layers.parameters())
    gradients.push_back(tensor.grad());
  return gradients;
}

TEST(SplitBackward, EqualsTheWhole) {
  Layers whole, split;
  const Tensor x = torch::linspace(-1, 1, 12).view({3, 4});
  const Tensor gradient = torch::linspace(1, 2, 12).view({3, 4});
  const Tensor whole_x = x.clone().requires_grad_();
  const Tensor split_x = x.clone().requires_grad_();
  whole.forward(whole_x).backward(gradient);

  SplitBackward halves({split.forward(split_x)}, {gradient}, {split_x});
  ASSERT_TRUE(halves.has_inputs());
  const PipelineTensors found = halves.compute_inputs();
  ASSERT_EQ(found.size(), 1);
  EXPECT_TRUE(found[0].equal(whole_x.grad()));
  for (const Tensor& none : gradients_of(split)) EXPECT_FALSE(none.defined());
  EXPECT_FALSE(split_x.grad().defined());
  halves.compute_weights();
  const auto expected = gradients_of(whole);
  const auto gradients = gradients_of(split);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(gradients[i].allclose(expected[i], 1e-6, 1e-6)) << i;
}

TEST(SplitBackward, AccumulatesSeveralMicroBatches) {
  Layers whole, split;
  std::vector<SplitBackward> open;
  for (int i = 0; i < 3; ++i) {
    const Tensor x = torch::full({2, 4}, 0.3 * i);
    whole.forward(x).sum().backward();
    const Tensor input = x.clone().requires_grad_();
    const Tensor loss = split.forward(input).sum();
    open.push_back(SplitBackward({loss}, {Tensor()}, {input}));
    open.back().compute_inputs();
  }
  for (SplitBackward& halves : open) halves.compute_weights();
  const auto expected = gradients_of(whole);
  const auto gradients = gradients_of(split);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(gradients[i].allclose(expected[i], 1e-6, 1e-6)) << i;
}

// One product per gradient, as in an unsplit backward.
TEST(SplitBackward, ComputesEveryProductOnce) {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 4),
      torch::nn::Tanh(),
      torch::nn::Linear(4, 4),
      torch::nn::ReLU(),
      torch::nn::Linear(4, 4));
  const Tensor x = torch::ones({2, 4}).requires_grad_();
  SplitBackward halves({net->forward(x).sum()}, {Tensor()}, {x});
  {
    const OperatorCount products("aten::mm");
    halves.compute_inputs();
    EXPECT_EQ(products.value(), 3);
  }
  {
    const OperatorCount products("aten::mm");
    const OperatorCount activations("aten::tanh_backward");
    halves.compute_weights();
    EXPECT_EQ(activations.value(), 0);
  }
  SplitBackward again({net->forward(x).sum()}, {Tensor()}, {x});
  again.compute_inputs();
  const OperatorCount products("aten::mm");
  again.compute_weights();
  EXPECT_EQ(products.value(), 3);
}

// The first half recomputes operators, and keeps the results for the second.
TEST(SplitBackward, RecomputesOnce) {
  Layers whole, split;
  const Tensor x = torch::linspace(-1, 1, 12).view({3, 4}).requires_grad_();
  whole.forward(x.detach()).sum().backward();
  const OperatorCount forwards("aten::addmm");
  const Tensor out = checkpoint([&] { return split.forward(x); });
  EXPECT_EQ(forwards.value(), 2);
  SplitBackward halves({out.sum()}, {Tensor()}, {x});
  halves.compute_inputs();
  EXPECT_EQ(forwards.value(), 4);
  halves.compute_weights();
  EXPECT_EQ(forwards.value(), 4);
  const auto expected = gradients_of(whole);
  const auto gradients = gradients_of(split);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(gradients[i].allclose(expected[i], 1e-6, 1e-6)) << i;
}

// Tensors that only the inputs' gradients need are freed before the second
// half.
TEST(SplitBackward, FreesWhatInputsNeed) {
  torch::nn::Linear linear(4, 4);
  const Tensor x = torch::ones({2, 4}).requires_grad_();
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> saved;
  Tensor loss;
  {
    // tanh saves its result, and nothing else keeps it alive.
    const Tensor activation = torch::tanh(linear(x));
    saved.emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        activation.storage().unsafeGetStorageImpl()));
    loss = activation.sum();
  }
  SplitBackward halves({loss}, {Tensor()}, {x});
  loss.reset();
  EXPECT_FALSE(saved->expired());
  halves.compute_inputs();
  EXPECT_TRUE(saved->expired());
  halves.compute_weights();
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST(SplitBackward, HasNoFirstHalfWithoutInputs) {
  Layers layers;
  SplitBackward halves(
      {layers.forward(torch::ones({2, 4})).sum()}, {Tensor()}, {});
  EXPECT_FALSE(halves.has_inputs());
  halves.compute_weights();
  EXPECT_TRUE(layers.first->weight.grad().defined());

  // An input that nothing depends on, and one that is also an output.
  const Tensor unused = torch::ones({2}).requires_grad_();
  const Tensor passed = torch::ones({2}).requires_grad_();
  SplitBackward passing(
      {passed, (layers.scale * 2).sum()},
      {torch::full({2}, 3.0), Tensor()},
      {unused, passed});
  ASSERT_TRUE(passing.has_inputs());
  layers.scale.mutable_grad().reset();
  const PipelineTensors found = passing.compute_inputs();
  EXPECT_FALSE(found[0].defined());
  EXPECT_TRUE(found[1].equal(torch::full({2}, 3.0)));
  passing.compute_weights();
  EXPECT_TRUE(layers.scale.grad().equal(torch::full({4}, 2.0)));
}

// A function that computes only the gradients it is asked for.
struct Scaled : torch::autograd::Function<Scaled> {
  static inline int num_inputs = 0;
  static inline int num_weights = 0;
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& input,
      const Tensor& weight) {
    context->save_for_backward({input, weight});
    return input * weight;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    Tensor input, weight;
    if (context->needs_input_grad(0)) {
      ++num_inputs;
      input = gradients[0] * saved[1];
    }
    if (context->needs_input_grad(1)) {
      ++num_weights;
      weight = gradients[0] * saved[0];
    }
    return {input, weight};
  }
};

TEST(SplitBackward, AsksFunctionsForOneGradient) {
  const Tensor x = torch::full({2}, 3.0).requires_grad_();
  const Tensor w = torch::full({2}, 5.0).requires_grad_();
  SplitBackward halves({Scaled::apply(x, w).sum()}, {Tensor()}, {x});
  EXPECT_TRUE(halves.compute_inputs()[0].equal(torch::full({2}, 5.0)));
  EXPECT_EQ(Scaled::num_inputs, 1);
  EXPECT_EQ(Scaled::num_weights, 0);
  halves.compute_weights();
  EXPECT_EQ(Scaled::num_inputs, 1);
  EXPECT_EQ(Scaled::num_weights, 1);
  EXPECT_TRUE(w.grad().equal(torch::full({2}, 3.0)));
}

}  // namespace split_backward_test
}  // namespace accelerate::detail
