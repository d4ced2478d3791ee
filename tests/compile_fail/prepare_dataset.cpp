// Refused: prepare\(\) takes loaders, not datasets
#include <accelerate/accelerator.h>
#include <accelerate/tensor_dataset.h>

void prepare(accelerate::Accelerator& accelerator, const at::Tensor& x) {
  accelerate::TensorDataset dataset{x};
#ifdef MUST_FAIL
  auto loader = accelerator.prepare(dataset);
#else
  auto loader = accelerator.prepare(accelerate::DataLoader(dataset));
#endif
}
