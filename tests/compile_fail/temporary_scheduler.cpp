// Refused: the scheduler must outlive its handle: give it a name
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerator.h>

void prepare(accelerate::Accelerator& accelerator, torch::optim::SGD& sgd) {
#ifdef MUST_FAIL
  auto scheduler = accelerator.prepare(torch::optim::StepLR(sgd, 1));
#else
  torch::optim::StepLR step_lr(sgd, 1);
  auto scheduler = accelerator.prepare(step_lr);
#endif
  scheduler.step();
}
