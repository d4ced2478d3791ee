// Activations of a model on several devices: operators without a weight run on
// the device of the last weight, whatever devices their tensors are on. The
// pretend device rejects tensors of mixed devices, like CUDA.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/big_model.h>

#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate::following_test {

namespace nn = torch::nn;
using torch::Tensor;

constexpr std::int64_t kWidth = 6;

struct ResidualImpl : nn::Module {
  Tensor forward(const Tensor& x) { return x + down(torch::relu(up(x))); }
  nn::Linear up = register_module("up", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(2 * kWidth, kWidth));
};
TORCH_MODULE(Residual);

// Operations of real models on activations, other than products with weights.
struct MixedImpl : nn::Module {
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const Tensor early = first(x);
    Tensor y = second(early);
    // Masks come with the input, and are made on the host.
    y = y.masked_fill(mask == 0, -1);
    y = y * torch::ones({3, kWidth}).tril();
    // Writes in place into an older activation, and below into a new one.
    Tensor sum = early * 2;
    sum.add_(y);
    y = torch::cat({early, sum, y, x}, -1);
    y = y.index({torch::indexing::Slice(), torch::arange(kWidth)});
    y = y.index_select(0, mask.argmax(0).slice(0, 0, 2).to(torch::kLong) * 0);
    Tensor filled = torch::zeros_like(early).slice(0, 0, 2);
    filled.copy_(y);
    return torch::where(filled > 0, filled, early.slice(0, 0, 2));
  }
  Residual first = register_module("first", Residual());
  Residual second = register_module("second", Residual());
};
TORCH_MODULE(Mixed);

DeviceMap on_two_devices() { return {{"first", 0}, {"second", 1}}; }

class Following : public ::testing::Test {
 protected:
  Following() {
    torch::manual_seed(0);
    device_ = testing::pretend_device(0);
  }

  at::Device device_ = at::kCPU;
  Tensor x_ = torch::randn({3, kWidth});
  Tensor mask_ = (torch::rand({3, kWidth}) > 0.5).to(torch::kFloat);
};

TEST_F(Following, MasksResidualsAndOperatorsInPlaceFollowTheWeights) {
  Mixed model;
  const auto train = [&](auto&& forward) {
    model->zero_grad();
    const Tensor output = forward();
    output.pow(2).sum().backward();
    std::vector<Tensor> results{output.detach().cpu()};
    for (const Tensor& parameter : model->parameters())
      results.push_back(parameter.grad().cpu());
    return results;
  };
  const auto expected = train([&] { return model(x_, mask_); });
  model->zero_grad();
  auto big = dispatch_model(model, {.device_map = on_two_devices()});
  for (int i = 0; i < 2; ++i) {
    const auto found = train([&] { return big(x_, mask_); });
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t k = 0; k < found.size(); ++k)
      EXPECT_TRUE(found[k].equal(expected[k])) << k;
  }
}

// Calls the module directly, as code that owns it would.
TEST_F(Following, NeedsNoCallOfTheDispatchedModel) {
  const torch::NoGradGuard no_grad;
  Mixed model;
  const Tensor expected = model(x_, mask_);
  const Dispatch dispatch =
      dispatch_module(*model, {.device_map = on_two_devices()});
  const Tensor found = model(x_.to(device_), mask_.to(device_));
  EXPECT_FALSE(found.is_cpu());
  EXPECT_TRUE(found.cpu().equal(expected));
}

struct ScaledImpl : nn::Module {
  Tensor forward(Tensor x) {
    x = first(x);
    x.mul_(scale);
    return second(x);
  }
  nn::Linear first = register_module("first", nn::Linear(kWidth, kWidth));
  Tensor scale = register_parameter("scale", torch::rand({kWidth}), false);
  nn::Linear second = register_module("second", nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Scaled);

// Moving the tensor that is written to would lose the result.
TEST_F(Following, AWeightFollowsWhatAnOperatorWritesTo) {
  const torch::NoGradGuard no_grad;
  Scaled model;
  const Tensor expected = model(x_);
  auto big = dispatch_model(
      model, {.device_map = {{"first", 0}, {"scale", 1}, {"second", 0}}});
  EXPECT_TRUE(big(x_).equal(expected));
  big.dispatch().release();
  Scaled other = model;
  auto offloaded = dispatch_model(
      other,
      {.device_map = {{"first", 0}, {"scale", "cpu"}, {"second", 1}},
       .main_device = 1});
  EXPECT_TRUE(offloaded(x_).equal(expected));
}

struct PackedImpl : nn::Module {
  Tensor forward(const Tensor& x, const Tensor& lengths) {
    const auto packed = nn::utils::rnn::pack_padded_sequence(
        embed(x), lengths.cpu(), /*batch_first=*/true);
    const auto output = std::get<0>(rnn->forward_with_packed_input(packed));
    return head(std::get<0>(
        nn::utils::rnn::pad_packed_sequence(output, /*batch_first=*/true)));
  }
  nn::Linear embed = register_module("embed", nn::Linear(kWidth, kWidth));
  nn::RNN rnn = register_module("rnn", nn::RNN(kWidth, kWidth));
  nn::Linear head = register_module("head", nn::Linear(kWidth, 2));
};
TORCH_MODULE(Packed);

// Sequence lengths stay on the host, as LibTorch requires.
TEST_F(Following, LengthsOfPackedSequencesStay) {
  const torch::NoGradGuard no_grad;
  Packed model;
  const Tensor x = torch::randn({3, 4, kWidth});
  const Tensor lengths = torch::tensor({4, 3, 1});
  const Tensor expected = model(x, lengths);
  auto big = dispatch_model(
      model, {.device_map = {{"embed", 0}, {"rnn", 1}, {"head", 0}}});
  EXPECT_TRUE(big(x, lengths).allclose(expected, 0, 1e-6));
}

struct CheckpointedImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor early = first(x);
    const auto rest = [&] {
      const Tensor y = second(early * 2);
      return third(dropout(y) + early).mul(y);
    };
    return recomputes ? checkpoint(rest) : rest();
  }
  Residual first = register_module("first", Residual());
  Residual second = register_module("second", Residual());
  Residual third = register_module("third", Residual());
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.4));
  bool recomputes = true;
};
TORCH_MODULE(Checkpointed);

// Recomputed segments fetch the weights again and follow them as in the
// forward.
TEST_F(Following, ActivationCheckpointingOnTopOfDevicesAndTiers) {
  const testing::TemporaryDirectory directory;
  Checkpointed model, twin;
  for (std::size_t i = 0; i < model->parameters().size(); ++i)
    twin->parameters()[i].set_data(model->parameters()[i].detach().clone());
  twin->recomputes = false;
  const auto train = [&](Checkpointed& trained, auto&& forward) {
    trained->zero_grad();
    torch::manual_seed(3);
    forward(x_).pow(2).sum().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : trained->parameters())
      gradients.push_back(parameter.grad().cpu());
    return gradients;
  };
  const auto expected = train(twin, [&](const Tensor& x) { return twin(x); });
  auto big = dispatch_model(
      model,
      {.device_map = {{"first", 0}, {"second", "disk"}, {"third", 1}},
       .offload_dir = directory.path(),
       .prefetch_memory = 1});
  for (int i = 0; i < 2; ++i) {
    const auto before = big.stats().num_fetches;
    const auto found = train(model, [&](const Tensor& x) { return big(x); });
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t k = 0; k < found.size(); ++k)
      EXPECT_TRUE(found[k].equal(expected[k])) << k;
    // The layers on disk are fetched in the forward and in the recomputation.
    EXPECT_GE(big.stats().num_fetches - before, 4);
  }
}

struct KeepingImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    kept = first(x);
    return second(kept);
  }
  nn::Linear first = register_module("first", nn::Linear(kWidth, kWidth));
  nn::Linear second = register_module("second", nn::Linear(kWidth, kWidth));
  Tensor kept;
};
TORCH_MODULE(Keeping);

// Tensors that a model returned or left behind are ordinary tensors afterwards:
// mixing devices is an error again.
TEST_F(Following, EndsWithTheModel) {
  const torch::NoGradGuard no_grad;
  Keeping model;
  Tensor output;
  {
    auto big = dispatch_model(model, {.device_map = on_two_devices()});
    output = big(x_.to(device_));
    EXPECT_EQ(output.device(), device_);
    EXPECT_THROW(static_cast<void>(output + x_), c10::Error);
    // The model's own activations still follow.
    EXPECT_TRUE((model->kept + x_).defined());
  }
  EXPECT_THROW(static_cast<void>(model->kept + x_), c10::Error);
}

}  // namespace accelerate::following_test
