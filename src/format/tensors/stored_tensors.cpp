#include "format/tensors/stored_tensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include <accelerate/error.h>

#include "base/jobs.h"
#include "base/text.h"
#include "format/tensors/verified_read.h"

namespace accelerate::detail {

namespace {

using safetensors::Box;
using safetensors::Shape;

// Number of bytes that one system call reads; threads share larger runs.
constexpr std::uint64_t kReadBytes = 8U << 20U;
// Shorter runs are copied out of a mapping: one system call each would cost
// more.
constexpr std::uint64_t kLeastRun = 256U << 10U;

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error) {
  throw Error(format(
      "[files] cannot read {}: {}", path.string(), std::strerror(error)));
}

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

// Bytes from a file, or a slice of a tensor copied row by row.
struct Job {
  const InputFile* file = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> out;
  std::function<void()> copy = nullptr;
};

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

// Copies elements of a box with strides from number `from` on, counted row by
// row.
void copy_strided(
    const StoredBox& stored,
    std::span<const std::byte> data,
    std::uint64_t from,
    std::uint64_t width,
    std::span<std::byte> out) {
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
}

// Compares the checksums of the bytes that `both` covers. Files with checksums
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

void add_runs(
    const BoxToRead& wanted,
    const StoredBox& stored,
    const Box& both,
    std::vector<Job>& jobs) {
  const auto bits = safetensors::bits_of(wanted.tensor->dtype);
  if (bits % 8 != 0) {
    throw CheckpointError(
        "[checkpoint] a tensor of elements smaller than a byte cannot be cut");
  }
  const auto width = static_cast<std::uint64_t>(bits) / 8;
  std::uint64_t run_bytes = 0;
  for_each_run(both, stored.box, wanted.box, [&](auto, auto, auto run) {
    run_bytes = run * width;
  });
  if (run_bytes >= kLeastRun && !stored.strides) {
    for_each_run(
        both, stored.box, wanted.box, [&](auto from, auto to, auto run) {
          for (std::uint64_t i = 0; i < run * width; i += kReadBytes) {
            jobs.push_back(
                {stored.file.get(),
                 stored.offset + from * width + i,
                 wanted.out.subspan(
                     to * width + i, std::min(kReadBytes, run * width - i))});
          }
        });
    return;
  }
  jobs.push_back(
      {stored.file.get(), 0, {}, [&stored, &wanted, both, width] {
         if (stored.file->record() != nullptr) {
           verify_stored(stored, wanted.box, both, width);
         }
         const std::span<const std::byte> data =
             stored.file->bytes().subspan(stored.offset);
         for_each_run(
             both, stored.box, wanted.box, [&](auto from, auto to, auto run) {
               const auto out = wanted.out.subspan(to * width, run * width);
               if (stored.strides) {
                 copy_strided(stored, data, from, width, out);
               } else {
                 std::memcpy(
                     out.data(), data.data() + from * width, out.size());
               }
             });
       }});
}

void add_jobs(const BoxToRead& wanted, std::vector<Job>& jobs) {
  require_inside(wanted);
  if (wanted.out.empty()) return;
  for (const StoredBox& stored : wanted.tensor->boxes) {
    const auto both = intersection(stored.box, wanted.box);
    if (!both) continue;
    if (both->size == stored.box.size && both->size == wanted.box.size &&
        !stored.strides) {
      for (std::uint64_t i = 0; i < wanted.out.size(); i += kReadBytes) {
        jobs.push_back(
            {stored.file.get(),
             stored.offset + i,
             wanted.out.subspan(
                 i,
                 std::min<std::uint64_t>(kReadBytes, wanted.out.size() - i))});
      }
    } else {
      add_runs(wanted, stored, *both, jobs);
    }
  }
}

// What is wanted of a chunk that is hashed while it is read.
struct ChunkJob {
  const InputFile* file = nullptr;
  std::uint64_t chunk = 0;
  std::vector<FileSegment> segments = {};
};

// Divides jobs by chunk.
std::map<std::uint64_t, std::vector<FileSegment>> segments_by_chunk(
    const std::vector<Job>& jobs) {
  std::map<std::uint64_t, std::vector<FileSegment>> chunks;
  for (const Job& job : jobs) {
    for (std::uint64_t done = 0; done < job.out.size();) {
      const std::uint64_t offset = job.offset + done;
      const std::uint64_t chunk = offset / kChunkBytes;
      const std::uint64_t size = std::min<std::uint64_t>(
          (chunk + 1) * kChunkBytes - offset, job.out.size() - done);
      chunks[chunk].push_back({offset, job.out.subspan(done, size)});
      done += size;
    }
  }
  return chunks;
}

// Sorts the segments, and moves those that overlap another to `jobs`.
void separate_overlaps(ChunkJob& chunk, std::vector<Job>& jobs) {
  std::stable_sort(
      chunk.segments.begin(),
      chunk.segments.end(),
      [](const FileSegment& a, const FileSegment& b) {
        return a.offset < b.offset;
      });
  std::uint64_t end = 0;
  std::erase_if(chunk.segments, [&](const FileSegment& segment) {
    const bool overlaps = segment.offset < end;
    if (overlaps) jobs.push_back({chunk.file, segment.offset, segment.out});
    end = std::max(end, segment.offset + segment.out.size());
    return overlaps;
  });
}

// Removes the reads of files that have a record from `jobs`, except those of
// chunks that were hashed before, and returns them by chunk. The first chunk of
// a file, which has its header, is always among what is hashed.
std::vector<ChunkJob> take_verified(std::vector<Job>& jobs) {
  std::map<const InputFile*, std::vector<Job>> by_file;
  std::vector<Job> others;
  for (Job& job : jobs) {
    const bool is_checked =
        job.file != nullptr && job.file->record() != nullptr;
    if (is_checked) by_file.try_emplace(job.file);
    if (is_checked && !job.copy) {
      by_file[job.file].push_back(std::move(job));
    } else {
      others.push_back(std::move(job));
    }
  }
  std::vector<ChunkJob> chunks;
  for (const auto& [file, wanted] : by_file) {
    auto segments = segments_by_chunk(wanted);
    segments.try_emplace(0);
    for (auto& [chunk, inside] : segments) {
      if (!file->is_verified(chunk)) {
        chunks.push_back({file, chunk, std::move(inside)});
        separate_overlaps(chunks.back(), others);
        continue;
      }
      for (const FileSegment& segment : inside) {
        others.push_back({file, segment.offset, segment.out});
      }
    }
  }
  jobs = std::move(others);
  return chunks;
}

// Reads elements [begin, begin + count) of `box`, one row after another.
void read_range(
    const StoredTensor& tensor,
    const Box& box,
    std::size_t axis,
    std::uint64_t begin,
    std::uint64_t count,
    std::span<std::byte> out,
    std::vector<BoxToRead>& wanted) {
  if (count == 0) return;
  std::uint64_t row = 1;
  for (std::size_t i = axis + 1; i < box.size.size(); ++i) row *= box.size[i];
  const std::uint64_t volume =
      axis < box.size.size() ? row * box.size[axis] : 1;
  if (count == volume) {
    wanted.push_back({&tensor, box, out});
    return;
  }
  const std::uint64_t width = out.size() / count;
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t first = (begin + done) / row;
    const std::uint64_t inside = (begin + done) % row;
    const std::uint64_t left = count - done;
    Box slice = box;
    slice.begin[axis] += first;
    std::uint64_t taken = 0;
    if (inside == 0 && left >= row) {
      slice.size[axis] = left / row;
      taken = slice.size[axis] * row;
      wanted.push_back(
          {&tensor, slice, out.subspan(done * width, taken * width)});
    } else {
      slice.size[axis] = 1;
      taken = std::min(left, row - inside);
      read_range(
          tensor,
          slice,
          axis + 1,
          inside,
          taken,
          out.subspan(done * width, taken * width),
          wanted);
    }
    done += taken;
  }
}

}  // namespace

InputFile::InputFile(
    std::filesystem::path path,
    std::optional<FileRecord> record)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)),
      record_(std::move(record)),
      verified_(record_ ? record_->checksums.size() : 0) {
  if (file_ < 0) fail_to_read(path_, errno);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to_read(path_, errno);
    if (got == 0) {
      throw CheckpointError(format(
          "[checkpoint] {} is shorter than it should be", path_.string()));
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::span<const std::byte> InputFile::bytes() const {
  std::call_once(is_mapped_, [this] { mapped_.emplace(path_); });
  return mapped_->bytes();
}

StoredTensors stored_in_checkpoint(
    const std::filesystem::path& directory,
    const SavedTensors& saved,
    const std::map<std::string, FileRecord>* records) {
  struct Opened {
    std::shared_ptr<const InputFile> file;
    safetensors::Header header;
  };
  std::map<std::string, Opened> files;
  const auto open = [&](const std::string& name) -> const Opened& {
    const auto found = files.find(name);
    if (found != files.end()) return found->second;
    const safetensors::Reader reader(directory / name);
    std::optional<FileRecord> record;
    if (records != nullptr) record = records->at(name);
    return files
        .emplace(
            name,
            Opened{
                std::make_shared<InputFile>(
                    directory / name, std::move(record)),
                reader.header()})
        .first->second;
  };
  StoredTensors stored;
  for (const auto& [name, tensor] : saved) {
    StoredTensor& one = stored[name];
    one.dtype = tensor.dtype;
    one.shape = tensor.shape;
    for (const SavedBox& saved_box : tensor.boxes) {
      const Opened& opened = open(saved_box.file);
      const auto info = opened.header.tensors.find(name);
      if (info == opened.header.tensors.end() ||
          info->second.dtype != tensor.dtype ||
          info->second.shape != saved_box.box.size) {
        throw CheckpointError(format(
            "[checkpoint] {} is damaged: its \"{}\" is not what the manifest "
            "says",
            (directory / saved_box.file).string(),
            printable(name)));
      }
      one.boxes.push_back(
          {opened.file,
           opened.header.data_begin + info->second.begin,
           saved_box.box});
    }
  }
  return stored;
}

StoredTensors stored_in_safetensors(const std::filesystem::path& path) {
  const safetensors::Reader reader(path);
  const auto file = std::make_shared<InputFile>(path);
  StoredTensors stored;
  for (const auto& [name, info] : reader.header().tensors) {
    stored[name] = {
        info.dtype,
        info.shape,
        {{file,
          reader.header().data_begin + info.begin,
          {Shape(info.shape.size(), 0), info.shape}}}};
  }
  return stored;
}

void read_boxes(const std::vector<BoxToRead>& boxes) {
  std::vector<Job> jobs;
  for (const BoxToRead& wanted : boxes) add_jobs(wanted, jobs);
  const std::vector<ChunkJob> chunks = take_verified(jobs);
  const std::size_t num_jobs = chunks.size() + jobs.size();
  const std::size_t num_threads = num_helpful_threads(num_jobs);
  std::vector<std::vector<std::byte>> scratch(num_threads);
  run_jobs(num_jobs, num_threads, [&](std::size_t thread, std::size_t i) {
    if (i < chunks.size()) {
      const ChunkJob& job = chunks[i];
      read_and_verify(*job.file, job.chunk, job.segments, scratch[thread]);
      return;
    }
    const Job& job = jobs[i - chunks.size()];
    if (job.copy) {
      job.copy();
    } else {
      job.file->read_at(job.offset, job.out);
    }
  });
}

TensorToWrite to_write(const StoredTensor& tensor) {
  TensorToWrite wanted{tensor.dtype, tensor.shape, {}};
  wanted.bytes.num_bytes =
      safetensors::bytes_of(tensor.dtype, tensor.shape).value_or(0);
  wanted.bytes.copy = [tensor](std::uint64_t begin, std::span<std::byte> out) {
    if (tensor.boxes.size() == 1 && !tensor.boxes.front().strides) {
      tensor.boxes.front().file->read_at(
          tensor.boxes.front().offset + begin, out);
      return;
    }
    const auto width =
        static_cast<std::uint64_t>(safetensors::bits_of(tensor.dtype)) / 8;
    const Box full{Shape(tensor.shape.size(), 0), tensor.shape};
    std::vector<BoxToRead> boxes;
    read_range(tensor, full, 0, begin / width, out.size() / width, out, boxes);
    read_boxes(boxes);
  };
  return wanted;
}

}  // namespace accelerate::detail
