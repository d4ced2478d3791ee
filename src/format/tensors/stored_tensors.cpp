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

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
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
    const SavedTensors& saved) {
  struct Opened {
    std::shared_ptr<const InputFile> file;
    safetensors::Header header;
  };
  std::map<std::string, Opened> files;
  const auto open = [&](const std::string& name) -> const Opened& {
    const auto found = files.find(name);
    if (found != files.end()) return found->second;
    const safetensors::Reader reader(directory / name);
    return files
        .emplace(
            name,
            Opened{
                std::make_shared<InputFile>(directory / name), reader.header()})
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
  run_jobs(
      jobs.size(), num_helpful_threads(jobs.size()), [&](auto, std::size_t i) {
        const Job& job = jobs[i];
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
