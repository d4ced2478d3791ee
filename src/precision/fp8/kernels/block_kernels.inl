// The members of cast_kernels.inl for blocks of kMxBlockSize values.

// Returns the scales for blocks' largest magnitudes (e8m0_of_amax and
// scale_of_e8m0 in precision/fp8/scale_rules.h): powers of two with the
// exponent, rounded down, of the format's largest value divided by the
// magnitude.
template <Float8Format format>
ACCELERATE_KERNEL static Words block_scales(Words magnitudes) {
  using N = Numbers<format>;
  constexpr std::uint32_t kMantissa = 0x7fffff;
  constexpr std::uint32_t kLargestExponent = 254;
  constexpr std::uint32_t kScaleOfInfinity = 1U << 22;
  constexpr std::uint32_t kNaN = 0x7fc00000;
  // All bits set (-1) where the mantissa is above that of the largest value.
  const Words is_above = (Words)((Ints)(magnitudes & kMantissa) >
                                 (Ints)all_of(N::kLargest & kMantissa));
  const Words exponent = smaller(
      all_of(127 + (N::kLargest >> 23)) - ((magnitudes >> 23) - is_above),
      all_of(kLargestExponent));
  return choose_below(
      magnitudes,
      kInfinity,
      exponent << 23,
      choose_below(
          magnitudes,
          kInfinity + 1,
          all_of(kScaleOfInfinity),
          all_of(kNaN)));
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void scales_of_blocks(
    const void* values,
    std::int64_t num_blocks,
    float* scales) {
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t first = block * kMxBlockSize;
    Words largest = magnitude_at<source>(values, first);
    for (std::int64_t i = kLanes; i < kMxBlockSize; i += kLanes)
      largest = larger(largest, magnitude_at<source>(values, first + i));
    scales[block] = largest_lane(largest);
  }
  std::int64_t i = 0;
  for (; i + kLanes <= num_blocks; i += kLanes) {
    const Words found =
        block_scales<format>(magnitude_at<CastSource::float32>(scales, i));
    std::memcpy(scales + i, &found, sizeof found);
  }
  if (i == num_blocks) return;
  const Rest<CastSource::float32> rest(scales, i, num_blocks);
  const Words found =
      block_scales<format>(magnitude_at<CastSource::float32>(rest.bytes, 0));
  std::memcpy(
      scales + i,
      &found,
      static_cast<std::size_t>(num_blocks - i) * sizeof(float));
}

template <Float8Format format, CastSource source>
ACCELERATE_KERNEL static void cast_blocks(
    const void* values,
    std::int64_t num_blocks,
    const float* scales,
    std::uint8_t* codes) {
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t first = block * kMxBlockSize;
    for (std::int64_t i = first; i < first + kMxBlockSize; i += kLanes)
      store(encode<format>(load<source>(values, i) * scales[block]), codes + i);
  }
}
