#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "format/tensors/range_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Boxes that are read together.
struct BoxList {
  std::vector<BoxToRead> boxes;
  /// Called at the end, on one of the threads that read, with the failure if
  /// there is one. Does not throw.
  std::function<void(std::exception_ptr failure)> done;
};

/// Reads boxes, one list after another; what its threads need for that is kept
/// from one list to the next. For one thread at a time.
class BoxReader {
 public:
  /// The list to read next, if there is one now. Called on any of the threads
  /// that read, by one at a time. Does not throw.
  using NextList = std::function<std::optional<BoxList>()>;

  BoxReader();
  BoxReader(const BoxReader&) = delete;
  BoxReader& operator=(const BoxReader&) = delete;
  ~BoxReader();

  /// As read_boxes().
  void read(const std::vector<BoxToRead>& boxes);
  /// Reads lists in their order. The next one is begun while the last parts of
  /// the one before are on their way, so that the disk always has something to
  /// do. Returns once `next` gives none and all are done. A list that fails does
  /// not end the others.
  void read_lists(const NextList& next);
  /// Frees what it keeps.
  void clear();

 private:
  class Lists;

  /// One per thread.
  std::vector<std::unique_ptr<RangeReader>> readers_;
};

}  // namespace accelerate::detail
