// A keeper that moves arguments to its weights' device, as a device map does.
#include <c10/core/AutogradState.h>

#include "gate/gate.h"
#include "support/pretend_device.h"

namespace accelerate::detail {
namespace gate_device_test {

using torch::Tensor;
namespace nn = torch::nn;

/// Keeps a module on a device, and moves the other arguments of its operators
/// there.
class Placed : public GateKeeper {
 public:
  Placed(const nn::Module& module, at::Device device) : device_(device) {
    for (const Tensor& parameter : module.parameters()) {
      const Tensor there = parameter.detach().to(device);
      parameter.unsafeGetTensorImpl()->shallow_copy_from(
          there.getIntrusivePtr());
      gates_.push_back(std::make_unique<GatedTensor>(
          parameter, UnavailableMessages{}, *this, gates_.size(), device));
    }
  }
  void call(GatedCall& call) override {
    for (c10::IValue& argument : call.arguments()) {
      if (!argument.isTensor() || !argument.toTensor().defined() ||
          argument.toTensor().device() == device_) {
        continue;
      }
      argument = argument.toTensor().to(device_);
      ++num_moved;
    }
    call.run();
  }
  int num_moved = 0;

 private:
  at::Device device_;
  std::vector<std::unique_ptr<GatedTensor>> gates_;
};

nn::Sequential make_net() {
  torch::manual_seed(5);
  return nn::Sequential(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 4));
}

TEST(GateOnADevice, MovesArgumentsAndTheirGradientsBack) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Tensor x = torch::randn({3, 6});
  const auto train = [&](nn::Sequential net) {
    const Tensor input = x.clone().requires_grad_();
    const Tensor output = net->forward(input);
    output.pow(2).sum().backward();
    return std::pair(output, input.grad());
  };
  nn::Sequential reference = make_net(), net = make_net();
  const auto [expected, expected_gradient] = train(reference);

  // The layers are on different devices.
  const at::Device device = testing::pretend_device(0);
  Placed keeper(*net[2], device);
  const auto [output, gradient] = train(net);
  EXPECT_EQ(output.device(), device);
  EXPECT_EQ(keeper.num_moved, 1);
  EXPECT_TRUE(torch::equal(output.cpu(), expected));
  EXPECT_TRUE(torch::equal(gradient, expected_gradient));
  const auto parameters = net->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].grad().device(), parameters[i].device());
    EXPECT_TRUE(torch::equal(
        parameters[i].grad().cpu(), reference->parameters()[i].grad()))
        << i;
  }
}

}  // namespace gate_device_test
}  // namespace accelerate::detail
