// Refused: move the pointer in, prepare\(std::move\(optimizer\)\)
#include <memory>

#include <torch/optim/sgd.h>

#include <accelerate/accelerator.h>

void prepare(
    accelerate::Accelerator& accelerator,
    std::unique_ptr<torch::optim::SGD> sgd) {
#ifdef MUST_FAIL
  auto optimizer = accelerator.prepare(sgd);
#else
  auto optimizer = accelerator.prepare(std::move(sgd));
#endif
  optimizer.step();
}
