#pragma once

#include <string>

#include <accelerate/tracker.h>

// What the programs in this directory log and the scripts expect.

namespace accelerate::cross {

/// Two images whose values increase by 7 from each to the next, modulo 256.
inline TrackedImages gradient_images() {
  TrackedImages images{{2, 3, 4, 5}, "NCHW", false, {}};
  for (int i = 0; i < 2 * 3 * 4 * 5; ++i)
    images.values += static_cast<char>(7 * i % 256);
  return images;
}

inline TrackedTable mixed_table() {
  return {
      {"name", "score", "right"},
      {{"first", 0.5, true}, {"second", 2, {}}, {"th\u00efrd", -1e300, false}}};
}

inline TrackedHistogram three_buckets() {
  TrackedHistogram histogram;
  histogram.edges = {-1, 0, 0.5, 2};
  histogram.counts = {3, 1, 6};
  histogram.min = -0.75;
  histogram.max = 1.5;
  histogram.sum = 4.5;
  histogram.sum_squares = 11.25;
  histogram.num = 10;
  return histogram;
}

}  // namespace accelerate::cross
