// Casts of matrices to MXFP8.
//
// VALUE: the dtype of the values. FORMAT: E4m3 or E5m2. ROUNDING: ToNearest or
// Randomly.

// Along rows: neighbouring threads share a block of 32 values. `scales`
// has one number per block, [rows, blocks of a row].
template <class Type, class Format, class Rounding>
DEVICE void cast_along_rows(
    const typename Type::Stored* from,
    i64 rows,
    i64 columns,
    float* scales,
    u8* codes,
    Rounding round) {
  constexpr int kVector = Type::kVector;
  constexpr int kShare = 32 / kVector;
  const bool whole = columns % 32 == 0;
  const bool aligned = whole && is_aligned(from);
  const i64 blocks = (columns + 31) / 32;
  const i64 total = rows * blocks * kShare;
  // All threads of a warp make the same number of passes.
  for (i64 base = (i64)blockIdx.x * kThreads; base < total;
       base += (i64)gridDim.x * kThreads) {
    const i64 i = base + threadIdx.x;
    const i64 block = i / kShare;
    const i64 row = whole ? 0 : block / blocks;
    const i64 column =
        (whole ? block : block % blocks) * 32 + i % kShare * kVector;
    const i64 first = row * columns + column;
    const int count = i >= total ? 0
        : whole                  ? kVector
                                 : values_before<Type>(columns, column);
    float values[kVector];
    load<Type>(from + first, count, aligned, values);
    u32 largest = 0;
UNROLL
    for (int j = 0; j < kVector; ++j)
      largest = Larger()(largest, magnitude_of(values[j]));
UNROLL
    for (int mask = kShare / 2; mask > 0; mask >>= 1) {
      largest =
          Larger()(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    }
    const float scale = scale_of_block<Format>(largest);
    if (i < total && i % kShare == 0) scales[block] = scale;
UNROLL
    for (int j = 0; j < kVector; ++j) values[j] *= scale;
UNROLL
    for (int j = 0; j < kVector; j += 4) {
      const u32 four = round.four(values + j, (u64)(first + j));
      if (whole && count > j) {
        *reinterpret_cast<u32*>(codes + first + j) = four;
      } else {
        store_codes(four, count - j, codes + first + j);
      }
    }
  }
}

// Along columns: each thread has 32 values of a column. `scales`: [blocks
// of a column, columns]; codes are written in the order of the transpose.
template <class Type, class Format, class Rounding>
DEVICE void cast_along_columns(
    const typename Type::Stored* from,
    i64 rows,
    i64 columns,
    float* scales,
    u8* transposed,
    Rounding round) {
  const i64 pieces = (columns + kThreads - 1) / kThreads;
  const i64 column = blockIdx.x % pieces * kThreads + threadIdx.x;
  const i64 block = blockIdx.x / pieces;
  const i64 first_row = block * 32;
  if (column >= columns) return;
  const int count = rows - first_row < 32 ? (int)(rows - first_row) : 32;
  float values[32];
  u32 largest = 0;
UNROLL
  for (int i = 0; i < 32; ++i) {
    values[i] = i < count
        ? Type::widen(from[(first_row + i) * columns + column])
        : 0.0f;
    largest = Larger()(largest, magnitude_of(values[i]));
  }
  const float scale = scale_of_block<Format>(largest);
  scales[block * columns + column] = scale;
  u8* const to = transposed + column * rows + first_row;
UNROLL
  for (int i = 0; i < 32; i += 4) {
    u32 four = 0;
UNROLL
    for (int j = 0; j < 4; ++j) {
      four |= round.one(
                  values[i + j] * scale,
                  (u64)((first_row + i + j) * columns + column))
          << 8 * j;
    }
    if (rows % 4 == 0) {
      if (i < count) *reinterpret_cast<u32*>(to + i) = four;
    } else {
      store_codes(four, count - i, to + i);
    }
  }
}

KERNEL cast_blocks_of_rows(
    const VALUE::Stored* values,
    i64 rows,
    i64 columns,
    float* scales,
    u8* codes,
    u32 seed) {
  cast_along_rows<VALUE, FORMAT>(
      values, rows, columns, scales, codes, ROUNDING<FORMAT>{seed});
}

KERNEL cast_blocks_of_columns(
    const VALUE::Stored* values,
    i64 rows,
    i64 columns,
    float* scales,
    u8* transposed,
    u32 seed) {
  cast_along_columns<VALUE, FORMAT>(
      values, rows, columns, scales, transposed, ROUNDING<FORMAT>{seed});
}
