#pragma once

#include <cstdint>
#include <string>

#include <accelerate/export.h>

namespace accelerate {

/// Where the time of one pass over a loader went, in seconds. Reading, collating
/// and transfer are summed over the worker threads; waiting and the loop are the
/// calling thread's.
struct ACCELERATE_API PrefetchReport {
  /// Batches handed out.
  std::int64_t num_batches = 0;
  int num_workers = 0;
  /// Inside the dataset: get, get_batch, next.
  double read_seconds = 0;
  /// Joining samples.
  double collate_seconds = 0;
  /// Pinning, copying to the device, sending slices between ranks.
  double transfer_seconds = 0;
  /// The loop stood still until its batch was there.
  double wait_seconds = 0;
  /// The loop worked: from getting a batch to asking for the next.
  double loop_seconds = 0;

  /// Of the time of the pass, the part in which the loop waited: 0 to 1. Near 0
  /// the model is the bottleneck; else the loader is.
  [[nodiscard]] double wait_fraction() const;
  /// One line for a person: the times, and which to improve.
  [[nodiscard]] std::string text() const;
};

}  // namespace accelerate
