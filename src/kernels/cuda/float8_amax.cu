// Largest absolute values, as bits of fp32: these order like the numbers, with
// NaN above all. Results must be 0 at first.
//
// VALUE: the dtype of the values.

template <class Type>
DEVICE void find_amax(const typename Type::Stored* from, i64 size, u32* amax) {
  const bool aligned = is_aligned(from);
  const i64 stride = (i64)gridDim.x * kThreads * Type::kVector;
  u32 largest = 0;
  for (i64 i = ((i64)blockIdx.x * kThreads + threadIdx.x) * Type::kVector;
       i < size;
       i += stride) {
    float values[Type::kVector];
    load<Type>(from + i, values_before<Type>(size, i), aligned, values);
UNROLL
    for (int j = 0; j < Type::kVector; ++j)
      largest = Larger()(largest, magnitude_of(values[j]));
  }
  largest = join_block(largest, Larger());
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

// Each warp reads a row at a time, each of its lanes a vector.
template <class Type>
DEVICE void find_amax_of_columns(
    const typename Type::Stored* from,
    i64 rows,
    i64 columns,
    i64 rows_of_block,
    u32* amax) {
  constexpr int kVector = Type::kVector;
  constexpr int kColumns = 32 * kVector;
  __shared__ u32 found[kWarps][kColumns];
  const bool aligned = is_aligned(from) && columns % kVector == 0;
  const i64 pieces = (columns + kColumns - 1) / kColumns;
  const i64 first_column = blockIdx.x % pieces * kColumns;
  const i64 begin = blockIdx.x / pieces * rows_of_block;
  const i64 end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  const int warp = threadIdx.x / 32;
  const int place = threadIdx.x % 32 * kVector;
  const int count = values_before<Type>(columns, first_column + place);
  u32 largest[kVector] = {};
  for (i64 row = begin + warp; row < end; row += kWarps) {
    float values[kVector];
    load<Type>(
        from + row * columns + first_column + place, count, aligned, values);
UNROLL
    for (int i = 0; i < kVector; ++i)
      largest[i] = Larger()(largest[i], magnitude_of(values[i]));
  }
UNROLL
  for (int i = 0; i < kVector; ++i) found[warp][place + i] = largest[i];
  __syncthreads();
  for (int column = threadIdx.x; column < kColumns; column += kThreads) {
    if (first_column + column >= columns) continue;
    u32 most = 0;
    for (int i = 0; i < kWarps; ++i) most = Larger()(most, found[i][column]);
    atomicMax(amax + first_column + column, most);
  }
}

KERNEL amax(const VALUE::Stored* values, i64 size, u32* amax) {
  find_amax<VALUE>(values, size, amax);
}

KERNEL amax_of_columns(
    const VALUE::Stored* values,
    i64 rows,
    i64 columns,
    i64 rows_of_block,
    u32* amax) {
  find_amax_of_columns<VALUE>(values, rows, columns, rows_of_block, amax);
}
