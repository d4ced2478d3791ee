#include <accelerate/prefetch_report.h>

#include <cstdio>
#include <string_view>

#include "base/text/text.h"

namespace accelerate {

namespace {

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", value);
  return text;
}

std::string_view verdict(const PrefetchReport& report) {
  // Below this fraction, a faster loader would make no noticeable difference.
  constexpr double kNoticeableWait = 0.1;
  if (report.num_batches == 0) return "nothing was read";
  if (report.wait_fraction() < kNoticeableWait)
    return "the loop is the bottleneck";
  const bool reads_longest = report.read_seconds >= report.collate_seconds &&
      report.read_seconds >= report.transfer_seconds;
  if (reads_longest)
    return "the loader is the bottleneck, reading takes longest";
  return report.collate_seconds >= report.transfer_seconds
      ? "the loader is the bottleneck, collating takes longest"
      : "the loader is the bottleneck, transfer takes longest";
}

}  // namespace

double PrefetchReport::wait_fraction() const {
  const double all = wait_seconds + loop_seconds;
  return all > 0 ? wait_seconds / all : 0;
}

std::string PrefetchReport::text() const {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f %%", 100 * wait_fraction());
  return detail::format(
      "{} batches, {} workers: read {}, collate {}, transfer {}; the loop "
      "waited {} ({}) and worked {}: {}",
      num_batches,
      num_workers,
      seconds(read_seconds),
      seconds(collate_seconds),
      seconds(transfer_seconds),
      seconds(wait_seconds),
      percent,
      seconds(loop_seconds),
      verdict(*this));
}

}  // namespace accelerate
