// Kernels that decode values; a part of cast_kernels.inl.

template <Float8Format format>
ACCELERATE_KERNEL static Floats decoded(const std::uint8_t* codes) {
  using N = Numbers<format>;
  Bytes bytes;
  std::memcpy(&bytes, codes, sizeof bytes);
  const Words code = widen(bytes);
  const Words sign = (code & 0x80) << 24;
  const Words magnitude = (code & 0x7f) << N::kShift;
  // Subnormal numbers get a leading one, which is subtracted again.
  constexpr std::uint32_t kExponent = (127 - N::kBias) << 23;
  const Words smallest = all_of(kExponent + (1U << 23));
  const Words subnormal =
      (Words)((Floats)(magnitude | smallest) - (Floats)smallest);
  const Words finite = choose_below(
      magnitude, 1U << 23, subnormal, magnitude + all_of(kExponent));
  if constexpr (N::kIsUz) {
    const Words is_nan = (Words)((Ints)code == (Ints)all_of(0x80));
    return (Floats)((finite | sign) | (is_nan & 0x7fc00000));
  } else {
    // The largest code of e4m3 is NaN; e5m2 has an infinity, and three NaNs.
    constexpr std::uint32_t kFirst = N::kIsE4m3 ? 0x7f : 0x7c;
    const Words special =
        ((code & (N::kIsE4m3 ? 7U : 3U)) << N::kShift) | all_of(kInfinity);
    return (Floats)(choose_below(code & 0x7f, kFirst, finite, special) | sign);
  }
}

template <Float8Format format>
ACCELERATE_KERNEL static void decode(
    const std::uint8_t* codes,
    std::int64_t count,
    float scale,
    float* values) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats found = decoded<format>(codes + i) / scale;
    std::memcpy(values + i, &found, sizeof found);
  }
  if (i == count) return;
  std::uint8_t rest[kLanes] = {};
  std::memcpy(rest, codes + i, static_cast<std::size_t>(count - i));
  const Floats found = decoded<format>(rest) / scale;
  std::memcpy(
      values + i, &found, static_cast<std::size_t>(count - i) * sizeof(float));
}

template <Float8Format format>
ACCELERATE_KERNEL static void decode_columns(
    const std::uint8_t* codes,
    std::int64_t count,
    const float* scales,
    float* values) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats found =
        decoded<format>(codes + i) / load<CastSource::float32>(scales, i);
    std::memcpy(values + i, &found, sizeof found);
  }
  if (i == count) return;
  std::uint8_t rest[kLanes] = {};
  std::memcpy(rest, codes + i, static_cast<std::size_t>(count - i));
  const Rest<CastSource::float32> scales_of_rest(scales, i, count);
  const Floats found = decoded<format>(rest) /
      load<CastSource::float32>(scales_of_rest.bytes, 0);
  std::memcpy(
      values + i, &found, static_cast<std::size_t>(count - i) * sizeof(float));
}
