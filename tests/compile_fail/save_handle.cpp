// Refused: save\(\) writes tensors, numbers, strings, StateDict, JSON and standard containers
#include <torch/nn/modules/linear.h>

#include <accelerate/accelerator.h>
#include <accelerate/save.h>

void keep(const accelerate::Model<torch::nn::LinearImpl>& model) {
#ifdef MUST_FAIL
  accelerate::save(model, "model.bin");
#else
  accelerate::save(model.state_dict(), "model.bin");
#endif
}
