#include "format/tensors/read_jobs.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include <accelerate/error.h>

#include "format/tensors/verified_read.h"

namespace accelerate::detail {

namespace {

using safetensors::Box;
using safetensors::Shape;

// Shorter runs are copied out of a mapping, which is cheaper than one read
// each.
constexpr std::uint64_t kLeastRun = 256U << 10U;
// Gaps of up to this many unwanted bytes are read rather than skipped.
constexpr std::uint64_t kMostGap = 64U << 10U;

// The intersection of both boxes, in the coordinates of the full tensor; empty
// if there is none.
std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both{a.begin, a.size};
  for (std::size_t i = 0; i < a.begin.size(); ++i) {
    const std::uint64_t begin = std::max(a.begin[i], b.begin[i]);
    const std::uint64_t end =
        std::min(a.begin[i] + a.size[i], b.begin[i] + b.size[i]);
    if (begin >= end) return std::nullopt;
    both.begin[i] = begin;
    both.size[i] = end - begin;
  }
  return both;
}

std::uint64_t volume_of(const Box& box) {
  return std::accumulate(
      box.size.begin(), box.size.end(), std::uint64_t{1}, std::multiplies<>());
}

std::uint64_t place_in(const Shape& place, const Box& box) {
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    index = index * box.size[i] + place[i] - box.begin[i];
  }
  return index;
}

// Calls visit(first element in a, first element in b, number of elements) for
// each run of `slice` that is contiguous in both boxes.
template <class Visit>
void for_each_run(const Box& slice, const Box& a, const Box& b, Visit visit) {
  std::size_t num_outer = slice.size.size();
  std::uint64_t run = 1;
  while (num_outer > 0) {
    --num_outer;
    run *= slice.size[num_outer];
    if (slice.size[num_outer] != a.size[num_outer] ||
        slice.size[num_outer] != b.size[num_outer]) {
      break;
    }
  }
  Shape place = slice.begin;
  while (true) {
    visit(place_in(place, a), place_in(place, b), run);
    std::size_t axis = num_outer;
    while (axis > 0) {
      --axis;
      if (++place[axis] < slice.begin[axis] + slice.size[axis]) break;
      place[axis] = slice.begin[axis];
      if (axis == 0) return;
    }
    if (num_outer == 0) return;
  }
}

// Bytes in one chunk of a file to read into memory.
struct WantedBytes {
  const InputFile* file = nullptr;
  std::uint64_t chunk = 0;
  FileSegment segment;
  bool keeps_cached = false;
};

// Data that boxes need: byte ranges of files, and slices to copy row by row.
struct Wanted {
  std::vector<WantedBytes> bytes;
  std::vector<std::function<void()>> copies;
  // Files that copies read from.
  std::vector<const InputFile*> copied_files;
};

void add_bytes(
    Wanted& wanted,
    const StoredBox& stored,
    std::uint64_t offset,
    std::span<std::byte> out,
    bool keeps_cached) {
  while (!out.empty()) {
    const std::uint64_t chunk = offset / kChunkBytes;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(
        (chunk + 1) * kChunkBytes - offset, out.size()));
    wanted.bytes.push_back(
        {stored.file.get(), chunk, {offset, out.first(size)}, keeps_cached});
    offset += size;
    out = out.subspan(size);
  }
}

void require_inside(const BoxToRead& wanted) {
  const StoredTensor& tensor = *wanted.tensor;
  const std::size_t num_dims = tensor.shape.size();
  bool is_inside =
      wanted.box.begin.size() == num_dims && wanted.box.size.size() == num_dims;
  for (std::size_t i = 0; is_inside && i < num_dims; ++i) {
    is_inside = wanted.box.begin[i] <= tensor.shape[i] &&
        wanted.box.size[i] <= tensor.shape[i] - wanted.box.begin[i];
  }
  const auto num_bytes = is_inside
      ? safetensors::bytes_of(tensor.dtype, wanted.box.size)
      : std::nullopt;
  if (!num_bytes || *num_bytes != wanted.out.size()) {
    throw CheckpointError(
        "[checkpoint] a slice of a tensor was requested that is not inside it, "
        "or in a buffer of another size");
  }
}

// Copies elements of a strided box, starting at element `from` in row-major
// order.
void copy_strided(
    const StoredBox& stored,
    safetensors::Dtype dtype,
    std::span<const std::byte> data,
    std::uint64_t from,
    std::span<std::byte> out) {
  const auto width =
      static_cast<std::uint64_t>(safetensors::bits_of(dtype)) / 8;
  const Shape& size = stored.box.size;
  const Shape& strides = *stored.strides;
  Shape index(size.size(), 0);
  std::uint64_t at = 0;
  for (std::size_t i = size.size(); i-- > 0; from /= size[i]) {
    index[i] = from % size[i];
    at += index[i] * strides[i];
  }
  for (std::uint64_t to = 0; to < out.size(); to += width) {
    std::memcpy(out.data() + to, data.data() + at * width, width);
    for (std::size_t i = size.size(); i-- > 0;) {
      at += strides[i];
      if (++index[i] < size[i]) break;
      at -= size[i] * strides[i];
      index[i] = 0;
    }
  }
  resolve(stored.hidden_bits, dtype, out);
}

// Verifies the checksums of the bytes that `both` covers. Files with checksums
// hold contiguous boxes.
void verify_stored(
    const StoredBox& stored,
    const Box& wanted,
    const Box& both,
    std::uint64_t width) {
  for_each_run(both, stored.box, wanted, [&](auto from, auto, auto run) {
    const std::uint64_t begin = stored.offset + from * width;
    verify_range(*stored.file, begin, begin + run * width);
  });
}

// Whether other processes read the same bytes of a shared file. They do unless
// `both` is a complete shard, which only one rank needs.
bool is_read_by_others(
    const StoredTensor& tensor,
    const StoredBox& stored,
    const Shape& both) {
  return stored.file->is_shared() &&
      (stored.box.size == tensor.shape || both != stored.box.size);
}

void add_copy(
    Wanted& all,
    const BoxToRead& wanted,
    const StoredBox& stored,
    const Box& both,
    std::uint64_t width) {
  all.copied_files.push_back(stored.file.get());
  all.copies.emplace_back([&stored, &wanted, both, width] {
    if (stored.file->record() != nullptr) {
      verify_stored(stored, wanted.box, both, width);
    }
    const std::span<const std::byte> data =
        stored.file->bytes().subspan(stored.offset);
    for_each_run(
        both, stored.box, wanted.box, [&](auto from, auto to, auto run) {
          const auto out = wanted.out.subspan(to * width, run * width);
          stored.file->count_read(out.size());
          if (stored.strides) {
            copy_strided(stored, wanted.tensor->dtype, data, from, out);
          } else {
            std::memcpy(out.data(), data.data() + from * width, out.size());
          }
        });
  });
}

void add_runs(
    Wanted& all,
    const BoxToRead& wanted,
    const StoredBox& stored,
    const Box& both) {
  const auto bits = safetensors::bits_of(wanted.tensor->dtype);
  if (bits % 8 != 0) {
    throw CheckpointError(
        "[checkpoint] a tensor with elements smaller than "
        "a byte cannot be sliced");
  }
  const auto width = static_cast<std::uint64_t>(bits) / 8;
  std::uint64_t run_bytes = 0;
  for_each_run(both, stored.box, wanted.box, [&](auto, auto, auto run) {
    run_bytes = run * width;
  });
  if (run_bytes < kLeastRun || stored.strides) {
    add_copy(all, wanted, stored, both, width);
    return;
  }
  const bool keeps_cached =
      is_read_by_others(*wanted.tensor, stored, both.size);
  for_each_run(both, stored.box, wanted.box, [&](auto from, auto to, auto run) {
    add_bytes(
        all,
        stored,
        stored.offset + from * width,
        wanted.out.subspan(to * width, run * width),
        keeps_cached);
  });
}

void add_box(Wanted& all, const BoxToRead& wanted) {
  require_inside(wanted);
  if (wanted.out.empty()) return;
  std::uint64_t missing = volume_of(wanted.box);
  for (const StoredBox& stored : wanted.tensor->boxes) {
    const bool is_same = stored.box.begin == wanted.box.begin &&
        stored.box.size == wanted.box.size && !stored.strides;
    if (is_same) {
      add_bytes(
          all,
          stored,
          stored.offset,
          wanted.out,
          is_read_by_others(*wanted.tensor, stored, stored.box.size));
      return;
    }
    const auto both = intersection(stored.box, wanted.box);
    if (!both) continue;
    add_runs(all, wanted, stored, *both);
    missing -= std::min(missing, volume_of(*both));
  }
  if (missing == 0) return;
  throw CheckpointError(
      "[checkpoint] a slice of a tensor was requested that was not fully "
      "saved: the state is one machine's part, for the ranks that it had");
}

// Adds a segment; merges it with the last one if both are adjacent in the file
// and in memory.
void add_segment(FileRange& range, const FileSegment& segment) {
  if (!range.segments.empty()) {
    FileSegment& last = range.segments.back();
    const std::size_t size = last.out.size();
    if (last.offset + size == segment.offset &&
        last.out.data() + size == segment.out.data()) {
      last.out = {last.out.data(), size + segment.out.size()};
      return;
    }
  }
  range.segments.push_back(segment);
}

// Adds jobs for the wanted bytes of one chunk, which are sorted by offset.
void add_chunk(
    std::vector<ReadJob>& jobs,
    const InputFile& file,
    std::uint64_t chunk,
    std::span<const WantedBytes> wanted) {
  const bool verifies = file.record() != nullptr && !file.is_verified(chunk);
  std::vector<ReadJob> repeated;
  ReadJob job{{&file}, verifies};
  if (verifies) job.range = chunk_range(file, chunk);
  std::uint64_t end = 0;
  for (const WantedBytes& each : wanted) {
    const FileSegment& segment = each.segment;
    const std::uint64_t segment_end = segment.offset + segment.out.size();
    if (segment.offset < end) {
      repeated.push_back(
          {{&file, segment.offset, segment_end, {segment}, each.keeps_cached},
           false});
      continue;
    }
    if (!verifies) {
      if (end > 0 && segment.offset - end > kMostGap) {
        jobs.push_back(std::exchange(job, {{&file}, false}));
      }
      if (job.range.segments.empty()) job.range.begin = segment.offset;
      job.range.end = segment_end;
    }
    add_segment(job.range, segment);
    job.range.keeps_cached |= each.keeps_cached;
    end = segment_end;
  }
  jobs.push_back(std::move(job));
  std::move(repeated.begin(), repeated.end(), std::back_inserter(jobs));
}

// The first chunk of a file with a record contains its header and is always
// hashed.
void add_first_chunks(
    std::vector<ReadJob>& jobs,
    std::vector<const InputFile*> files) {
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  for (const ReadJob& job : jobs) {
    if (job.verifies && job.range.begin == 0) {
      std::erase(files, job.range.file);
    }
  }
  for (const InputFile* file : files) {
    if (file->record() == nullptr || file->is_verified(0)) continue;
    jobs.push_back({chunk_range(*file, 0), true});
  }
}

std::vector<ReadJob> range_jobs(Wanted& wanted) {
  std::vector<WantedBytes>& all = wanted.bytes;
  const auto place_of = [](const WantedBytes& bytes) {
    return std::tuple(bytes.file, bytes.chunk, bytes.segment.offset);
  };
  std::ranges::stable_sort(
      all, [&](const WantedBytes& a, const WantedBytes& b) {
        return place_of(a) < place_of(b);
      });
  std::vector<ReadJob> jobs;
  std::vector<const InputFile*> files = wanted.copied_files;
  for (std::size_t first = 0; first < all.size();) {
    std::size_t last = first;
    while (last < all.size() && all[last].file == all[first].file &&
           all[last].chunk == all[first].chunk) {
      ++last;
    }
    add_chunk(
        jobs,
        *all[first].file,
        all[first].chunk,
        std::span(all).subspan(first, last - first));
    if (files.empty() || files.back() != all[first].file) {
      files.push_back(all[first].file);
    }
    first = last;
  }
  add_first_chunks(jobs, std::move(files));
  return jobs;
}

// Whether a range begins at or shortly after the end of another one, and one of
// the two is too short for direct reads.
bool follows(const ReadJob& before, const ReadJob& after) {
  const FileRange& a = before.range;
  const FileRange& b = after.range;
  const bool is_short = a.end - a.begin < RangeReader::kLeastDirectBytes ||
      b.end - b.begin < RangeReader::kLeastDirectBytes;
  return is_short && a.file == b.file && !before.verifies && !after.verifies &&
      b.begin >= a.end && b.begin - a.end <= kMostGap &&
      b.end - a.begin <= kChunkBytes + RangeReader::kLeastDirectBytes;
}

// Merges ranges too short for direct reads into the previous or next range: on
// a short read through the page cache, the kernel reads more than requested.
void merge_short_ranges(std::vector<ReadJob>& jobs) {
  std::vector<ReadJob> merged;
  for (ReadJob& job : jobs) {
    if (!merged.empty() && follows(merged.back(), job)) {
      FileRange& range = merged.back().range;
      range.end = job.range.end;
      range.keeps_cached |= job.range.keeps_cached;
      for (const FileSegment& segment : job.range.segments)
        add_segment(range, segment);
    } else {
      merged.push_back(std::move(job));
    }
  }
  jobs = std::move(merged);
}

}  // namespace

ReadJobs read_jobs(const std::vector<BoxToRead>& boxes) {
  Wanted wanted;
  wanted.bytes.reserve(boxes.size());
  for (const BoxToRead& box : boxes) add_box(wanted, box);
  std::vector<ReadJob> ranges = range_jobs(wanted);
  merge_short_ranges(ranges);
  return {std::move(ranges), std::move(wanted.copies)};
}

}  // namespace accelerate::detail
