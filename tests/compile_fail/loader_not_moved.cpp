// Refused: move the loader in: prepare\(std::move\(loader\)\)
#include <accelerate/accelerator.h>

void prepare(accelerate::Accelerator& accelerator, const at::Tensor& x) {
  accelerate::DataLoader loader(
      accelerate::TensorDataset{x}, {.batch_size = 2});
#ifdef MUST_FAIL
  auto prepared = accelerator.prepare(loader);
#else
  auto prepared = accelerator.prepare(std::move(loader));
#endif
  for (auto& batch : prepared) static_cast<void>(batch);
}
