// Definitions that all kernels share. NVRTC has no standard headers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#ifndef ACCELERATE_ON_HOST
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define UNROLL _Pragma("unroll")
#endif

// Every kernel runs in blocks of this many threads.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr u32 kSign = 0x80000000u;
constexpr u32 kInfinity = 0x7f800000u;

// The dtypes in memory: 16 bytes are kVector values.
struct Float32 {
  typedef float Stored;
  static constexpr int kVector = 4;
  static __device__ __forceinline__ float widen(float value) { return value; }
  static __device__ __forceinline__ float narrow(float value) { return value; }
};

struct BFloat16 {
  typedef u16 Stored;
  static constexpr int kVector = 8;
  static __device__ __forceinline__ float widen(u16 bits) {
    return __uint_as_float((u32)bits << 16);
  }
  // Rounds to nearest even, as LibTorch does.
  static __device__ __forceinline__ u16 narrow(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & ~kSign) > kInfinity) return 0x7fc0;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct Float16 {
  typedef u16 Stored;
  static constexpr int kVector = 8;
  static __device__ __forceinline__ float widen(u16 bits) {
#ifdef ACCELERATE_ON_HOST
    return host_widen_half(bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
  }
  static __device__ __forceinline__ u16 narrow(float value) {
#ifdef ACCELERATE_ON_HOST
    return host_narrow_half(value);
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
  }
};

template <class Type>
union Vector {
  uint4 words;
  typename Type::Stored values[Type::kVector];
};

// Reads `count` values, at most a vector, and fills up with zeros. `aligned`: a
// whole vector may be read at once.
template <class Type>
DEVICE void load(
    const typename Type::Stored* from,
    int count,
    bool aligned,
    float* values) {
  if (aligned && count == Type::kVector) {
    Vector<Type> vector;
    vector.words = *reinterpret_cast<const uint4*>(from);
    UNROLL
    for (int i = 0; i < Type::kVector; ++i)
      values[i] = Type::widen(vector.values[i]);
  } else {
    UNROLL
    for (int i = 0; i < Type::kVector; ++i)
      values[i] = i < count ? Type::widen(from[i]) : 0.0f;
  }
}

template <class Type>
DEVICE void
store(const float* values, int count, bool aligned, typename Type::Stored* to) {
  if (aligned && count == Type::kVector) {
    Vector<Type> vector;
    UNROLL
    for (int i = 0; i < Type::kVector; ++i)
      vector.values[i] = Type::narrow(values[i]);
    *reinterpret_cast<uint4*>(to) = vector.words;
  } else {
    UNROLL
    for (int i = 0; i < Type::kVector; ++i)
      if (i < count) to[i] = Type::narrow(values[i]);
  }
}

DEVICE bool is_aligned(const void* pointer) {
  return (reinterpret_cast<u64>(pointer) & 15) == 0;
}

// How many of a vector's values lie before `end`.
template <class Type>
DEVICE int values_before(i64 end, i64 first) {
  const i64 left = end - first;
  return left <= 0 ? 0 : left < Type::kVector ? (int)left : Type::kVector;
}

struct Larger {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a < b ? b : a;
  }
};

struct Plus {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};

// Joins the values of all threads of the block, for all of them.
template <class Value, class Join>
DEVICE Value join_block(Value value, Join join) {
  __shared__ Value of_warps[kWarps];
  UNROLL
  for (int mask = 16; mask > 0; mask >>= 1)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, mask));
  // The values of an earlier call have been read by all.
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[0];
  UNROLL
  for (int warp = 1; warp < kWarps; ++warp) value = join(value, of_warps[warp]);
  return value;
}
