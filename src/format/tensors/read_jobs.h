#pragma once

#include <functional>
#include <vector>

#include "format/tensors/range_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A range to read; with `verifies`, a chunk that is hashed as it is read.
struct ReadJob {
  FileRange range;
  bool verifies = false;
};

/// Jobs that read boxes; each can run on any thread.
struct ReadJobs {
  std::vector<ReadJob> ranges;
  /// Copies of rows out of mapped files.
  std::vector<std::function<void()>> copies;

  [[nodiscard]] std::size_t size() const {
    return ranges.size() + copies.size();
  }
};

/// Finds the file ranges that hold the boxes. `boxes` must outlive the result.
/// Throws CheckpointError like read_boxes().
ReadJobs read_jobs(const std::vector<BoxToRead>& boxes);

}  // namespace accelerate::detail
