// Formats of float8, rounding to them, and their scales: the arithmetic of the
// kernels for processors (precision/fp8/kernels), with the same results.

struct E4m3 {
  static constexpr u32 kMantissaBits = 3;
  static constexpr u32 kBias = 7;
  static constexpr u32 kLargest = 0x43e00000u;  // 448
};

struct E5m2 {
  static constexpr u32 kMantissaBits = 2;
  static constexpr u32 kBias = 15;
  static constexpr u32 kLargest = 0x47600000u;  // 57344
};

template <class Format>
struct Numbers {
  // Number of fp32 mantissa bits that are rounded away.
  static constexpr u32 kShift = 23 - Format::kMantissaBits;
  static constexpr u32 kRebias = (127 - Format::kBias) << Format::kMantissaBits;
  static constexpr u32 kSmallestNormal = (128 - Format::kBias) << 23;
  static constexpr u32 kMagic = kSmallestNormal + (kShift << 23);
};

DEVICE u32 magnitude_of(float value) { return __float_as_uint(value) & ~kSign; }

DEVICE u32 with_sign(u32 code, u32 bits) {
  return ((bits & ~kSign) > kInfinity ? 0x7fu : code) | (bits & kSign) >> 24;
}

// Adding 2^(E + kShift) to a number with exponent E leaves kMantissaBits of its
// mantissa, rounded to nearest even, and its leading one in the lowest bits.
template <class Format>
DEVICE u32 encode(float value) {
  typedef Numbers<Format> N;
  const u32 bits = __float_as_uint(value);
  const u32 magnitude = bits & ~kSign;
  const u32 limited =
      magnitude < Format::kLargest ? magnitude : Format::kLargest;
  const u32 own = limited & kInfinity;
  const u32 exponent =
      (own < N::kSmallestNormal ? N::kSmallestNormal : own) -
      N::kSmallestNormal;
  const u32 magic = exponent + N::kMagic;
  const u32 sum =
      __float_as_uint(__uint_as_float(limited) + __uint_as_float(magic));
  return with_sign((sum - magic) + (exponent >> N::kShift), bits);
}

template <class Format>
DEVICE u32 encode_randomly(float value, u32 random) {
  typedef Numbers<Format> N;
  const u32 bits = __float_as_uint(value);
  const u32 magnitude = bits & ~kSign;
  const u32 limited =
      magnitude < Format::kLargest ? magnitude : Format::kLargest;
  const u32 normal =
      ((limited + (random >> (32 - N::kShift))) >> N::kShift) - N::kRebias;
  const u32 missing = (N::kSmallestNormal >> 23) - (limited >> 23);
  const u32 shift =
      (int)missing < (int)(31 - N::kShift) ? missing + N::kShift : 31;
  const u32 mantissa = (limited & 0x7fffffu) | 0x800000u;
  const u32 subnormal = limited < 0x800000u
      ? 0
      : (mantissa + (random >> ((32 - shift) & 31))) >> (shift & 31);
  return with_sign(limited < N::kSmallestNormal ? subnormal : normal, bits);
}

// The random number of a place: lowbias32 by C. Wellons (2018), applied to the
// place and the seed.
DEVICE u32 random_word(u64 place, u32 seed) {
  u32 x = (u32)place * 0x9e3779b9u + (seed + (u32)(place >> 32) * 0x85ebca6bu);
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

#if !defined(ACCELERATE_ON_HOST) && __CUDA_ARCH__ >= 890
#define HAS_FLOAT8_INSTRUCTIONS 1
// The instruction takes two values, the upper one first.
template <class Format>
DEVICE u32 encode_pair(float lower, float upper) {
  u16 codes;
  if (Format::kMantissaBits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(upper), "f"(lower));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(upper), "f"(lower));
  }
  return codes;
}
#endif

// The codes of four values.
template <class Format>
DEVICE u32 encode_four(const float* values) {
#ifdef HAS_FLOAT8_INSTRUCTIONS
  return encode_pair<Format>(values[0], values[1]) |
      encode_pair<Format>(values[2], values[3]) << 16;
#else
  return encode<Format>(values[0]) | encode<Format>(values[1]) << 8 |
      encode<Format>(values[2]) << 16 | encode<Format>(values[3]) << 24;
#endif
}

template <class Format>
DEVICE u32 encode_four_randomly(const float* values, u64 place, u32 seed) {
  u32 codes = 0;
UNROLL
  for (int i = 0; i < 4; ++i) {
    codes |= encode_randomly<Format>(values[i], random_word(place + i, seed))
        << 8 * i;
  }
  return codes;
}

// How a cast rounds.
template <class Format>
struct ToNearest {
  u32 seed;
  __device__ u32 four(const float* values, u64) const {
    return encode_four<Format>(values);
  }
  __device__ u32 one(float value, u64) const { return encode<Format>(value); }
};

template <class Format>
struct Randomly {
  u32 seed;
  __device__ u32 four(const float* values, u64 place) const {
    return encode_four_randomly<Format>(values, place, seed);
  }
  __device__ u32 one(float value, u64 place) const {
    return encode_randomly<Format>(value, random_word(place, seed));
  }
};

// The factor that maps an amax to the format's largest value.
template <class Format>
DEVICE float scale_of_amax(u32 amax_bits, bool power_of_2) {
  if (amax_bits > kInfinity) return __uint_as_float(0x7fc00000u);
  const double amax = (double)__uint_as_float(amax_bits);
  double scale = (double)__uint_as_float(Format::kLargest) /
      (amax < 1e-12 ? 1e-12 : amax);
  // The scale is 0 or a normal number.
  if (power_of_2) {
    scale = __longlong_as_double(
        __double_as_longlong(scale) & 0x7ff0000000000000LL);
  }
  return (float)scale;
}

// The factor of a block: the reciprocal of the smallest power of two that E8M0
// has and by which the amax can be divided without exceeding the format.
template <class Format>
DEVICE float scale_of_block(u32 amax) {
  if (amax > kInfinity) return __uint_as_float(0x7fc00000u);
  int code = 0xfe;
  if (amax < kInfinity) {
    const bool is_above =
        (amax & 0x7fffffu) > (Format::kLargest & 0x7fffffu);
    code = (int)(amax >> 23) - (int)(Format::kLargest >> 23) +
        (is_above ? 1 : 0) + 127;
    code = code < 0 ? 0 : code > 0xfe ? 0xfe : code;
  }
  // 2^-127 is subnormal.
  return __uint_as_float(code == 0xfe ? 1u << 22 : (u32)(254 - code) << 23);
}

// Writes `count` codes: at most four, and none if it is negative.
DEVICE void store_codes(u32 codes, i64 count, u8* to) {
  for (int i = 0; i < 4 && i < count; ++i) to[i] = (u8)(codes >> 8 * i);
}
