#include "gate/gate.h"

#include <accelerate/empty_weights.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace gate_test {

using testing::expect_error;
using torch::Tensor;
namespace nn = torch::nn;

/// Keeps values elsewhere and fills tensors before they are read.
class Vault : public GateKeeper {
 public:
  explicit Vault(const nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      values_.push_back(item.value().detach().clone());
      gates_.push_back(std::make_unique<GatedTensor>(
          item.value(),
          UnavailableMessages{
              format("\"{}\" is in the vault", item.key()),
              format("\"{}\" was in a vault that is gone", item.key())},
          *this,
          gates_.size()));
    }
    release();
  }

  void before_read(std::size_t unit, bool) override {
    ++num_calls;
    if (fails) throw Error("[gate] no such luck");
    if (!gates_[unit]->is_filled()) {
      gates_[unit]->fill(values_[unit].clone());
      ++num_fills;
    }
  }

  void release() {
    for (const auto& gate : gates_) gate->release();
  }
  GatedTensor& gate(std::size_t i) { return *gates_.at(i); }

  int num_calls = 0;
  int num_fills = 0;
  bool fails = false;

 private:
  std::vector<Tensor> values_;
  std::vector<std::unique_ptr<GatedTensor>> gates_;
};

std::vector<Tensor> take_gradients(nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters())
    gradients.push_back(parameter.grad().clone());
  module.zero_grad();
  return gradients;
}

// Frees the memory before the forward and again before the backward.
void expect_unchanged(
    const std::string& what,
    const std::shared_ptr<nn::Module>& module,
    const std::function<Tensor()>& loss) {
  torch::manual_seed(3);
  const Tensor open_loss = loss();
  open_loss.backward();
  const auto expected = take_gradients(*module);

  Vault vault(*module);
  torch::manual_seed(3);
  const Tensor gated_loss = loss();
  vault.release();
  gated_loss.backward();
  EXPECT_TRUE(torch::equal(open_loss, gated_loss)) << what;
  const auto found = take_gradients(*module);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << what << " " << i;
  EXPECT_GE(vault.num_fills, static_cast<int>(expected.size())) << what;
}

template <class Holder, class Forward>
void check(const std::string& what, Holder holder, Forward forward) {
  expect_unchanged(
      what, holder.ptr(), [&] { return forward(holder).pow(2).sum(); });
}

TEST(Gate, FillsWeightsOfUnmodifiedModules) {
  const Tensor rows = torch::rand({3, 8});
  const Tensor images = torch::rand({2, 3, 6, 6});
  const Tensor steps = torch::rand({4, 2, 8});
  const Tensor indices = torch::arange(4);
  check("Linear", nn::Linear(8, 8), [&](auto m) { return m(rows); });
  check(
      "Sequential",
      nn::Sequential(
          nn::Linear(8, 16),
          nn::ReLU(),
          nn::LayerNorm(nn::LayerNormOptions({16})),
          nn::Dropout(0.5),
          nn::Linear(16, 8)),
      [&](auto m) { return m->forward(rows); });
  check(
      "Conv2d and BatchNorm",
      nn::Sequential(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8), nn::ReLU()),
      [&](auto m) { return m->forward(images); });
  check("Embedding", nn::Embedding(10, 8), [&](auto m) { return m(indices); });
  check("EmbeddingBag", nn::EmbeddingBag(10, 8), [&](auto m) {
    return m(indices.view({2, 2}));
  });
  check("LSTM", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2)), [&](auto m) {
    return std::get<0>(m->forward(steps));
  });
  check("GRU", nn::GRU(nn::GRUOptions(8, 8)), [&](auto m) {
    return std::get<0>(m->forward(steps));
  });
  check("MultiheadAttention", nn::MultiheadAttention(8, 2), [&](auto m) {
    return std::get<0>(m->forward(steps, steps, steps));
  });
  check(
      "TransformerEncoderLayer",
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(8, 2).dropout(0.1)),
      [&](auto m) { return m->forward(steps); });
  check(
      "Bilinear", nn::Bilinear(8, 8, 3), [&](auto m) { return m(rows, rows); });
  check(
      "GroupNorm and PReLU",
      nn::Sequential(
          nn::Conv2d(3, 8, 1),
          nn::GroupNorm(nn::GroupNormOptions(2, 8)),
          nn::PReLU()),
      [&](auto m) { return m->forward(images); });
}

TEST(Gate, CallsTheKeeperOncePerOperatorThatReads) {
  nn::Linear linear(4, 4);
  Vault vault(*linear);
  const Tensor unrelated = torch::rand({4, 4}).mm(torch::rand({4, 4}));
  EXPECT_EQ(vault.num_calls, 0);
  const torch::NoGradGuard no_grad;
  linear(unrelated);
  EXPECT_EQ(vault.num_calls, 3) << "the weight's view, then both in addmm";
}

TEST(Gate, LeavesAnErrorToTheCaller) {
  nn::Linear linear(4, 4);
  Vault vault(*linear);
  vault.fails = true;
  expect_error<Error>([&] { linear(torch::rand({1, 4})); }, "no such luck");
  vault.fails = false;
  linear(torch::rand({1, 4}));
}

TEST(Gate, ThrowsTheKeepersMessageIfMemoryIsAccessedDirectly) {
  nn::Linear linear(4, 4);
  std::optional<Vault> vault(std::in_place, *linear);
  expect_error<c10::Error>(
      [&] { linear->bias.data_ptr<float>(); }, "\"bias\" is in the vault");
  vault.reset();
  expect_error<c10::Error>(
      [&] { linear->bias.data_ptr<float>(); },
      "\"bias\" was in a vault that is gone");
}

TEST(Gate, SeesThatDataWasReplaced) {
  nn::Linear linear(4, 4);
  Vault vault(*linear);
  EXPECT_FALSE(vault.gate(0).is_bypassed());
  linear->weight.set_data(torch::zeros({4, 4}));
  EXPECT_TRUE(vault.gate(0).is_bypassed());
}

TEST(Gate, LeavesTheMemoryToTheTensor) {
  nn::Linear linear(4, 4);
  const Tensor before = linear->weight.detach().clone();
  {
    Vault vault(*linear);
    linear(torch::rand({1, 4}));
  }
  EXPECT_TRUE(torch::equal(linear->weight, before));
  { const Vault vault(*linear); }
  EXPECT_THROW(linear->weight.sum(), std::exception);
}

TEST(Gate, TakesEmptyTensors) {
  nn::Linear linear(nn::LinearOptions(3, 0).bias(false));
  Vault vault(*linear);
  EXPECT_EQ(linear(torch::rand({2, 3})).sizes(), (std::vector<int64_t>{2, 0}));
}

template <class Make>
void expect_empty(const std::string& what, Make make) {
  const auto module = init_empty_weights(make, /*include_buffers=*/true);
  std::size_t count = 0;
  for (const auto& item : module->named_parameters()) {
    EXPECT_TRUE(item.value().is_meta()) << what << " " << item.key();
    EXPECT_TRUE(item.value().is_leaf() && item.value().requires_grad())
        << what << " " << item.key();
    ++count;
  }
  for (const auto& item : module->named_buffers())
    EXPECT_TRUE(item.value().is_meta()) << what << " " << item.key();
  EXPECT_GT(count, 0U) << what;
}

TEST(EmptyWeightsScope, MakesModulesOfAnySizeAtOnce) {
  expect_empty("linear", [] { return nn::Linear(1 << 17, 1 << 17); });
  expect_empty("embedding", [] { return nn::Embedding(1 << 20, 1 << 12); });
  expect_empty("padded embedding", [] {
    return nn::Embedding(nn::EmbeddingOptions(10, 4).padding_idx(0));
  });
  expect_empty("convolution", [] { return nn::Conv2d(3, 8, 3); });
  expect_empty("batch normalisation", [] { return nn::BatchNorm2d(8); });
  expect_empty("layer normalisation", [] {
    return nn::LayerNorm(nn::LayerNormOptions({8}));
  });
  expect_empty("LSTM", [] { return nn::LSTM(8, 8); });
  expect_empty("attention", [] { return nn::MultiheadAttention(8, 2); });
  expect_empty("transformer", [] {
    return nn::Transformer(nn::TransformerOptions(16, 2));
  });
}

TEST(EmptyWeightsScope, EndsWithTheScopeAndLeavesOtherTensorsAlone) {
  const Tensor before = torch::ones({3});
  {
    const EmptyWeightsScope outer(true);
    { const EmptyWeightsScope inner(true); }
    EXPECT_TRUE(torch::rand({3}).is_meta());
    EXPECT_TRUE(torch::zeros({3}, torch::kCPU).pow(2).is_meta());
    EXPECT_FALSE(before.add(1).is_meta());
    EXPECT_FALSE(torch::zeros_like(before).is_meta());
  }
  EXPECT_FALSE(torch::ones({3}).is_meta());
}

}  // namespace gate_test
}  // namespace accelerate::detail
