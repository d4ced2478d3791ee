// Refused: a handle that it returned before
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>

struct Net : torch::nn::Module {};

void prepare(
    accelerate::Accelerator& accelerator,
    const accelerate::Model<Net>& model,
    const std::shared_ptr<Net>& other) {
#ifdef MUST_FAIL
  auto again = accelerator.prepare(model);
#else
  auto again = accelerator.prepare(other);
#endif
}
