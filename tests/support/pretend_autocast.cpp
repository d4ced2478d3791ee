// Autocast on the pretend device: the operators that LibTorch casts on CUDA, but
// norms.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "support/host_inputs.h"

namespace accelerate::testing {
namespace {

// The key of a device that is never there, which has the kernels that cast.
constexpr c10::DispatchKey kCasting = c10::DispatchKey::AutocastHPU;

void gather_and_cast(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  constexpr auto kAutocastKey = c10::DispatchKey::AutocastPrivateUse1;
  if (!gather_host_inputs(op, stack)) {
    const c10::impl::ExcludeDispatchKeyGuard on_the_host(kAutocastKey);
    return op.callBoxed(stack);
  }
  const c10::DispatchKeySet after =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAutocastKey);
  op.redispatchBoxed(after | c10::DispatchKeySet(kCasting), stack);
}

}  // namespace
}  // namespace accelerate::testing

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

#define ACCELERATE_LOWER(...) \
  KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define ACCELERATE_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define ACCELERATE_FP32_DTYPE(...) \
  KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define ACCELERATE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastHPU, m){
    AT_FORALL_LOWER_PRECISION_FP(ACCELERATE_LOWER)
        AT_FORALL_FP32(ACCELERATE_FP32)
            AT_FORALL_FP32_SET_OPT_DTYPE(ACCELERATE_FP32_DTYPE)
                AT_FORALL_PROMOTE(ACCELERATE_PROMOTE)}
// Later than the casting kernels.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(accelerate::testing::kCasting))
      continue;
    m.impl(
        c10::toString(name).c_str(),
        torch::CppFunction::makeFromBoxedFunction<
            &accelerate::testing::gather_and_cast>());
  }
}
