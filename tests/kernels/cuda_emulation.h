#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <c10/util/Half.h>

/// Runs the text of CUDA kernels on the processor: a block's threads are
/// fibers, which take turns at barriers and warp shuffles; blocks follow one
/// another. So results are those of the kernels' arithmetic, in the order in
/// which the device computes within a block. It finds accesses beyond tensors
/// (with a sanitizer), barriers that not all threads reach, and wrong results,
/// but no missing barrier between threads of different warps if they happen to
/// run in a harmless order: run with `reversed` as well.
namespace accelerate::testing::cuda {

struct Dim {
  unsigned x = 0;
};

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

/// A block's threads.
class Block {
 public:
  static constexpr int kThreads = 256;

  static Block& current() {
    static thread_local Block block;
    return block;
  }

  /// Runs `kernel` in `blocks` blocks.
  void
  run(std::int64_t blocks, bool reversed, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    grid.x = static_cast<unsigned>(blocks);
    for (unsigned i = 0; i < grid.x; ++i) {
      index.x = i;
      run_block(reversed);
    }
  }

  /// Waits until all threads of the block that still run are here.
  void wait() { swapcontext(&fiber(), &scheduler_); }

  /// Gives each thread the value of the one whose lane differs in `mask`. All
  /// lanes of the warp must take part.
  unsigned exchange(unsigned bits, int mask) {
    const unsigned own = thread.x;
    slots_[own] = bits;
    // Two rounds: all have written before anyone reads, and read before anyone
    // writes again.
    wait();
    const unsigned other =
        slots_[(own & ~31U) | ((own ^ static_cast<unsigned>(mask)) & 31U)];
    wait();
    return other;
  }

  Dim thread;
  Dim index;
  Dim grid;

 private:
  static constexpr std::size_t kStack = 64 << 10;

  Block() {
    for (auto& stack : stacks_) stack = std::make_unique<char[]>(kStack);
  }

  ucontext_t& fiber() { return fibers_[thread.x]; }

  static void begin() {
    Block& block = current();
    (*block.kernel_)();
    block.is_running_[block.thread.x] = false;
    swapcontext(&block.fiber(), &block.scheduler_);
  }

  void run_block(bool reversed) {
    is_running_.assign(kThreads, true);
    for (int i = 0; i < kThreads; ++i) {
      getcontext(&fibers_[i]);
      fibers_[i].uc_stack.ss_sp = stacks_[i].get();
      fibers_[i].uc_stack.ss_size = kStack;
      fibers_[i].uc_link = nullptr;
      makecontext(&fibers_[i], &begin, 0);
    }
    bool is_running = true;
    while (is_running) {
      is_running = false;
      for (int i = 0; i < kThreads; ++i) {
        thread.x = static_cast<unsigned>(reversed ? kThreads - 1 - i : i);
        if (!is_running_[thread.x]) continue;
        swapcontext(&scheduler_, &fiber());
        is_running = is_running || is_running_[thread.x];
      }
    }
  }

  const std::function<void()>* kernel_ = nullptr;
  ucontext_t scheduler_{};
  std::vector<ucontext_t> fibers_{kThreads};
  std::vector<std::unique_ptr<char[]>> stacks_{kThreads};
  std::vector<bool> is_running_;
  unsigned slots_[kThreads] = {};
};

// CUDA's own names.

inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline long long __double_as_longlong(double value) {
  return std::bit_cast<long long>(value);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline float __expf(float value) { return std::exp(value); }
inline float logf(float value) { return std::log(value); }
inline float rsqrtf(float value) { return 1.0F / std::sqrt(value); }
inline float erff(float value) { return std::erf(value); }
inline float tanhf(float value) { return std::tanh(value); }

inline void __syncthreads() { Block::current().wait(); }

template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  static_assert(sizeof(Value) == sizeof(unsigned));
  return std::bit_cast<Value>(
      Block::current().exchange(std::bit_cast<unsigned>(value), mask));
}

inline void atomicMax(unsigned* to, unsigned value) {
  *to = std::max(*to, value);
}

inline float host_widen_half(unsigned short bits) {
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}
inline unsigned short host_narrow_half(float value) {
  return c10::Half(value).x;
}

/// Runs one kernel. In both orders of threads, results must be the same.
inline void launch(
    std::int64_t blocks,
    bool reversed,
    const std::function<void()>& kernel) {
  Block::current().run(blocks, reversed, kernel);
}

}  // namespace accelerate::testing::cuda

#define ACCELERATE_ON_HOST
#undef KERNEL
#define KERNEL inline void
#define UNROLL
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define threadIdx Block::current().thread
#define blockIdx Block::current().index
#define gridDim Block::current().grid
