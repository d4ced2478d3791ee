#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <unistd.h>

namespace accelerate::benchmarks {

/// Returns the median; for an even number of values, the mean of the middle
/// two.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

/// One measured figure and its baseline.
struct Figure {
  std::string name;  ///< name of the case
  std::string metric;
  double value;
  std::string unit;
  double baseline;
  double ratio;
  std::size_t runs;
};

/// Prints one line of JSON to standard output, and a readable one to a
/// terminal.
inline void report(const Figure& figure) {
  std::printf(
      "{\"case\":\"%s\",\"metric\":\"%s\",\"value\":%.6g,\"unit\":\"%s\","
      "\"baseline\":%.6g,"
      "\"ratio\":%.6g,\"runs\":%zu}\n",
      figure.name.c_str(),
      figure.metric.c_str(),
      figure.value,
      figure.unit.c_str(),
      figure.baseline,
      figure.ratio,
      figure.runs);
  std::fflush(stdout);
  if (isatty(STDERR_FILENO) != 0) {
    std::fprintf(
        stderr,
        "  %-16s %-24s %12.4g %-3s  baseline %10.4g  ratio %7.4f  (%zu runs)\n",
        figure.name.c_str(),
        figure.metric.c_str(),
        figure.value,
        figure.unit.c_str(),
        figure.baseline,
        figure.ratio,
        figure.runs);
  }
}

}  // namespace accelerate::benchmarks
