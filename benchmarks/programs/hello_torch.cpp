// A minimal LibTorch program: one tensor, one sum.
#include <cstdio>

#include <ATen/Functions.h>

int main() {
  std::printf("%g\n", at::ones({4}).sum().item<double>());
  return 0;
}
