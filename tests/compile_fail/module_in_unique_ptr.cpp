// Refused: give it a module holder \(TORCH_MODULE\), or a std::shared_ptr
#include <memory>

#include <torch/nn/module.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

void prepare(accelerate::Accelerator& accelerator) {
#ifdef MUST_FAIL
  auto model = accelerator.prepare(std::make_unique<Net>());
#else
  auto model = accelerator.prepare(std::make_shared<Net>());
#endif
}
