#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

at::Tensor run(
    const accelerate::Model<torch::nn::LinearImpl>& model,
    const at::Tensor& x) {
  struct Net : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) { return input; }
  };
  accelerate::Model<Net> net(nullptr, nullptr);
#ifdef MUST_FAIL
  return net->forward(x);
#else
  return net(model(x));
#endif
}
