// Autocast on the pretend device: the operators that LibTorch casts on CUDA, but
// norms.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

#define ACCELERATE_LOWER(...) \
  KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define ACCELERATE_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define ACCELERATE_FP32_DTYPE(...) \
  KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define ACCELERATE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(ACCELERATE_LOWER)
  AT_FORALL_FP32(ACCELERATE_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(ACCELERATE_FP32_DTYPE)
  AT_FORALL_PROMOTE(ACCELERATE_PROMOTE)
}
