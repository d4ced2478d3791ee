// Casts of matrices to float8 with a scale per row.
//
// VALUE: the dtype of the values. FORMAT: E4m3 or E5m2. ROUNDING: ToNearest or
// Randomly.

// One scale per row, from its own values. A block has a row at a time.
template <class Type, class Format, class Rounding>
DEVICE void cast_rows_of(
    const typename Type::Stored* from,
    i64 rows,
    i64 columns,
    bool power_of_2,
    float* scales,
    u8* codes,
    Rounding round) {
  constexpr int kVector = Type::kVector;
  const bool whole = columns % kVector == 0;
  const bool aligned = whole && is_aligned(from);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const typename Type::Stored* const own = from + row * columns;
    u32 largest = 0;
    float values[kVector];
    for (i64 i = threadIdx.x * kVector; i < columns; i += kThreads * kVector) {
      load<Type>(own + i, values_before<Type>(columns, i), aligned, values);
UNROLL
      for (int j = 0; j < kVector; ++j)
        largest = Larger()(largest, magnitude_of(values[j]));
    }
    largest = join_block(largest, Larger());
    const float scale = scale_of_amax<Format>(largest, power_of_2);
    if (threadIdx.x == 0) scales[row] = scale;
    for (i64 i = threadIdx.x * kVector; i < columns; i += kThreads * kVector) {
      const int count = values_before<Type>(columns, i);
      load<Type>(own + i, count, aligned, values);
UNROLL
      for (int j = 0; j < kVector; ++j) values[j] *= scale;
      const i64 first = row * columns + i;
UNROLL
      for (int j = 0; j < kVector; j += 4) {
        const u32 four = round.four(values + j, (u64)(first + j));
        if (whole) {
          *reinterpret_cast<u32*>(codes + first + j) = four;
        } else {
          store_codes(four, count - j, codes + first + j);
        }
      }
    }
  }
}

KERNEL cast_rows(
    const VALUE::Stored* values,
    i64 rows,
    i64 columns,
    int power_of_2,
    float* scales,
    u8* codes,
    u32 seed) {
  cast_rows_of<VALUE, FORMAT>(
      values,
      rows,
      columns,
      power_of_2 != 0,
      scales,
      codes,
      ROUNDING<FORMAT>{seed});
}
