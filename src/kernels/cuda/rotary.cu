// Rotary embeddings: pairs of a row's values are rotated by angles of their own.
//
// VALUE: the dtype of the values.

// `cosines` and `sines` are [positions, columns / 2]; rows go through all
// positions again and again. Pairs are neighbours if `interleaved`, else half a
// row apart.
template <class Type>
DEVICE void rotate(
    const typename Type::Stored* from,
    const float* cosines,
    const float* sines,
    i64 rows,
    i64 columns,
    i64 positions,
    bool interleaved,
    float direction,
    typename Type::Stored* to) {
  const i64 half = columns / 2;
  const i64 pairs = rows * half;
  for (i64 i = (i64)blockIdx.x * kThreads + threadIdx.x; i < pairs;
       i += (i64)gridDim.x * kThreads) {
    const i64 row = i / half;
    const i64 pair = i % half;
    const i64 angle = row % positions * half + pair;
    const i64 first = row * columns + (interleaved ? 2 * pair : pair);
    const i64 second = first + (interleaved ? 1 : half);
    const float a = Type::widen(from[first]);
    const float b = Type::widen(from[second]);
    const float cosine = cosines[angle];
    const float sine = direction * sines[angle];
    to[first] = Type::narrow(a * cosine - b * sine);
    to[second] = Type::narrow(a * sine + b * cosine);
  }
}

KERNEL rotary(
    const VALUE::Stored* values,
    const float* cosines,
    const float* sines,
    i64 rows,
    i64 columns,
    i64 positions,
    int interleaved,
    float direction,
    VALUE::Stored* made) {
  rotate<VALUE>(
      values,
      cosines,
      sines,
      rows,
      columns,
      positions,
      interleaved != 0,
      direction,
      made);
}
