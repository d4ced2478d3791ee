#pragma once

#include <map>
#include <string>
#include <utility>

#include "kernels/cuda_emulation.h"
#include "kernels/device/device_kernels.h"

// The text of all kernels, compiled for the processor.

namespace accelerate::testing::cuda {

using KernelTable = std::map<std::string, detail::DeviceKernel>;

/// Whether threads of a block run in reverse order.
inline thread_local bool runs_reversed = false;

/// A kernel that takes its arguments as the driver does.
template <class... Parameters>
detail::DeviceKernel emulated(void (*kernel)(Parameters...)) {
  detail::DeviceKernel made;
  made.emulation = [kernel](std::int64_t blocks, void** arguments) {
    const auto run = [&]<std::size_t... i>(std::index_sequence<i...>) {
      launch(blocks, runs_reversed, [&] {
        kernel(*static_cast<Parameters*>(arguments[i])...);
      });
    };
    run(std::index_sequence_for<Parameters...>());
  };
  return made;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

namespace float32_e4m3_tonearest {
#define VALUE Float32
#define FORMAT E4m3
#define ROUNDING ToNearest
#define ACTIVATION Gelu
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace float32_e4m3_tonearest

namespace float32_e4m3_randomly {
#define VALUE Float32
#define FORMAT E4m3
#define ROUNDING Randomly
#define ACTIVATION GeluTanh
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace float32_e4m3_randomly

namespace float32_e5m2_tonearest {
#define VALUE Float32
#define FORMAT E5m2
#define ROUNDING ToNearest
#define ACTIVATION Silu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace float32_e5m2_tonearest

namespace float32_e5m2_randomly {
#define VALUE Float32
#define FORMAT E5m2
#define ROUNDING Randomly
#define ACTIVATION Relu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace float32_e5m2_randomly

namespace bfloat16_e4m3_tonearest {
#define VALUE BFloat16
#define FORMAT E4m3
#define ROUNDING ToNearest
#define ACTIVATION Gelu
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace bfloat16_e4m3_tonearest

namespace bfloat16_e4m3_randomly {
#define VALUE BFloat16
#define FORMAT E4m3
#define ROUNDING Randomly
#define ACTIVATION GeluTanh
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace bfloat16_e4m3_randomly

namespace bfloat16_e5m2_tonearest {
#define VALUE BFloat16
#define FORMAT E5m2
#define ROUNDING ToNearest
#define ACTIVATION Silu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace bfloat16_e5m2_tonearest

namespace bfloat16_e5m2_randomly {
#define VALUE BFloat16
#define FORMAT E5m2
#define ROUNDING Randomly
#define ACTIVATION Relu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace bfloat16_e5m2_randomly

namespace float16_e4m3_tonearest {
#define VALUE Float16
#define FORMAT E4m3
#define ROUNDING ToNearest
#define ACTIVATION Gelu
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace float16_e4m3_tonearest

namespace float16_e4m3_randomly {
#define VALUE Float16
#define FORMAT E4m3
#define ROUNDING Randomly
#define ACTIVATION GeluTanh
#define CENTERS true
#include "kernels/emulated_program.inl"
}  // namespace float16_e4m3_randomly

namespace float16_e5m2_tonearest {
#define VALUE Float16
#define FORMAT E5m2
#define ROUNDING ToNearest
#define ACTIVATION Silu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace float16_e5m2_tonearest

namespace float16_e5m2_randomly {
#define VALUE Float16
#define FORMAT E5m2
#define ROUNDING Randomly
#define ACTIVATION Relu
#define CENTERS false
#include "kernels/emulated_program.inl"
}  // namespace float16_e5m2_randomly

#pragma GCC diagnostic pop

/// All kernels by their macros and entry point.
inline const KernelTable& kernel_table() {
  static const KernelTable made = [] {
    KernelTable table;
    float32_e4m3_tonearest::add_to(
        table,
        "VALUE=Float32",
        "VALUE=Float32 FORMAT=E4m3 ROUNDING=ToNearest",
        "VALUE=Float32 ACTIVATION=Gelu",
        "VALUE=Float32 CENTERS=true");
    float32_e4m3_randomly::add_to(
        table,
        "VALUE=Float32",
        "VALUE=Float32 FORMAT=E4m3 ROUNDING=Randomly",
        "VALUE=Float32 ACTIVATION=GeluTanh",
        "VALUE=Float32 CENTERS=true");
    float32_e5m2_tonearest::add_to(
        table,
        "VALUE=Float32",
        "VALUE=Float32 FORMAT=E5m2 ROUNDING=ToNearest",
        "VALUE=Float32 ACTIVATION=Silu",
        "VALUE=Float32 CENTERS=false");
    float32_e5m2_randomly::add_to(
        table,
        "VALUE=Float32",
        "VALUE=Float32 FORMAT=E5m2 ROUNDING=Randomly",
        "VALUE=Float32 ACTIVATION=Relu",
        "VALUE=Float32 CENTERS=false");
    bfloat16_e4m3_tonearest::add_to(
        table,
        "VALUE=BFloat16",
        "VALUE=BFloat16 FORMAT=E4m3 ROUNDING=ToNearest",
        "VALUE=BFloat16 ACTIVATION=Gelu",
        "VALUE=BFloat16 CENTERS=true");
    bfloat16_e4m3_randomly::add_to(
        table,
        "VALUE=BFloat16",
        "VALUE=BFloat16 FORMAT=E4m3 ROUNDING=Randomly",
        "VALUE=BFloat16 ACTIVATION=GeluTanh",
        "VALUE=BFloat16 CENTERS=true");
    bfloat16_e5m2_tonearest::add_to(
        table,
        "VALUE=BFloat16",
        "VALUE=BFloat16 FORMAT=E5m2 ROUNDING=ToNearest",
        "VALUE=BFloat16 ACTIVATION=Silu",
        "VALUE=BFloat16 CENTERS=false");
    bfloat16_e5m2_randomly::add_to(
        table,
        "VALUE=BFloat16",
        "VALUE=BFloat16 FORMAT=E5m2 ROUNDING=Randomly",
        "VALUE=BFloat16 ACTIVATION=Relu",
        "VALUE=BFloat16 CENTERS=false");
    float16_e4m3_tonearest::add_to(
        table,
        "VALUE=Float16",
        "VALUE=Float16 FORMAT=E4m3 ROUNDING=ToNearest",
        "VALUE=Float16 ACTIVATION=Gelu",
        "VALUE=Float16 CENTERS=true");
    float16_e4m3_randomly::add_to(
        table,
        "VALUE=Float16",
        "VALUE=Float16 FORMAT=E4m3 ROUNDING=Randomly",
        "VALUE=Float16 ACTIVATION=GeluTanh",
        "VALUE=Float16 CENTERS=true");
    float16_e5m2_tonearest::add_to(
        table,
        "VALUE=Float16",
        "VALUE=Float16 FORMAT=E5m2 ROUNDING=ToNearest",
        "VALUE=Float16 ACTIVATION=Silu",
        "VALUE=Float16 CENTERS=false");
    float16_e5m2_randomly::add_to(
        table,
        "VALUE=Float16",
        "VALUE=Float16 FORMAT=E5m2 ROUNDING=Randomly",
        "VALUE=Float16 ACTIVATION=Relu",
        "VALUE=Float16 CENTERS=false");
    return table;
  }();
  return made;
}

/// While it lives, this thread's tensors in host memory are computed with by
/// the kernels.
class OnEmulatedDevice {
 public:
  explicit OnEmulatedDevice(bool reversed = false)
      : kernels_([this](
                     const detail::KernelProgram& program,
                     std::string_view entry) {
          ++num_launches;
          std::string key;
          for (const std::string& definition : program.definitions)
            key += definition + " ";
          return &kernel_table().at(key += entry);
        }) {
    runs_reversed = reversed;
  }

  int num_launches = 0;

 private:
  detail::EmulatedKernels kernels_;
};

}  // namespace accelerate::testing::cuda

// CUDA's words, which mean nothing to the rest of a test program.
#undef ACCELERATE_ON_HOST
#undef DEVICE
#undef KERNEL
#undef UNROLL
#undef __device__
#undef __forceinline__
#undef __shared__
#undef blockIdx
#undef gridDim
#undef threadIdx
