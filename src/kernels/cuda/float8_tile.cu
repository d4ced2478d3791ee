// Casts of matrices to float8, with the transposed copy in the same pass.
//
// VALUE: the dtype of the values. FORMAT: E4m3 or E5m2. ROUNDING: ToNearest or
// Randomly.

// The numbers from which a scale is computed.
enum ScaleKind {
  kGivenScale = 0,    // scales[0] is the scale of all
  kAmaxOfAll = 1,     // scales[0] is the bits of the amax of all
  kAmaxOfColumns = 2  // scales[column] is the bits of the amax of a column
};

struct Tile {
  i64 rows;
  i64 columns;
  const u32* scales;
  int kind;
  int power_of_2;
  // Each of these may be null.
  float* made_scales;
  u8* codes;
  u8* transposed;
  u32* amax;
};

template <class Format>
DEVICE float scale_of_column(const Tile& tile, i64 column) {
  if (tile.kind == kGivenScale) return __uint_as_float(tile.scales[0]);
  return scale_of_amax<Format>(
      tile.scales[tile.kind == kAmaxOfColumns ? column : 0], tile.power_of_2);
}

// Reads 64 x 64 values once; writes codes in the order of the matrix and of its
// transpose.
template <class Type, class Format, class Rounding>
DEVICE void cast_tile_of(
    const typename Type::Stored* from,
    const Tile& tile,
    Rounding round) {
  constexpr int kSize = 64;
  constexpr int kVector = Type::kVector;
  constexpr int kVectors = kSize / kVector;
  constexpr int kRows = kThreads / kVectors;
  __shared__ u32 words[kSize][kSize / 4 + 1];
  __shared__ float scales[kSize];
  const i64 pieces = (tile.columns + kSize - 1) / kSize;
  const i64 first_row = blockIdx.x / pieces * kSize;
  const i64 first_column = blockIdx.x % pieces * kSize;
  const int thread = threadIdx.x;
  if (thread < kSize && first_column + thread < tile.columns) {
    const i64 column = first_column + thread;
    scales[thread] = scale_of_column<Format>(tile, column);
    const bool is_first = tile.kind == kAmaxOfColumns
        ? first_row == 0
        : blockIdx.x == 0 && thread == 0;
    if (tile.made_scales && is_first) {
      tile.made_scales[tile.kind == kAmaxOfColumns ? column : 0] =
          scales[thread];
    }
  } else if (thread < kSize) {
    scales[thread] = 0.0f;
  }
  __syncthreads();

  const bool whole = tile.columns % kVector == 0;
  const bool aligned = whole && is_aligned(from);
  const int place = thread % kVectors * kVector;
  const i64 column = first_column + place;
  u32 largest = 0;
  UNROLL
  for (int pass = 0; pass < kSize / kRows; ++pass) {
    const int row_of_tile = pass * kRows + thread / kVectors;
    const i64 row = first_row + row_of_tile;
    const int count =
        row < tile.rows ? values_before<Type>(tile.columns, column) : 0;
    const i64 first = row * tile.columns + column;
    float values[kVector];
    load<Type>(from + first, count, aligned, values);
    u32 codes[kVector / 4];
    UNROLL
    for (int i = 0; i < kVector; ++i) {
      largest = Larger()(largest, magnitude_of(values[i]));
      values[i] *= scales[place + i];
    }
    UNROLL
    for (int i = 0; i < kVector / 4; ++i) {
      codes[i] = round.four(values + 4 * i, (u64)(first + 4 * i));
      words[row_of_tile][place / 4 + i] = codes[i];
    }
    if (!tile.codes || count == 0) continue;
    u8* const to = tile.codes + first;
    if (!whole) {
      for (int i = 0; i < kVector / 4; ++i)
        store_codes(codes[i], count - 4 * i, to + 4 * i);
    } else if (kVector == 8) {
      uint2 pair;
      pair.x = codes[0];
      pair.y = codes[kVector / 4 - 1];
      *reinterpret_cast<uint2*>(to) = pair;
    } else {
      *reinterpret_cast<u32*>(to) = codes[0];
    }
  }
  if (tile.amax) {
    largest = join_block(largest, Larger());
    if (thread == 0) atomicMax(tile.amax, largest);
  }
  if (!tile.transposed) return;

  // Each thread writes 16 codes of a column.
  __syncthreads();
  const int own_column = thread / 4;
  const int own_row = thread % 4 * 16;
  const i64 left = tile.rows - first_row - own_row;
  if (first_column + own_column >= tile.columns || left <= 0) return;
  u32 gathered[4];
  UNROLL
  for (int i = 0; i < 4; ++i) {
    gathered[i] = 0;
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const u32 word = words[own_row + 4 * i + j][own_column / 4];
      gathered[i] |= (word >> own_column % 4 * 8 & 0xffu) << 8 * j;
    }
  }
  u8* const to = tile.transposed + (first_column + own_column) * tile.rows +
      first_row + own_row;
  if (tile.rows % 16 == 0) {
    uint4 four;
    four.x = gathered[0];
    four.y = gathered[1];
    four.z = gathered[2];
    four.w = gathered[3];
    *reinterpret_cast<uint4*>(to) = four;
  } else {
    for (int i = 0; i < 4; ++i)
      store_codes(gathered[i], left - 4 * i, to + 4 * i);
  }
}

KERNEL cast_tile(
    const VALUE::Stored* values,
    i64 rows,
    i64 columns,
    const u32* scales,
    int kind,
    int power_of_2,
    float* made_scales,
    u8* codes,
    u8* transposed,
    u32* amax,
    u32 seed) {
  const Tile tile = {
      rows,
      columns,
      scales,
      kind,
      power_of_2,
      made_scales,
      codes,
      transposed,
      amax};
  cast_tile_of<VALUE, FORMAT>(values, tile, ROUNDING<FORMAT>{seed});
}
