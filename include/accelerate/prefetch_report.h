#pragma once

#include <cstdint>
#include <string>

#include <accelerate/export.h>

namespace accelerate {

/// The time of one pass over a loader by activity, in seconds. Reading,
/// collating and transfer are summed over the worker threads; waiting and loop
/// times are measured on the calling thread.
struct ACCELERATE_API PrefetchReport {
  /// Number of batches handed out.
  std::int64_t num_batches = 0;
  /// Number of threads that read ahead.
  int num_workers = 0;
  /// Time inside the dataset: get, get_batch, next.
  double read_seconds = 0;
  /// Time for collating samples.
  double collate_seconds = 0;
  /// Time for pinning, copying to the device, and sending slices between ranks.
  double transfer_seconds = 0;
  /// Time during which the loop waited for its batch.
  double wait_seconds = 0;
  /// Time during which the loop worked, from getting a batch to asking for the
  /// next.
  double loop_seconds = 0;

  /// The fraction of the pass during which the loop waited: 0 to 1. Near 0 the
  /// model is the bottleneck; otherwise the loader is.
  [[nodiscard]] double wait_fraction() const;
  /// One line of text with the times and the bottleneck.
  [[nodiscard]] std::string text() const;
};

}  // namespace accelerate
