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
  /// Called at the end on one of the reading threads, with the failure or null.
  /// Must not throw.
  std::function<void(std::exception_ptr failure)> done;
};

/// Reads lists of boxes one after another, and keeps the buffers of its threads
/// between lists. Not thread-safe.
class BoxReader {
 public:
  /// Returns the list to read next, if there is one now. Called on any of the
  /// reading threads, one at a time. Must not throw.
  using NextList = std::function<std::optional<BoxList>()>;

  BoxReader();
  BoxReader(const BoxReader&) = delete;
  BoxReader& operator=(const BoxReader&) = delete;
  ~BoxReader();

  /// Same as read_boxes().
  void read(const std::vector<BoxToRead>& boxes);
  /// Reads lists in order. Begins the next list while the last reads of the
  /// previous one are in flight, so that the disk stays busy. Returns once
  /// `next` returns none and all lists are done. A failed list does not stop
  /// the others.
  void read_lists(const NextList& next);
  /// Frees the buffers that it keeps.
  void clear();

 private:
  class Lists;

  /// One per thread.
  std::vector<std::unique_ptr<RangeReader>> readers_;
};

}  // namespace accelerate::detail
