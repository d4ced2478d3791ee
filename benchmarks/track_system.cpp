// The share of one processor that the system figures take at the interval of a
// journal: the processor time per reading, divided by that interval.
#include <sys/resource.h>

#include <cstddef>

#include "report.h"
#include "trackers/system/system_figures.h"

namespace {

constexpr int kReadings = 500;
// Shorter than the journal's interval.
constexpr double kIntervalSeconds = 2;

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
        static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

int main() {
  using namespace accelerate;
  detail::SystemReader reader("/", detail::Nvml::load());
  const double begin = processor_seconds();
  std::size_t num_figures = 0;
  for (int i = 0; i < kReadings; ++i) num_figures += reader.figures().size();
  const double seconds = (processor_seconds() - begin) / kReadings;
  if (num_figures == 0) return 1;
  benchmarks::report(
      {"track",
       "system_percent",
       100 * seconds / kIntervalSeconds,
       "%",
       seconds * 1e6,
       0,
       kReadings});
}
