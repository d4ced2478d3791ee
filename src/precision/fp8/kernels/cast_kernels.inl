// The members that all instruction sets share, included into a struct that has
// the vector types Floats and Words (uint32_t), Ints (int32_t), Halves
// (uint16_t) and Bytes (uint8_t), all of kLanes elements, with
// ACCELERATE_KERNEL, the attributes of its functions. The struct also has the
// functions for which g++ 12 would use several instructions instead of the
// set's single one: widen (Halves and Bytes to Words), narrow (Words to Bytes),
// smaller and larger of two Words without a sign bit, and largest_word of such
// Words.

// A format's constants; bits are those of fp32.
template <Float8Format format>
struct Numbers {
  static constexpr bool kIsUz =
      format == Float8Format::e4m3fnuz || format == Float8Format::e5m2fnuz;
  static constexpr bool kIsE4m3 =
      format == Float8Format::e4m3fn || format == Float8Format::e4m3fnuz;
  static constexpr std::uint32_t kMantissaBits = kIsE4m3 ? 3 : 2;
  static constexpr std::uint32_t kBias = (kIsE4m3 ? 7 : 15) + (kIsUz ? 1 : 0);
  // Number of fp32 mantissa bits that are rounded away.
  static constexpr std::uint32_t kShift = 23 - kMantissaBits;
  static constexpr std::uint32_t kRebias = (127 - kBias) << kMantissaBits;
  static constexpr std::uint32_t kLargest =
      std::bit_cast<std::uint32_t>(largest_value(format));
  static constexpr std::uint32_t kSmallestNormal = (128 - kBias) << 23;
  // The power of two above which fp32 numbers have the same spacing as the
  // format's numbers above its smallest normal one.
  static constexpr std::uint32_t kMagic = kSmallestNormal + (kShift << 23);
};

static constexpr std::uint32_t kSign = 0x80000000;
static constexpr std::uint32_t kInfinity = 0x7f800000;

ACCELERATE_KERNEL static Words all_of(std::uint32_t value) {
  return Words{} + value;
}

// Compares vectors as signed numbers, which all processors support; magnitudes
// have no sign bit.
ACCELERATE_KERNEL static Words
choose_below(Words value, std::uint32_t limit, Words below, Words otherwise) {
  return (Ints)value < (Ints)all_of(limit) ? below : otherwise;
}

template <CastSource source>
ACCELERATE_KERNEL static Floats load(const void* values, std::int64_t index) {
  if constexpr (source == CastSource::float32) {
    Floats loaded;
    std::memcpy(
        &loaded, static_cast<const float*>(values) + index, sizeof loaded);
    return loaded;
  } else {
    Halves halves;
    std::memcpy(
        &halves,
        static_cast<const std::uint16_t*>(values) + index,
        sizeof halves);
    const Words words = widen(halves);
    if constexpr (source == CastSource::bfloat16) return (Floats)(words << 16);
    // A multiplication corrects the exponent's bias and makes subnormal numbers
    // normal.
    const Words magnitude = (words & 0x7fff) << 13;
    const Words scaled =
        (Words)((Floats)magnitude * std::bit_cast<float>(0x77800000U));
    const Words finite = choose_below(
        magnitude, 0x7c00U << 13, scaled, scaled | all_of(kInfinity));
    return (Floats)(finite | (words & 0x8000) << 16);
  }
}

template <Float8Format format>
ACCELERATE_KERNEL static Words
with_sign(Words code, Words magnitude, Words sign) {
  using N = Numbers<format>;
  if constexpr (N::kIsUz) {
    const Words signed_code = code | sign >> 24;
    const Words number = (Ints)code == (Ints)all_of(0) ? code : signed_code;
    return choose_below(magnitude, kInfinity + 1, number, all_of(0x80));
  } else {
    return choose_below(magnitude, kInfinity + 1, code, all_of(0x7f)) |
        sign >> 24;
  }
}

// Rounds by an addition: adding 2^(E + kShift) to a number with exponent E
// leaves kMantissaBits of its mantissa, and its leading one, in the lowest
// bits. Smaller numbers use the smallest normal exponent, which gives subnormal
// ones.
template <Float8Format format>
ACCELERATE_KERNEL static Words encode(Floats value) {
  using N = Numbers<format>;
  const Words bits = (Words)value;
  const Words sign = bits & kSign;
  const Words magnitude = bits ^ sign;
  const Words limited = smaller(magnitude, all_of(N::kLargest));
  const Words exponent =
      larger(limited & kInfinity, all_of(N::kSmallestNormal)) -
      N::kSmallestNormal;
  const Words magic = exponent + all_of(N::kMagic);
  const Words sum = (Words)((Floats)limited + (Floats)magic);
  return with_sign<format>(
      (sum - magic) + (exponent >> N::kShift), magnitude, sign);
}

/// Random numbers for consecutive places: the finalizer of a hash, lowbias32 by
/// C. Wellons (2018), applied to the place and the seed.
struct RandomWords {
  ACCELERATE_KERNEL explicit RandomWords(RandomPlace from) : start(from) {
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = static_cast<std::uint32_t>(lane);
  }

  // Places above 2^32 change the seed.
  ACCELERATE_KERNEL Words at(std::int64_t index) const {
    const std::uint64_t first = start.first + static_cast<std::uint64_t>(index);
    const auto low = static_cast<std::uint32_t>(first);
    const Words places = lanes + low;
    // Lanes after an overflow have small numbers.
    const Words is_over =
        (Words)((Ints)(places ^ kSign) < (Ints)all_of(low ^ kSign));
    const Words high = static_cast<std::uint32_t>(first >> 32) - is_over;
    const Words seeds = start.seed + high * 0x85ebca6bU;
    Words x = places * 0x9e3779b9U + seeds;
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    return x ^ x >> 16;
  }

  RandomPlace start;
  Words lanes{};
};

template <Float8Format format>
ACCELERATE_KERNEL static Words encode_randomly(Floats value, Words random) {
  using N = Numbers<format>;
  const Words bits = (Words)value;
  const Words sign = bits & kSign;
  const Words magnitude = bits ^ sign;
  const Words limited =
      choose_below(magnitude, N::kLargest, magnitude, all_of(N::kLargest));
  const Words normal =
      ((limited + (random >> (32 - N::kShift))) >> N::kShift) - N::kRebias;
  // Below the smallest normal number the spacing stays the same, so more bits
  // of the mantissa, which now includes its leading one, are rounded away.
  const Words exponent = limited >> 23;
  const Words missing = all_of(N::kSmallestNormal >> 23) - exponent;
  const Words shift =
      choose_below(missing, 31 - N::kShift, missing + N::kShift, all_of(31));
  const Words mantissa = (limited & 0x7fffff) | 0x800000;
  const Words subnormal = choose_below(
      limited,
      0x800000,
      all_of(0),
      (mantissa + (random >> (all_of(32) - shift))) >> shift);
  return with_sign<format>(
      choose_below(limited, N::kSmallestNormal, subnormal, normal),
      magnitude,
      sign);
}

ACCELERATE_KERNEL static void store(Words codes, std::uint8_t* out) {
  const Bytes bytes = narrow(codes);
  std::memcpy(out, &bytes, sizeof bytes);
}

// The last values, fewer than a full vector, padded with zeros.
template <CastSource source>
struct Rest {
  static constexpr std::size_t kSize =
      source == CastSource::float32 ? sizeof(float) : sizeof(std::uint16_t);

  ACCELERATE_KERNEL
  Rest(const void* values, std::int64_t begin, std::int64_t count) {
    std::memcpy(
        bytes,
        static_cast<const std::byte*>(values) +
            static_cast<std::size_t>(begin) * kSize,
        static_cast<std::size_t>(count - begin) * kSize);
  }

  std::byte bytes[kLanes * kSize] = {};
};

ACCELERATE_KERNEL static void store_rest(
    Words codes,
    std::int64_t begin,
    std::int64_t count,
    std::uint8_t* out) {
  std::uint8_t all[kLanes];
  store(codes, all);
  std::memcpy(out + begin, all, static_cast<std::size_t>(count - begin));
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void
cast(const void* values, std::int64_t count, float scale, std::uint8_t* codes) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(encode<format>(load<source>(values, i) * scale), codes + i);
  if (i == count) return;
  const Rest<source> rest(values, i, count);
  store_rest(
      encode<format>(load<source>(rest.bytes, 0) * scale), i, count, codes);
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void cast_columns(
    const void* values,
    std::int64_t count,
    const float* scales,
    std::uint8_t* codes) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(
        encode<format>(
            load<source>(values, i) * load<CastSource::float32>(scales, i)),
        codes + i);
  }
  if (i == count) return;
  const Rest<source> rest(values, i, count);
  const Rest<CastSource::float32> scales_of_rest(scales, i, count);
  store_rest(
      encode<format>(
          load<source>(rest.bytes, 0) *
          load<CastSource::float32>(scales_of_rest.bytes, 0)),
      i,
      count,
      codes);
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void cast_randomly(
    const void* values,
    std::int64_t count,
    float scale,
    RandomPlace place,
    std::uint8_t* codes) {
  const RandomWords random(place);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(
        encode_randomly<format>(load<source>(values, i) * scale, random.at(i)),
        codes + i);
  }
  if (i == count) return;
  const Rest<source> rest(values, i, count);
  store_rest(
      encode_randomly<format>(
          load<source>(rest.bytes, 0) * scale, random.at(i)),
      i,
      count,
      codes);
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void cast_columns_randomly(
    const void* values,
    std::int64_t count,
    const float* scales,
    RandomPlace place,
    std::uint8_t* codes) {
  const RandomWords random(place);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(
        encode_randomly<format>(
            load<source>(values, i) * load<CastSource::float32>(scales, i),
            random.at(i)),
        codes + i);
  }
  if (i == count) return;
  const Rest<source> rest(values, i, count);
  const Rest<CastSource::float32> scales_of_rest(scales, i, count);
  store_rest(
      encode_randomly<format>(
          load<source>(rest.bytes, 0) *
              load<CastSource::float32>(scales_of_rest.bytes, 0),
          random.at(i)),
      i,
      count,
      codes);
}

#include "precision/fp8/kernels/decode_kernels.inl"

// As integers, magnitudes order like the numbers, with NaN above all.
template <CastSource source>
ACCELERATE_KERNEL static Words magnitude_at(
    const void* values,
    std::int64_t index) {
  return (Words)load<source>(values, index) & ~kSign;
}

ACCELERATE_KERNEL static float largest_lane(Words magnitudes) {
  return std::bit_cast<float>(largest_word(magnitudes));
}

#include "precision/fp8/kernels/block_kernels.inl"

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static float cast_finding_amax(
    const void* values,
    std::int64_t count,
    float scale,
    std::uint8_t* codes) {
  Words largest{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats loaded = load<source>(values, i);
    largest = larger(largest, (Words)loaded & ~kSign);
    store(encode<format>(loaded * scale), codes + i);
  }
  if (i < count) {
    const Rest<source> rest(values, i, count);
    const Floats loaded = load<source>(rest.bytes, 0);
    largest = larger(largest, (Words)loaded & ~kSign);
    store_rest(encode<format>(loaded * scale), i, count, codes);
  }
  return largest_lane(largest);
}

template <CastSource source>
ACCELERATE_KERNEL static float amax(const void* values, std::int64_t count) {
  Words largest{};
  Words second{};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    largest = larger(largest, magnitude_at<source>(values, i));
    second = larger(second, magnitude_at<source>(values, i + kLanes));
  }
  largest = larger(largest, second);
  for (; i + kLanes <= count; i += kLanes)
    largest = larger(largest, magnitude_at<source>(values, i));
  if (i < count) {
    const Rest<source> rest(values, i, count);
    largest = larger(largest, magnitude_at<source>(rest.bytes, 0));
  }
  return largest_lane(largest);
}

template <CastSource source>
ACCELERATE_KERNEL static void
amax_of_columns(const void* values, std::int64_t count, float* amax) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Words found = larger(
        magnitude_at<source>(values, i),
        magnitude_at<CastSource::float32>(amax, i));
    std::memcpy(amax + i, &found, sizeof found);
  }
  if (i == count) return;
  const Rest<source> rest(values, i, count);
  const Rest<CastSource::float32> amax_of_rest(amax, i, count);
  const Words found = larger(
      magnitude_at<source>(rest.bytes, 0),
      magnitude_at<CastSource::float32>(amax_of_rest.bytes, 0));
  std::memcpy(
      amax + i, &found, static_cast<std::size_t>(count - i) * sizeof(float));
}

template <Float8Format format, CastSource source>
static constexpr void add_format(CastKernels& set) {
  constexpr auto kFormat = static_cast<std::size_t>(format);
  constexpr auto kSource = static_cast<std::size_t>(source);
  set.cast[kFormat][kSource] = &cast<format, source>;
  set.cast_finding_amax[kFormat][kSource] = &cast_finding_amax<format, source>;
  set.cast_columns[kFormat][kSource] = &cast_columns<format, source>;
  set.scales_of_blocks[kFormat][kSource] = &scales_of_blocks<format, source>;
  set.cast_blocks[kFormat][kSource] = &cast_blocks<format, source>;
  set.cast_randomly[kFormat][kSource] = &cast_randomly<format, source>;
  set.cast_columns_randomly[kFormat][kSource] =
      &cast_columns_randomly<format, source>;
  set.decode[kFormat] = &decode<format>;
  set.decode_columns[kFormat] = &decode_columns<format>;
}

template <CastSource source>
static constexpr void add_source(CastKernels& set) {
  add_format<Float8Format::e4m3fn, source>(set);
  add_format<Float8Format::e5m2, source>(set);
  add_format<Float8Format::e4m3fnuz, source>(set);
  add_format<Float8Format::e5m2fnuz, source>(set);
  constexpr auto kSource = static_cast<std::size_t>(source);
  set.amax[kSource] = &amax<source>;
  set.amax_of_columns[kSource] = &amax_of_columns<source>;
}
