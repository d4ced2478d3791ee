#pragma once

#include <functional>
#include <vector>

#include "format/tensors/range_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A range to read; if `verifies`, a chunk that is hashed on the way.
struct ReadJob {
  FileRange range;
  bool verifies = false;
};

/// What has to be done to read boxes, each job on any thread.
struct ReadJobs {
  std::vector<ReadJob> ranges;
  /// Copies of rows out of mapped files.
  std::vector<std::function<void()>> copies;

  [[nodiscard]] std::size_t size() const {
    return ranges.size() + copies.size();
  }
};

/// Finds out which ranges of files hold the boxes. The result refers to the
/// boxes. Throws CheckpointError as read_boxes().
ReadJobs read_jobs(const std::vector<BoxToRead>& boxes);

}  // namespace accelerate::detail
