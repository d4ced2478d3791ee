// Products with 4-bit rows, 128 columns at a time, included after
// Avx512RowKernels. Inputs are packed in the order in which a register of codes
// holds their columns, so that decoding 16 codes takes a shift and a lookup.
//
// Several rows are processed at a time, sharing the loads of inputs, and inputs
// piece by piece, so that they stay in the L1 cache. What is read of a row at a
// time is then too short for the hardware prefetcher.

typedef Avx512RowKernels::Floats ChunkFloats;
/// The codes of a chunk as 16 words of eight codes: code s of word i, counting
/// from the low bits, is column 8 i + (s ^ 1) of the chunk.
typedef std::uint32_t CodeWords __attribute__((vector_size(64)));

constexpr std::int64_t kChunkColumns = 128;
/// Half a chunk lies in one block.
constexpr std::int64_t kHalfColumns = kChunkColumns / 2;
constexpr int kCodesInWord = 8;
constexpr int kWords = 16;
/// With fewer inputs than this, scaling each input's sum costs less than
/// scaling each decoded weight.
constexpr int kScaledWeightsFrom = 5;
constexpr std::int64_t kRowsInPiece = 16;
constexpr int rows_at_once(int num_inputs) { return num_inputs <= 2 ? 4 : 2; }
constexpr std::int64_t kPieceFloats = 4096;

/// A row's sums for each input, kept between pieces.
struct ChunkSums {
  ChunkFloats of[kMostInputs];
};

bool has_chunks(const FourBitRows& matrix) {
  return matrix.columns % kChunkColumns == 0 &&
      matrix.block_size >= kHalfColumns &&
      std::has_single_bit(static_cast<std::uint64_t>(matrix.block_size)) &&
      (matrix.scales.absmax != nullptr || matrix.scales.nested_size == 256);
}

/// Chunk c of input i is the eight lines starting at line (c * num_inputs + i)
/// * 8; line s has the columns of each word's code s.
PackedInputs inputs_in_chunks(
    const float* x,
    std::int64_t num_inputs,
    std::int64_t columns) {
  PackedInputs packed(num_inputs * columns);
  float* to = packed.data();
  for (std::int64_t chunk = 0; chunk < columns; chunk += kChunkColumns) {
    for (std::int64_t i = 0; i < num_inputs; ++i) {
      const float* const from = x + i * columns + chunk;
      for (int s = 0; s < kCodesInWord; ++s) {
        for (int word = 0; word < kWords; ++word)
          *to++ = from[word * kCodesInWord + (s ^ 1)];
      }
    }
  }
  return packed;
}

PackedInputs inputs_for_4bit(
    const FourBitRows& matrix,
    const float* x,
    std::int64_t num_inputs) {
  return has_chunks(matrix) ? inputs_in_chunks(x, num_inputs, matrix.columns)
                            : packed_inputs(x, num_inputs, matrix.columns);
}

template <bool is_nested>
struct RowsInChunks {
  const FourBitRows& matrix;
  int block_shift;

  [[nodiscard]] ACCELERATE_KERNEL CodeWords codes(
      std::int64_t row,
      std::int64_t chunk) const {
    const std::int64_t place = row * matrix.columns + chunk * kChunkColumns;
    return reinterpret_cast<CodeWords>(
        _mm512_loadu_si512(matrix.codes + place / 2));
  }
  /// Prefetches what is needed of the row that follows this one by the number
  /// of rows in a piece.
  ACCELERATE_INLINE void prefetch(std::int64_t row, std::int64_t chunk) const {
    const std::int64_t place =
        (row + kRowsInPiece) * matrix.columns + chunk * kChunkColumns;
    __builtin_prefetch(matrix.codes + place / 2);
    if constexpr (!is_nested)
      __builtin_prefetch(matrix.scales.absmax + (place >> block_shift));
  }
  /// The scale of half a chunk.
  [[nodiscard]] float scale(std::int64_t row, std::int64_t chunk, int half)
      const {
    const std::int64_t place =
        row * matrix.columns + chunk * kChunkColumns + half * kHalfColumns;
    const std::int64_t block = place >> block_shift;
    const BlockScales& scales = matrix.scales;
    if constexpr (is_nested) {
      return scales.code_values[scales.codes[block]] *
          scales.nested_absmax[block >> 8] +
          scales.offset;
    } else {
      return scales.absmax[block];
    }
  }
};

// An input's columns of code s. Must not be loaded again for each row, which
// compilers do to save a register.
ACCELERATE_KERNEL ChunkFloats load_once(const float* x) {
  ChunkFloats input = _mm512_load_ps(x);
  asm("" : "+v"(input));
  return input;
}

/// What the chunks of a piece are multiplied by.
struct ChunkPiece {
  const float* x;
  std::int64_t begin;
  std::int64_t end;
  ChunkFloats values;  ///< of the 16 codes
};

template <int num_rows, int num_inputs, bool is_nested>
ACCELERATE_KERNEL void add_scaled_sums(
    const RowsInChunks<is_nested>& rows,
    std::int64_t row,
    const ChunkPiece& piece,
    ChunkFloats (&totals)[num_rows][num_inputs]) {
  for (std::int64_t chunk = piece.begin; chunk < piece.end; ++chunk) {
    const float* const x = piece.x + chunk * (num_inputs * kChunkColumns);
    CodeWords codes[num_rows];
    ACCELERATE_UNROLL
    for (int r = 0; r < num_rows; ++r) {
      codes[r] = rows.codes(row + r, chunk);
      rows.prefetch(row + r, chunk);
    }
    ChunkFloats sums[num_rows][num_inputs];
    ACCELERATE_UNROLL
    for (int s = 0; s < kCodesInWord; ++s) {
      ChunkFloats weights[num_rows];
      ACCELERATE_UNROLL
      for (int r = 0; r < num_rows; ++r) {
        weights[r] = _mm512_permutexvar_ps(
            reinterpret_cast<__m512i>(codes[r] >> (4 * s)), piece.values);
      }
      ACCELERATE_UNROLL
      for (int i = 0; i < num_inputs; ++i) {
        const ChunkFloats input = load_once(x + i * kChunkColumns + s * kWords);
        ACCELERATE_UNROLL
        for (int r = 0; r < num_rows; ++r) {
          sums[r][i] = s == 0 ? weights[r] * input
                              : _mm512_fmadd_ps(weights[r], input, sums[r][i]);
        }
      }
    }
    ACCELERATE_UNROLL
    for (int r = 0; r < num_rows; ++r) {
      const ChunkFloats scales = _mm512_mask_broadcastss_ps(
          _mm512_set1_ps(rows.scale(row + r, chunk, 0)),
          0xff00,
          _mm_set_ss(rows.scale(row + r, chunk, 1)));
      ACCELERATE_UNROLL
      for (int i = 0; i < num_inputs; ++i)
        totals[r][i] = _mm512_fmadd_ps(scales, sums[r][i], totals[r][i]);
    }
  }
}

template <int num_rows, int num_inputs, bool is_nested>
ACCELERATE_KERNEL void add_scaled_weights(
    const RowsInChunks<is_nested>& rows,
    std::int64_t row,
    const ChunkPiece& piece,
    ChunkFloats (&totals)[num_rows][num_inputs]) {
  // A code's index among the scaled values of both halves is (code & 15) | 16
  // in the second half: 0xea is (a & b) | c.
  const __m512i code_bits = _mm512_set1_epi32(15);
  const __m512i second =
      _mm512_mask_set1_epi32(_mm512_setzero_si512(), 0xff00, 16);
  for (std::int64_t chunk = piece.begin; chunk < piece.end; ++chunk) {
    const float* const x = piece.x + chunk * (num_inputs * kChunkColumns);
    CodeWords codes[num_rows];
    ChunkFloats scaled[num_rows][2];
    ACCELERATE_UNROLL
    for (int r = 0; r < num_rows; ++r) {
      codes[r] = rows.codes(row + r, chunk);
      rows.prefetch(row + r, chunk);
      ACCELERATE_UNROLL
      for (int half = 0; half < 2; ++half) {
        scaled[r][half] =
            piece.values * _mm512_set1_ps(rows.scale(row + r, chunk, half));
      }
    }
    ACCELERATE_UNROLL
    for (int s = 0; s < kCodesInWord; ++s) {
      ChunkFloats weights[num_rows];
      ACCELERATE_UNROLL
      for (int r = 0; r < num_rows; ++r) {
        const __m512i places = _mm512_ternarylogic_epi32(
            reinterpret_cast<__m512i>(codes[r] >> (4 * s)),
            code_bits,
            second,
            0xea);
        weights[r] = _mm512_permutex2var_ps(scaled[r][0], places, scaled[r][1]);
      }
      ACCELERATE_UNROLL
      for (int i = 0; i < num_inputs; ++i) {
        const ChunkFloats input = load_once(x + i * kChunkColumns + s * kWords);
        ACCELERATE_UNROLL
        for (int r = 0; r < num_rows; ++r)
          totals[r][i] = _mm512_fmadd_ps(weights[r], input, totals[r][i]);
      }
    }
  }
}

template <int num_rows, int num_inputs, bool is_nested>
ACCELERATE_KERNEL void add_chunks(
    const RowsInChunks<is_nested>& rows,
    std::int64_t row,
    const ChunkPiece& piece,
    ChunkSums* sums) {
  ChunkFloats totals[num_rows][num_inputs];
  ACCELERATE_UNROLL
  for (int r = 0; r < num_rows; ++r) {
    ACCELERATE_UNROLL
    for (int i = 0; i < num_inputs; ++i) totals[r][i] = sums[r].of[i];
  }
  if constexpr (num_inputs < kScaledWeightsFrom) {
    add_scaled_sums(rows, row, piece, totals);
  } else {
    add_scaled_weights(rows, row, piece, totals);
  }
  ACCELERATE_UNROLL
  for (int r = 0; r < num_rows; ++r) {
    ACCELERATE_UNROLL
    for (int i = 0; i < num_inputs; ++i) sums[r].of[i] = totals[r][i];
  }
}

template <int num_inputs, bool is_nested>
ACCELERATE_KERNEL void multiply_chunks(
    const RowsInChunks<is_nested>& rows,
    const RowProduct& product) {
  const std::int64_t num_chunks = rows.matrix.columns / kChunkColumns;
  constexpr int kRows = rows_at_once(num_inputs);
  constexpr std::int64_t kPiece = kPieceFloats / (num_inputs * kChunkColumns);
  ChunkPiece piece{product.x, 0, 0, _mm512_loadu_ps(rows.matrix.code_values)};
  for (std::int64_t first = product.begin; first < product.end;
       first += kRowsInPiece) {
    const std::int64_t end = std::min(first + kRowsInPiece, product.end);
    ChunkSums sums[kRowsInPiece] = {};
    for (std::int64_t chunk = 0; chunk < num_chunks; chunk += kPiece) {
      piece.begin = chunk;
      piece.end = std::min(chunk + kPiece, num_chunks);
      std::int64_t row = first;
      for (; row + kRows <= end; row += kRows)
        add_chunks<kRows, num_inputs>(rows, row, piece, sums + (row - first));
      for (; row < end; ++row)
        add_chunks<1, num_inputs>(rows, row, piece, sums + (row - first));
    }
    for (std::int64_t row = first; row < end; ++row) {
      for (int i = 0; i < num_inputs; ++i) {
        product.out[i * product.out_stride + row] =
            _mm512_reduce_add_ps(sums[row - first].of[i]);
      }
    }
  }
}

template <bool is_nested>
ACCELERATE_KERNEL void multiply_chunks_of(
    const RowsInChunks<is_nested>& rows,
    const RowProduct& product) {
  switch (product.num_inputs) {
    case 1:
      return multiply_chunks<1>(rows, product);
    case 2:
      return multiply_chunks<2>(rows, product);
    case 3:
      return multiply_chunks<3>(rows, product);
    case 4:
      return multiply_chunks<4>(rows, product);
    case 5:
      return multiply_chunks<5>(rows, product);
    case 6:
      return multiply_chunks<6>(rows, product);
    case 7:
      return multiply_chunks<7>(rows, product);
    case 8:
      return multiply_chunks<8>(rows, product);
    default:
      return;
  }
}

ACCELERATE_KERNEL void multiply_4bit(
    const FourBitRows& matrix,
    const RowProduct& product) {
  if (!has_chunks(matrix)) {
    Avx512RowKernels::multiply_4bit(matrix, product);
    return;
  }
  const int shift =
      std::countr_zero(static_cast<std::uint64_t>(matrix.block_size));
  if (matrix.scales.absmax == nullptr) {
    multiply_chunks_of(RowsInChunks<true>{matrix, shift}, product);
  } else {
    multiply_chunks_of(RowsInChunks<false>{matrix, shift}, product);
  }
}
