#include "format/tensors/range_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/process/jobs.h"

namespace accelerate::detail {

namespace {

// Bytes read and then hashed at once; small enough for the processor's cache.
constexpr std::uint64_t kBufferedPiece = 256U << 10U;
// Shorter segments are copied out of a piece, which is cheaper than one system
// call each.
constexpr std::uint64_t kLeastOwnRead = 64U << 10U;

bool is_long(const FileSegment& segment) {
  return segment.out.size() >= kLeastOwnRead;
}

std::uint64_t end_of(const FileSegment& segment) {
  return segment.offset + segment.out.size();
}

// The segments of a range, visited as its bytes arrive in order.
class SegmentCursor {
 public:
  explicit SegmentCursor(std::span<const FileSegment> segments)
      : segments_(segments) {}

  // Copies the wanted bytes of a piece at `offset`, except those already in
  // place.
  void copy_out(std::uint64_t offset, std::span<const std::byte> piece) {
    skip_before(offset);
    const std::uint64_t limit = offset + piece.size();
    for (std::size_t i = next_; i < segments_.size(); ++i) {
      const FileSegment& segment = segments_[i];
      if (segment.offset >= limit) return;
      const std::uint64_t begin = std::max(offset, segment.offset);
      const std::uint64_t end = std::min(limit, end_of(segment));
      std::byte* const target = segment.out.data() + (begin - segment.offset);
      const std::byte* const source = piece.data() + (begin - offset);
      if (target != source && begin < end) {
        std::memcpy(target, source, end - begin);
      }
    }
  }

  // The segment that begins at `offset` or contains it; null if none does.
  const FileSegment* at(std::uint64_t offset) {
    skip_before(offset);
    if (next_ == segments_.size() || segments_[next_].offset > offset) {
      return nullptr;
    }
    return &segments_[next_];
  }

  // Where the first long segment after `offset` begins, but at most `limit`.
  [[nodiscard]] std::uint64_t next_long(
      std::uint64_t offset,
      std::uint64_t limit) const {
    for (std::size_t i = next_; i < segments_.size(); ++i) {
      if (segments_[i].offset >= limit) break;
      if (is_long(segments_[i]) && segments_[i].offset > offset) {
        return segments_[i].offset;
      }
    }
    return limit;
  }

 private:
  void skip_before(std::uint64_t offset) {
    while (next_ < segments_.size() && end_of(segments_[next_]) <= offset) {
      ++next_;
    }
  }

  std::span<const FileSegment> segments_;
  std::size_t next_ = 0;
};

// Returns the destination of these bytes if one segment covers them all.
std::byte*
own_place(SegmentCursor& cursor, std::uint64_t offset, std::size_t size) {
  const FileSegment* const segment = cursor.at(offset);
  if (segment == nullptr || end_of(*segment) < offset + size) return nullptr;
  return segment->out.data() + (offset - segment->offset);
}

// A direct read in flight. Pieces are requested ahead of the one being copied.
struct DirectTask {
  explicit DirectTask(RangeReader::Task all) : task(std::move(all)) {}

  void take(std::uint64_t offset, std::span<const std::byte> piece) {
    if (failure) return;
    try {
      if (task.visit) task.visit(piece);
      taken.copy_out(offset, piece);
    } catch (...) {
      failure = std::current_exception();
    }
  }

  void finish(int result) {
    try {
      if (!failure) task.range.file->require_read(result);
    } catch (...) {
      failure = std::current_exception();
    }
    task.done(failure);
  }

  RangeReader::Task task;
  SegmentCursor asked{task.range.segments};
  SegmentCursor taken{task.range.segments};
  std::exception_ptr failure;
};

DirectReader::Range as_direct(RangeReader::Task task) {
  const auto shared = std::make_shared<DirectTask>(std::move(task));
  const FileRange& range = shared->task.range;
  return {
      &range.file->direct(),
      range.begin,
      range.end,
      [shared](std::uint64_t offset, std::size_t size) {
        return own_place(shared->asked, offset, size);
      },
      [shared](std::uint64_t offset, std::span<const std::byte> piece) {
        shared->take(offset, piece);
      },
      [shared](int result) { shared->finish(result); }};
}

}  // namespace

bool RangeReader::is_direct(const FileRange& range) {
  return range.begin < range.end && !range.keeps_cached &&
      range.end - range.begin >= kLeastDirectBytes &&
      range.file->direct().direct >= 0 &&
      !range.file->is_cached(range.begin, range.end);
}

// Returns the next range that needs a direct read; first reads buffered ranges
// that come before it.
std::optional<RangeReader::Task> RangeReader::next_direct(
    const NextTask& next) {
  while (std::optional<Task> task = next()) {
    std::exception_ptr failure;
    try {
      if (is_direct(task->range)) return task;
      read_buffered(task->range, task->visit);
    } catch (...) {
      failure = std::current_exception();
    }
    task->done(failure);
  }
  return std::nullopt;
}

void RangeReader::read(const NextTask& next) {
  std::optional<Task> first = next_direct(next);
  if (!first) return;
  if (!direct_) direct_.emplace();
  direct_->read([&]() -> std::optional<DirectReader::Range> {
    std::optional<Task> task =
        first ? std::exchange(first, std::nullopt) : next_direct(next);
    if (!task) return std::nullopt;
    return as_direct(std::move(*task));
  });
}

void RangeReader::read(const FileRange& range, const Visit& visit) {
  if (range.begin >= range.end) return;
  std::exception_ptr failure;
  std::optional<Task> only =
      Task{range, visit, [&](std::exception_ptr found) { failure = found; }};
  read([&] { return std::exchange(only, std::nullopt); });
  if (failure) std::rethrow_exception(failure);
}

void RangeReader::read_buffered(const FileRange& range, const Visit& visit) {
  SegmentCursor cursor(range.segments);
  std::uint64_t at = range.begin;
  const auto take = [&](std::span<std::byte> out) {
    range.file->read_at(at, out);
    if (visit) visit(out);
    at += out.size();
  };
  while (at < range.end) {
    const FileSegment* const segment = cursor.at(at);
    if (segment != nullptr && segment->offset == at && is_long(*segment)) {
      // Reads in place. Small pieces help only if `visit` hashes them.
      const std::uint64_t most = visit ? kBufferedPiece : segment->out.size();
      for (std::size_t done = 0; done < segment->out.size();) {
        const std::size_t size =
            std::min<std::uint64_t>(most, segment->out.size() - done);
        take(segment->out.subspan(done, size));
        done += size;
      }
      continue;
    }
    // Reads up to the next long segment; a piece can end inside a short one.
    const std::uint64_t limit =
        cursor.next_long(at, std::min(at + kBufferedPiece, range.end));
    scratch_.resize(kBufferedPiece);
    const std::uint64_t offset = at;
    const auto piece = std::span(scratch_).first(limit - at);
    take(piece);
    cursor.copy_out(offset, piece);
  }
}

std::size_t num_reading_threads(std::size_t num_ranges) {
  return std::max<std::size_t>(
      num_helpful_threads(num_ranges), num_ranges > 1 ? 2 : 1);
}

}  // namespace accelerate::detail
