// Softmax cross entropy of rows of logits. Sums are in fp32.
//
// VALUE: the dtype of the logits.

// Writes, per row, the largest logit, the logarithm of the sum of
// exp(logit - largest) and, unless `sums` is null, the sum of (logit - largest)
// times the weight of the class (1 if weights is null). Each block has a row at
// a time and reads it once.
template <class Type>
DEVICE void cross_entropy_of(
    const typename Type::Stored* logits,
    i64 rows,
    i64 classes,
    const float* weights,
    float* largests,
    float* log_sums,
    float* sums) {
  constexpr int kVector = Type::kVector;
  const bool aligned = is_aligned(logits) && classes % kVector == 0;
  const float lowest = -__uint_as_float(kInfinity);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const typename Type::Stored* const own = logits + row * classes;
    float largest = lowest, exponentials = 0.0f;
    float sum = 0.0f, total = 0.0f;
    for (i64 i = threadIdx.x * kVector; i < classes; i += kThreads * kVector) {
      const int count = values_before<Type>(classes, i);
      float values[kVector];
      load<Type>(own + i, count, aligned, values);
      float most = largest;
UNROLL
      for (int j = 0; j < kVector; ++j) {
        // NaN passes on to the sum.
        if (j < count && most < values[j]) most = values[j];
        if (sums && j < count) {
          const float weight = weights ? weights[i + j] : 1.0f;
          sum += weight * values[j];
          total += weight;
        }
      }
      // Keeps -inf - -inf out of the sum.
      const float from = most == lowest ? 0.0f : most;
      exponentials *= largest == lowest ? 0.0f : __expf(largest - from);
UNROLL
      for (int j = 0; j < kVector; ++j)
        if (j < count) exponentials += __expf(values[j] - from);
      largest = most;
    }
    const float most = join_block(largest, Larger());
    const float from = most == lowest ? 0.0f : most;
    exponentials = join_block(
        largest == lowest ? exponentials
                          : exponentials * __expf(largest - from),
        Plus());
    if (sums) {
      sum = join_block(sum, Plus());
      total = join_block(total, Plus());
    }
    if (threadIdx.x == 0) {
      largests[row] = most;
      log_sums[row] = logf(exponentials);
      if (sums) sums[row] = sum - total * most;
    }
  }
}

// gradient = of_softmax[row] * softmax - of_target[row] at the target
//     - of_classes[row] * weight of the class (1 if weights is null); the last
// term is left out if `of_classes` is null. `gradients` may be `logits`.
template <class Type>
DEVICE void gradients_of(
    const typename Type::Stored* logits,
    i64 rows,
    i64 classes,
    const i64* targets,
    const float* weights,
    const float* log_sums,
    const float* of_softmax,
    const float* of_target,
    const float* of_classes,
    typename Type::Stored* gradients) {
  constexpr int kVector = Type::kVector;
  const bool aligned = is_aligned(logits) && is_aligned(gradients) &&
      classes % kVector == 0;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float log_sum = log_sums[row];
    const float factor = of_softmax[row];
    const float smoothed = of_classes ? of_classes[row] : 0.0f;
    const i64 target = targets[row];
    for (i64 i = threadIdx.x * kVector; i < classes; i += kThreads * kVector) {
      const int count = values_before<Type>(classes, i);
      const i64 first = row * classes + i;
      float values[kVector];
      load<Type>(logits + first, count, aligned, values);
UNROLL
      for (int j = 0; j < kVector; ++j) {
        // Rows that do not count stay zero whatever their logits are.
        values[j] =
            factor == 0.0f ? 0.0f : factor * __expf(values[j] - log_sum);
        if (j < count && of_classes)
          values[j] -= weights ? smoothed * weights[i + j] : smoothed;
        if (i + j == target) values[j] -= of_target[row];
      }
      store<Type>(values, count, aligned, gradients + first);
    }
  }
}

KERNEL cross_entropy_forward(
    const VALUE::Stored* logits,
    i64 rows,
    i64 classes,
    const float* weights,
    float* largest,
    float* log_sums,
    float* sums) {
  cross_entropy_of<VALUE>(
      logits,
      rows,
      classes,
      weights,
      largest,
      log_sums,
      sums);
}

KERNEL cross_entropy_backward(
    const VALUE::Stored* logits,
    i64 rows,
    i64 classes,
    const i64* targets,
    const float* weights,
    const float* log_sums,
    const float* of_softmax,
    const float* of_target,
    const float* of_classes,
    VALUE::Stored* gradients) {
  gradients_of<VALUE>(
      logits,
      rows,
      classes,
      targets,
      weights,
      log_sums,
      of_softmax,
      of_target,
      of_classes,
      gradients);
}
