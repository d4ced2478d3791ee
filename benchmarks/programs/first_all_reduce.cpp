// Connects to the other ranks and all-reduces one tensor.
#include <cstdio>

#include <ATen/Functions.h>

#include <accelerate/accelerate.h>

int main() {
  const accelerate::Accelerator accelerator;
  const at::Tensor value = at::ones({4});
  accelerator.world().group().all_reduce(value);
  std::printf("%g\n", value.sum().item<double>());
  return 0;
}
