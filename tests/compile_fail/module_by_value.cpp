// Refused: give it a module holder \(TORCH_MODULE\), or a std::shared_ptr
#include <memory>

#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

void prepare(accelerate::Accelerator& accelerator, const at::Tensor& x) {
#ifdef MUST_FAIL
  Net net;
#else
  auto net = std::make_shared<Net>();
#endif
  auto model = accelerator.prepare(net);
  model(x);
}
