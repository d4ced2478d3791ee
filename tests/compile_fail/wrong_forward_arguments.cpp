// Refused: the module's forward\(\) does not take these arguments
#include <torch/nn/module.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool) { return x; }
};

at::Tensor run(const accelerate::Model<Net>& model, const at::Tensor& x) {
#ifdef MUST_FAIL
  return model(x, "yes", 3);
#else
  return model(x, true);
#endif
}
