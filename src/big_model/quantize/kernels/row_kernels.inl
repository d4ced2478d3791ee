// The members that all instruction sets share, included into a struct that has
//   Floats            a vector of floats (a vector type of the compiler)
//   Scaled4bit        decodes kGroup 4-bit codes
//   decode_int8()     kGroup values of int8
//   load(), store(), horizontal_sum()
// with ACCELERATE_KERNEL, the attributes of its functions.
//
// Inputs are processed piece by piece, so that they stay in the L1 cache while
// rows stream by.

static constexpr int kLanes = sizeof(Floats) / sizeof(float);
static constexpr int kParts = kGroup / kLanes;
static constexpr std::int64_t kRowsTogether = 16;
static constexpr std::int64_t kCachedInputs = 4096;  // floats of all inputs

// One row's sums for each input, kept between pieces.
struct RowSums {
  float lanes[kMostInputs][kLanes];
};

// More than one accumulator per input hides the latency of an addition.
static constexpr int accumulators_for(int num_inputs) {
  if (num_inputs * 2 >= 12) return 1;
  return num_inputs * 4 <= 8 && kParts >= 4 ? 4 : 2;
}

template <int num_inputs, class Decoder>
ACCELERATE_KERNEL static void add_groups(
    const Decoder& decoder,
    std::int64_t first_group,
    std::int64_t num_groups,
    const float* x,
    RowSums& sums) {
  constexpr int kAccumulators = accumulators_for(num_inputs);
  Floats totals[num_inputs][kAccumulators];
  ACCELERATE_UNROLL
  for (int i = 0; i < num_inputs; ++i) {
    totals[i][0] = load(sums.lanes[i]);
    ACCELERATE_UNROLL
    for (int a = 1; a < kAccumulators; ++a) totals[i][a] = Floats{};
  }
  for (std::int64_t g = first_group; g < first_group + num_groups; ++g) {
    Floats weights[kParts];
    decoder.decode(g, weights);
    // With several inputs, rows are read in pieces too short for the hardware
    // prefetcher.
    if constexpr (num_inputs > 1) decoder.prefetch_next_rows(g);
    const float* const inputs = x + g * (num_inputs * kGroup);
    ACCELERATE_UNROLL
    for (int p = 0; p < kParts; ++p) {
      ACCELERATE_UNROLL
      for (int i = 0; i < num_inputs; ++i) {
        totals[i][p % kAccumulators] +=
            weights[p] * load(inputs + i * kGroup + p * kLanes);
      }
    }
  }
  ACCELERATE_UNROLL
  for (int i = 0; i < num_inputs; ++i) {
    ACCELERATE_UNROLL
    for (int a = 1; a < kAccumulators; ++a) totals[i][0] += totals[i][a];
    store(sums.lanes[i], totals[i][0]);
  }
}

// Decoders of one row, each with decode(group, weights), prefetch_next_rows(),
// and, for the columns after the last group, value(column).

struct Int8Row {
  const std::int8_t* values;
  std::int64_t columns;

  ACCELERATE_INLINE void prefetch_next_rows(std::int64_t group) const {
    __builtin_prefetch(values + kRowsTogether * columns + group * kGroup);
  }

  ACCELERATE_KERNEL void decode(std::int64_t group, Floats (&weights)[kParts])
      const {
    decode_int8(values + group * kGroup, weights);
  }
  [[nodiscard]] float value(std::int64_t column) const {
    return values[column];
  }
};

struct FloatRow {
  const float* values;

  ACCELERATE_INLINE void prefetch_next_rows(std::int64_t) const {}

  ACCELERATE_KERNEL void decode(std::int64_t group, Floats (&weights)[kParts])
      const {
    ACCELERATE_UNROLL
    for (int p = 0; p < kParts; ++p)
      weights[p] = load(values + group * kGroup + p * kLanes);
  }
  [[nodiscard]] float value(std::int64_t column) const {
    return values[column];
  }
};

// For rows and blocks of complete groups, and blocks of 2^n groups.
template <bool is_nested>
struct FourBitRow {
  const Scaled4bit& table;
  const BlockScales& scales;
  const std::uint8_t* codes;
  std::int64_t first_group;
  int block_shift;
  std::int64_t columns;

  ACCELERATE_INLINE void prefetch_next_rows(std::int64_t group) const {
    __builtin_prefetch(
        codes + kRowsTogether * columns / 2 + group * (kGroup / 2));
  }

  ACCELERATE_KERNEL void decode(std::int64_t group, Floats (&weights)[kParts])
      const {
    const std::int64_t block = (first_group + group) >> block_shift;
    float scale;
    if constexpr (is_nested) {
      scale = scales.code_values[scales.codes[block]] *
              scales.nested_absmax[block >> 8] +
          scales.offset;
    } else {
      scale = scales.absmax[block];
    }
    table.decode(codes + group * (kGroup / 2), scale, weights);
  }
  [[nodiscard]] float value(std::int64_t) const { return 0; }
};

template <int num_inputs, class DecoderOf>
ACCELERATE_KERNEL static void multiply_together(
    const DecoderOf& decoder_of,
    const RowProduct& product,
    std::int64_t begin,
    std::int64_t end,
    std::int64_t columns) {
  RowSums sums[kRowsTogether] = {};
  const std::int64_t num_groups = columns / kGroup;
  const std::int64_t piece = kCachedInputs / num_inputs / kGroup;
  for (std::int64_t g = 0; g < num_groups; g += piece) {
    const std::int64_t count = std::min(piece, num_groups - g);
    for (std::int64_t row = begin; row < end; ++row) {
      const auto decoder = decoder_of(row);
      add_groups<num_inputs>(decoder, g, count, product.x, sums[row - begin]);
    }
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const auto decoder = decoder_of(row);
    const float factor = decoder_of.factor(row);
    for (int i = 0; i < num_inputs; ++i) {
      float sum = horizontal_sum(load(sums[row - begin].lanes[i]));
      const float* const rest =
          product.x + (num_groups * num_inputs + i) * kGroup;
      for (std::int64_t k = num_groups * kGroup; k < columns; ++k)
        sum += decoder.value(k) * rest[k - num_groups * kGroup];
      product.out[i * product.out_stride + row] = sum * factor;
    }
  }
}

template <int num_inputs, class DecoderOf>
ACCELERATE_KERNEL static void multiply_rows_of(
    const DecoderOf& decoder_of,
    const RowProduct& product,
    std::int64_t columns) {
  for (std::int64_t row = product.begin; row < product.end;
       row += kRowsTogether) {
    multiply_together<num_inputs>(
        decoder_of,
        product,
        row,
        std::min(row + kRowsTogether, product.end),
        columns);
  }
}

template <class DecoderOf>
ACCELERATE_KERNEL static void multiply_rows(
    const DecoderOf& decoder_of,
    const RowProduct& product,
    std::int64_t columns) {
  switch (product.num_inputs) {
    case 1:
      return multiply_rows_of<1>(decoder_of, product, columns);
    case 2:
      return multiply_rows_of<2>(decoder_of, product, columns);
    case 3:
      return multiply_rows_of<3>(decoder_of, product, columns);
    case 4:
      return multiply_rows_of<4>(decoder_of, product, columns);
    case 5:
      return multiply_rows_of<5>(decoder_of, product, columns);
    case 6:
      return multiply_rows_of<6>(decoder_of, product, columns);
    case 7:
      return multiply_rows_of<7>(decoder_of, product, columns);
    case 8:
      return multiply_rows_of<8>(decoder_of, product, columns);
    default:
      return;
  }
}

struct Int8Decoders {
  const Int8Rows& matrix;

  [[nodiscard]] Int8Row operator()(std::int64_t row) const {
    return {matrix.values + row * matrix.columns, matrix.columns};
  }
  [[nodiscard]] float factor(std::int64_t row) const {
    return matrix.absmax[row] / 127;
  }
};

ACCELERATE_KERNEL static void multiply_int8(
    const Int8Rows& matrix,
    const RowProduct& product) {
  multiply_rows(Int8Decoders{matrix}, product, matrix.columns);
}

template <bool is_nested>
struct FourBitDecoders {
  const FourBitRows& matrix;
  const Scaled4bit& table;
  int block_shift;

  [[nodiscard]] FourBitRow<is_nested> operator()(std::int64_t row) const {
    return {
        table,
        matrix.scales,
        matrix.codes + row * (matrix.columns / 2),
        row * (matrix.columns / kGroup),
        block_shift,
        matrix.columns};
  }
  [[nodiscard]] float factor(std::int64_t) const { return 1; }
};

struct FloatDecoders {
  const float* values;
  std::int64_t begin;
  std::int64_t columns;

  [[nodiscard]] FloatRow operator()(std::int64_t row) const {
    return {values + (row - begin) * columns};
  }
  [[nodiscard]] float factor(std::int64_t) const { return 1; }
};

static bool has_regular_groups(const FourBitRows& matrix) {
  return matrix.columns % kGroup == 0 && matrix.block_size >= kGroup &&
      std::has_single_bit(static_cast<std::uint64_t>(matrix.block_size));
}

static PackedInputs inputs_for_4bit(
    const FourBitRows& matrix,
    const float* x,
    std::int64_t num_inputs) {
  return packed_inputs(x, num_inputs, matrix.columns);
}

ACCELERATE_KERNEL static void multiply_4bit(
    const FourBitRows& matrix,
    const RowProduct& product) {
  if (has_regular_groups(matrix) && matrix.scales.nested_size == 256) {
    const Scaled4bit table(matrix.code_values);
    const int shift = std::countr_zero(
        static_cast<std::uint64_t>(matrix.block_size / kGroup));
    if (matrix.scales.absmax == nullptr) {
      multiply_rows(
          FourBitDecoders<true>{matrix, table, shift}, product, matrix.columns);
    } else {
      multiply_rows(
          FourBitDecoders<false>{matrix, table, shift},
          product,
          matrix.columns);
    }
    return;
  }
  std::vector<float> row_values(static_cast<std::size_t>(matrix.columns));
  for (std::int64_t row = product.begin; row < product.end; ++row) {
    dequantize_4bit(
        matrix, row * matrix.columns, matrix.columns, row_values.data());
    RowProduct one = product;
    one.begin = row;
    one.end = row + 1;
    multiply_rows(
        FloatDecoders{row_values.data(), row, matrix.columns},
        one,
        matrix.columns);
  }
}

ACCELERATE_KERNEL static void dequantize_4bit(
    const FourBitRows& matrix,
    std::int64_t begin,
    std::int64_t count,
    float* out) {
  const Scaled4bit table(matrix.code_values);
  const std::int64_t end = begin + count;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / matrix.block_size;
    const std::int64_t block_end =
        std::min((block + 1) * matrix.block_size, end);
    const float scale = matrix.scales[block];
    const auto put_one = [&] {
      const std::uint8_t both = matrix.codes[i / 2];
      const int code = i % 2 == 0 ? both >> 4 : both & 15;
      out[i - begin] = matrix.code_values[code] * scale;
      ++i;
    };
    if (i % 2 == 1) put_one();
    for (; i + kGroup <= block_end; i += kGroup) {
      Floats weights[kParts];
      table.decode(matrix.codes + i / 2, scale, weights);
      for (int p = 0; p < kParts; ++p)
        store(out + (i - begin) + p * kLanes, weights[p]);
    }
    while (i < block_end) put_one();
  }
}

ACCELERATE_KERNEL static void find_codes(
    const float* values,
    std::int64_t count,
    float factor,
    const float* bounds,
    std::uint8_t* codes) {
  typedef std::int32_t Integers __attribute__((vector_size(sizeof(Floats))));
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats scaled = load(values + i) * factor;
    Integers found{};
    for (int b = 0; b < 15; ++b) found -= scaled > (Floats{} + bounds[b]);
    for (int lane = 0; lane < kLanes; ++lane)
      codes[i + lane] = static_cast<std::uint8_t>(found[lane]);
  }
  for (; i < count; ++i) {
    const float scaled = values[i] * factor;
    std::uint8_t found = 0;
    for (int b = 0; b < 15; ++b) found += scaled > bounds[b] ? 1 : 0;
    codes[i] = found;
  }
}

ACCELERATE_KERNEL static void multiply_int8_int8(
    const std::int8_t* a,
    std::int64_t num_inputs,
    const std::int8_t* b,
    std::int64_t rows,
    std::int64_t columns,
    std::int32_t* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < num_inputs; ++i)
      out[i * rows + row] =
          dot_int8(a + i * columns, b + row * columns, columns);
  }
}
