// Activations of values plus a bias per column.
//
// VALUE: the dtype of the values. ACTIVATION: Gelu, GeluTanh, Silu or Relu.

struct Gelu {
  static __device__ __forceinline__ float of(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  }
  static __device__ __forceinline__ float slope(float x) {
    return 0.5f * (1.0f + erff(x * 0.70710678f)) +
        x * 0.39894228f * __expf(-0.5f * x * x);
  }
};

struct GeluTanh {
  static constexpr float kFactor = 0.79788456f;
  static constexpr float kCubic = 0.044715f;
  static __device__ __forceinline__ float of(float x) {
    return 0.5f * x * (1.0f + tanhf(kFactor * (x + kCubic * x * x * x)));
  }
  static __device__ __forceinline__ float slope(float x) {
    const float t = tanhf(kFactor * (x + kCubic * x * x * x));
    return 0.5f * (1.0f + t) +
        0.5f * x * (1.0f - t * t) * kFactor * (1.0f + 3.0f * kCubic * x * x);
  }
};

struct Silu {
  static __device__ __forceinline__ float of(float x) {
    return x / (1.0f + __expf(-x));
  }
  static __device__ __forceinline__ float slope(float x) {
    const float s = 1.0f / (1.0f + __expf(-x));
    return s * (1.0f + x * (1.0f - s));
  }
};

struct Relu {
  static __device__ __forceinline__ float of(float x) {
    return x <= 0.0f ? 0.0f : x;  // NaN stays
  }
  static __device__ __forceinline__ float slope(float x) {
    return x <= 0.0f ? 0.0f : 1.0f;
  }
};

// The values of a vector, which may go on in the next row.
template <class Type>
DEVICE void load_bias(
    const typename Type::Stored* bias,
    i64 columns,
    i64 first,
    int count,
    bool aligned,
    float* values) {
  const i64 column = first % columns;
  if (aligned) {
    load<Type>(bias + column, count, true, values);
    return;
  }
UNROLL
  for (int i = 0; i < Type::kVector; ++i)
    values[i] = i < count ? Type::widen(bias[(column + i) % columns]) : 0.0f;
}

// Without `gradients`: made = activation(values + bias). With them: made =
// gradients * the activation's slope there.
template <class Type, class Activation>
DEVICE void activate(
    const typename Type::Stored* from,
    const typename Type::Stored* bias,
    const typename Type::Stored* gradients,
    i64 size,
    i64 columns,
    typename Type::Stored* to) {
  constexpr int kVector = Type::kVector;
  const bool aligned = is_aligned(from) && is_aligned(to) &&
      (!gradients || is_aligned(gradients));
  const bool has_aligned_bias =
      aligned && is_aligned(bias) && columns % kVector == 0;
  const i64 stride = (i64)gridDim.x * kThreads * kVector;
  for (i64 i = ((i64)blockIdx.x * kThreads + threadIdx.x) * kVector; i < size;
       i += stride) {
    const int count = values_before<Type>(size, i);
    float values[kVector], added[kVector], incoming[kVector];
    load<Type>(from + i, count, aligned, values);
    load_bias<Type>(bias, columns, i, count, has_aligned_bias, added);
    if (gradients) load<Type>(gradients + i, count, aligned, incoming);
UNROLL
    for (int j = 0; j < kVector; ++j) {
      const float x = values[j] + added[j];
      values[j] =
          gradients ? incoming[j] * Activation::slope(x) : Activation::of(x);
    }
    store<Type>(values, count, aligned, to + i);
  }
}

KERNEL bias_activation(
    const VALUE::Stored* values,
    const VALUE::Stored* bias,
    const VALUE::Stored* gradients,
    i64 size,
    i64 columns,
    VALUE::Stored* made) {
  activate<VALUE, ACTIVATION>(values, bias, gradients, size, columns, made);
}
