// The sum of two tensors, and its LayerNorm or RMSNorm over rows.
//
// VALUE: the dtype of the values. CENTERS: true for LayerNorm, which subtracts
// the mean. Rows are whole vectors at addresses that are multiples of 16 bytes.

// A thread keeps its values of a row in registers: at most this many vectors.
constexpr int kKept = 4;

template <class Type>
DEVICE i64 column_of(int piece) {
  return (i64)(piece * kThreads + threadIdx.x) * Type::kVector;
}

template <class Type, bool centers>
DEVICE void normalize(
    const typename Type::Stored* from,
    const typename Type::Stored* residual,
    const float* weight,
    const float* bias,
    i64 rows,
    i64 columns,
    float epsilon,
    typename Type::Stored* sums,
    typename Type::Stored* normalized,
    float* means,
    float* scales) {
  constexpr int kVector = Type::kVector;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    float kept[kKept][kVector];
    float total = 0.0f;
UNROLL
    for (int piece = 0; piece < kKept; ++piece) {
      const i64 column = column_of<Type>(piece);
      if (column >= columns) continue;
      float added[kVector];
      load<Type>(from + row * columns + column, kVector, true, kept[piece]);
      load<Type>(residual + row * columns + column, kVector, true, added);
UNROLL
      for (int i = 0; i < kVector; ++i) {
        // The sum as the rest of the model sees it.
        kept[piece][i] = Type::widen(Type::narrow(kept[piece][i] + added[i]));
        total += kept[piece][i];
      }
      store<Type>(kept[piece], kVector, true, sums + row * columns + column);
    }
    const float mean =
        centers ? join_block(total, Plus()) / (float)columns : 0.0f;
    float squares = 0.0f;
UNROLL
    for (int piece = 0; piece < kKept; ++piece) {
      if (column_of<Type>(piece) >= columns) continue;
UNROLL
      for (int i = 0; i < kVector; ++i) {
        const float difference = kept[piece][i] - mean;
        squares += difference * difference;
      }
    }
    const float scale =
        rsqrtf(join_block(squares, Plus()) / (float)columns + epsilon);
    if (threadIdx.x == 0) {
      means[row] = mean;
      scales[row] = scale;
    }
UNROLL
    for (int piece = 0; piece < kKept; ++piece) {
      const i64 column = column_of<Type>(piece);
      if (column >= columns) continue;
UNROLL
      for (int i = 0; i < kVector; ++i) {
        float value = (kept[piece][i] - mean) * scale;
        if (weight) value *= weight[column + i];
        if (bias) value += bias[column + i];
        kept[piece][i] = value;
      }
      store<Type>(
          kept[piece], kVector, true, normalized + row * columns + column);
    }
  }
}

// With n = (sum - mean) * scale and h = gradient * weight: the gradient of the
// sum is scale * (h - mean(h) - n * mean(h * n)), without the middle term for
// RMSNorm, plus the gradient that arrives at the sum itself, unless that is
// null. Each block adds its rows' gradients of the weight and the bias up, for
// which there is a row each in `of_weight` and `of_bias`, unless they are null.
template <class Type, bool centers>
DEVICE void normalize_backward(
    const typename Type::Stored* sums,
    const typename Type::Stored* gradients,
    const typename Type::Stored* of_sums,
    const float* weight,
    const float* means,
    const float* scales,
    i64 rows,
    i64 columns,
    typename Type::Stored* made,
    float* of_weight,
    float* of_bias) {
  constexpr int kVector = Type::kVector;
  float weights_of_rows[kKept][kVector] = {};
  float biases_of_rows[kKept][kVector] = {};
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float mean = means[row], scale = scales[row];
    float kept[kKept][kVector], incoming[kKept][kVector];
    float total = 0.0f, products = 0.0f;
UNROLL
    for (int piece = 0; piece < kKept; ++piece) {
      const i64 column = column_of<Type>(piece);
      if (column >= columns) continue;
      load<Type>(sums + row * columns + column, kVector, true, kept[piece]);
      load<Type>(
          gradients + row * columns + column, kVector, true, incoming[piece]);
UNROLL
      for (int i = 0; i < kVector; ++i) {
        const float normal = (kept[piece][i] - mean) * scale;
        weights_of_rows[piece][i] += incoming[piece][i] * normal;
        biases_of_rows[piece][i] += incoming[piece][i];
        if (weight) incoming[piece][i] *= weight[column + i];
        kept[piece][i] = normal;
        total += incoming[piece][i];
        products += incoming[piece][i] * normal;
      }
    }
    const float middle =
        centers ? join_block(total, Plus()) / (float)columns : 0.0f;
    const float slope = join_block(products, Plus()) / (float)columns;
UNROLL
    for (int piece = 0; piece < kKept; ++piece) {
      const i64 column = column_of<Type>(piece);
      if (column >= columns) continue;
      float added[kVector] = {};
      if (of_sums)
        load<Type>(of_sums + row * columns + column, kVector, true, added);
UNROLL
      for (int i = 0; i < kVector; ++i) {
        added[i] +=
            scale * (incoming[piece][i] - middle - kept[piece][i] * slope);
      }
      store<Type>(added, kVector, true, made + row * columns + column);
    }
  }
UNROLL
  for (int piece = 0; piece < kKept; ++piece) {
    const i64 column = column_of<Type>(piece);
    if (column >= columns) continue;
UNROLL
    for (int i = 0; i < kVector; ++i) {
      const i64 place = blockIdx.x * columns + column + i;
      if (of_weight) of_weight[place] = weights_of_rows[piece][i];
      if (of_bias) of_bias[place] = biases_of_rows[piece][i];
    }
  }
}

KERNEL add_norm_forward(
    const VALUE::Stored* values,
    const VALUE::Stored* residual,
    const float* weight,
    const float* bias,
    i64 rows,
    i64 columns,
    float epsilon,
    VALUE::Stored* sums,
    VALUE::Stored* normalized,
    float* means,
    float* scales) {
  normalize<VALUE, CENTERS>(
      values,
      residual,
      weight,
      bias,
      rows,
      columns,
      epsilon,
      sums,
      normalized,
      means,
      scales);
}

KERNEL add_norm_backward(
    const VALUE::Stored* sums,
    const VALUE::Stored* gradients,
    const VALUE::Stored* of_sums,
    const float* weight,
    const float* means,
    const float* scales,
    i64 rows,
    i64 columns,
    VALUE::Stored* made,
    float* of_weight,
    float* of_bias) {
  normalize_backward<VALUE, CENTERS>(
      sums,
      gradients,
      of_sums,
      weight,
      means,
      scales,
      rows,
      columns,
      made,
      of_weight,
      of_bias);
}
