#include "comm/transport/shared_memory/operations/combine.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Float8_e8m0fnu.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

namespace accelerate::detail {

namespace {

// Number of elements combined at once, so that they stay in the L1 cache.
constexpr std::size_t kBlock = 1024;

template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);

template <class T>
inline constexpr bool is_narrow = is_one_of<
    T,
    c10::Half,
    c10::BFloat16,
    c10::Float8_e4m3fn,
    c10::Float8_e4m3fnuz,
    c10::Float8_e5m2,
    c10::Float8_e5m2fnuz,
    c10::Float8_e8m0fnu>;

template <class T>
struct AccumulateAs {
  using type = T;
};
template <class T>
  requires is_narrow<T>
struct AccumulateAs<T> {
  using type = float;
};
// Signed overflow is undefined; unsigned sums and products have the same bits.
template <class T>
  requires std::signed_integral<T>
struct AccumulateAs<T> {
  using type = std::make_unsigned_t<T>;
};

template <class A>
struct Sum {
  static A apply(A a, A b) { return static_cast<A>(a + b); }
};
template <class A>
struct Product {
  // Through unsigned: small integers would be promoted to int, which can
  // overflow.
  static A apply(A a, A b) {
    if constexpr (std::unsigned_integral<A> && sizeof(A) < sizeof(unsigned)) {
      return static_cast<A>(static_cast<unsigned>(a) * b);
    } else {
      return static_cast<A>(a * b);
    }
  }
};
template <class A>
struct BitAnd {
  static A apply(A a, A b) { return static_cast<A>(a & b); }
};
template <class A>
struct BitOr {
  static A apply(A a, A b) { return static_cast<A>(a | b); }
};
template <class A>
struct BitXor {
  static A apply(A a, A b) { return static_cast<A>(a ^ b); }
};
// NaN wins, as in at::minimum and at::maximum.
template <class A>
struct Min {
  static A apply(A a, A b) {
    if constexpr (std::floating_point<A>) {
      if (b != b) return b;
      return b < a ? b : a;
    } else {
      return std::min(a, b);
    }
  }
};
template <class A>
struct Max {
  static A apply(A a, A b) {
    if constexpr (std::floating_point<A>) {
      if (b != b) return b;
      return a < b ? b : a;
    } else {
      return std::max(a, b);
    }
  }
};

template <class T, class A, template <class> class Op>
void combine(
    void* out,
    const void* const* sources,
    int num_sources,
    std::size_t count) {
  std::array<A, kBlock> sum;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    const T* const first = static_cast<const T*>(sources[0]) + begin;
    const T* const second = static_cast<const T*>(sources[1]) + begin;
    for (std::size_t i = 0; i < length; ++i) {
      sum[i] =
          Op<A>::apply(static_cast<A>(first[i]), static_cast<A>(second[i]));
    }
    for (int k = 2; k < num_sources; ++k) {
      const T* const next = static_cast<const T*>(sources[k]) + begin;
      for (std::size_t i = 0; i < length; ++i)
        sum[i] = Op<A>::apply(sum[i], static_cast<A>(next[i]));
    }
    T* const to = static_cast<T*>(out) + begin;
    for (std::size_t i = 0; i < length; ++i) to[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
using Accumulator = typename AccumulateAs<T>::type;

template <class T>
CombineFunction of_numbers(ReduceOp op) {
  // Comparisons use T itself; signed sums are computed on unsigned values.
  using Ordered = std::conditional_t<std::integral<T>, T, Accumulator<T>>;
  switch (op) {
    case ReduceOp::sum:
      return &combine<T, Accumulator<T>, Sum>;
    case ReduceOp::product:
      return &combine<T, Accumulator<T>, Product>;
    case ReduceOp::min:
      return &combine<T, Ordered, Min>;
    case ReduceOp::max:
      return &combine<T, Ordered, Max>;
    default:
      return nullptr;
  }
}

template <std::integral T>
CombineFunction of_integers(ReduceOp op) {
  switch (op) {
    case ReduceOp::bit_and:
      return &combine<T, Accumulator<T>, BitAnd>;
    case ReduceOp::bit_or:
      return &combine<T, Accumulator<T>, BitOr>;
    case ReduceOp::bit_xor:
      return &combine<T, Accumulator<T>, BitXor>;
    default:
      return of_numbers<T>(op);
  }
}

// Bytes 0 and 1.
CombineFunction of_booleans(ReduceOp op) {
  using Byte = std::uint8_t;
  switch (op) {
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return of_integers<Byte>(ReduceOp::min);
    case ReduceOp::bit_xor:
      return of_integers<Byte>(op);
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or:
      return of_integers<Byte>(ReduceOp::max);
    default:
      return nullptr;
  }
}

template <class T>
CombineFunction of_complex(ReduceOp op) {
  return op == ReduceOp::sum ? &combine<T, T, Sum> : nullptr;
}

CombineFunction function_for(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kBool:
      return of_booleans(op);
    case at::kByte:
      return of_integers<std::uint8_t>(op);
    case at::kChar:
      return of_integers<std::int8_t>(op);
    case at::kShort:
      return of_integers<std::int16_t>(op);
    case at::kUInt16:
      return of_integers<std::uint16_t>(op);
    case at::kInt:
      return of_integers<std::int32_t>(op);
    case at::kUInt32:
      return of_integers<std::uint32_t>(op);
    case at::kLong:
      return of_integers<std::int64_t>(op);
    case at::kUInt64:
      return of_integers<std::uint64_t>(op);
    case at::kHalf:
      return of_numbers<c10::Half>(op);
    case at::kBFloat16:
      return of_numbers<c10::BFloat16>(op);
    case at::kFloat:
      return of_numbers<float>(op);
    case at::kDouble:
      return of_numbers<double>(op);
    case at::kFloat8_e4m3fn:
      return of_numbers<c10::Float8_e4m3fn>(op);
    case at::kFloat8_e4m3fnuz:
      return of_numbers<c10::Float8_e4m3fnuz>(op);
    case at::kFloat8_e5m2:
      return of_numbers<c10::Float8_e5m2>(op);
    case at::kFloat8_e5m2fnuz:
      return of_numbers<c10::Float8_e5m2fnuz>(op);
    case at::kFloat8_e8m0fnu:
      return of_numbers<c10::Float8_e8m0fnu>(op);
    case at::kComplexHalf:
      // Complex numbers count as two halves: see element_bytes below.
      return op == ReduceOp::sum ? of_numbers<c10::Half>(op) : nullptr;
    case at::kComplexFloat:
      return of_complex<c10::complex<float>>(op);
    case at::kComplexDouble:
      return of_complex<c10::complex<double>>(op);
    default:
      return nullptr;
  }
}

}  // namespace

Combination combination_of(at::ScalarType dtype, ReduceOp op) {
  return {
      .function = function_for(dtype, op),
      .element_bytes = dtype == at::kComplexHalf ? 2 : c10::elementSize(dtype),
      .dtype = dtype,
      .op = op};
}

}  // namespace accelerate::detail
