#include "big_model/tiers/units/mapped_units.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "big_model/tiers/units/weight_files.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Smaller tensors are read, unless they have large neighbours: a mapping costs
// about as much as copying this many bytes.
constexpr std::uint64_t kLeastMapped = std::uint64_t{256} << 10U;
// Maximum gap between tensors that are mapped together.
constexpr std::uint64_t kMostGap = std::uint64_t{64} << 10U;

// Maximum number of runs copied on this thread; for more, several threads read
// faster.
constexpr std::ptrdiff_t kMostCopied = 64;
// Alignment of copied tensors in memory, if their file offsets are aligned.
constexpr std::uint64_t kUnitAlignment = 64;

using Tensors = std::vector<const OffloadedTensor*>;

/// Tensors of a unit that are neighbours in a file.
struct FileRun {
  const InputFile* file = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<std::size_t> tensors;

  [[nodiscard]] std::uint64_t num_bytes() const { return end - begin; }
  [[nodiscard]] bool is_mapped() const { return num_bytes() >= kLeastMapped; }
};

// Returns the box of a tensor that can be mapped; null if it must be read or
// converted.
const StoredBox* plain_box(const OffloadedTensor& tensor) {
  if (tensor.source.stored == nullptr || !tensor.device.is_cpu())
    return nullptr;
  const StoredTensor& stored = *tensor.source.stored;
  if (stored.boxes.size() != 1) return nullptr;
  const StoredBox& box = stored.boxes.front();
  const bool is_plain = !box.strides && box.box.size == stored.shape &&
      torch_dtype(stored.dtype) == tensor.tensor.scalar_type() &&
      tensor.tensor.is_contiguous() &&
      box.offset % tensor.tensor.itemsize() == 0;
  return is_plain ? &box : nullptr;
}

// `owner` keeps the memory at `data` alive.
template <class Owner>
at::Tensor
tensor_at(std::byte* data, const Owner& owner, const OffloadedTensor& tensor) {
  return at::from_blob(
      data,
      tensor.tensor.sizes(),
      [owner](void*) {},
      tensor.tensor.options().device(at::kCPU).requires_grad(false));
}

// Null if a value must be read or converted, or too many runs copied.
std::optional<std::vector<FileRun>> runs_of(const Tensors& tensors) {
  std::vector<FileRun> each;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_ready_on_host(*tensors[i])) continue;
    const StoredBox* const box = plain_box(*tensors[i]);
    const std::uint64_t num_bytes = stored_bytes(*tensors[i]);
    if (box == nullptr || num_bytes == 0) return std::nullopt;
    each.push_back(
        {box->file.get(), box->offset, box->offset + num_bytes, {i}});
  }
  std::ranges::sort(each, [](const FileRun& a, const FileRun& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  std::vector<FileRun> runs;
  for (FileRun& next : each) {
    const bool follows = !runs.empty() && runs.back().file == next.file &&
        next.begin <= runs.back().end + kMostGap;
    if (!follows) {
      runs.push_back(std::move(next));
      continue;
    }
    runs.back().end = std::max(runs.back().end, next.end);
    runs.back().tensors.push_back(next.tensors.front());
  }
  const auto num_copied = std::ranges::count_if(
      runs, [](const FileRun& run) { return !run.is_mapped(); });
  return num_copied <= kMostCopied ? std::optional(std::move(runs))
                                   : std::nullopt;
}

// Whether a run is unchanged since its tensors were first read or verified, and
// entirely in the page cache.
bool is_known_and_cached(const FileRun& run, const Tensors& tensors) {
  const InputFile& file = *run.file;
  const bool is_known = file.record() != nullptr
      ? !file.has_changed() && file.is_verified(run.begin, run.end)
      : std::ranges::all_of(run.tensors, [&](std::size_t i) {
          return tensors[i]->source.first->was_compared(
              versions_of(*tensors[i]));
        });
  return is_known && file.is_completely_cached(run.begin, run.end);
}

// Runs on the threads that will compute with the pages.
void run_in_parallel(
    std::size_t count,
    const std::function<void(std::size_t i)>& work) {
  at::parallel_for(
      0,
      static_cast<std::int64_t>(count),
      /*grain_size=*/1,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          work(static_cast<std::size_t>(i));
      });
}

void place_values(
    const FileRun& run,
    std::byte* data,
    const auto& owner,
    const Tensors& tensors,
    FetchedUnit& unit) {
  for (const std::size_t i : run.tensors) {
    const StoredBox& box = tensors[i]->source.stored->boxes.front();
    unit.values[i] =
        tensor_at(data + (box.offset - run.begin), owner, *tensors[i]);
  }
}

bool map_run(const FileRun& run, const Tensors& tensors, FetchedUnit& unit) {
  const MappableFile& mappable = run.file->mappable();
  // From here on, either the file does not change or it cannot be mapped.
  const std::uint64_t promise = mappable.protect();
  if (promise == 0 || !is_known_and_cached(run, tensors)) return false;
  const std::shared_ptr<MappedBytes> bytes =
      mappable.map(promise, run.begin, run.num_bytes());
  if (bytes == nullptr || !bytes->populate(run_in_parallel)) return false;
  place_values(run, bytes->data(), bytes, tensors, unit);
  for (const std::size_t i : run.tensors)
    unit.mapped_bytes += stored_bytes(*tensors[i]);
  return true;
}

bool copy_run(const FileRun& run, const Tensors& tensors, FetchedUnit& unit) {
  const InputFile::Version version = run.file->version_now();
  if (!is_known_and_cached(run, tensors)) return false;
  const std::uint64_t place = run.begin % kUnitAlignment;
  const at::Tensor memory = at::empty(
      {static_cast<std::int64_t>(place + run.num_bytes())}, at::kByte);
  const std::span<std::byte> bytes = bytes_of(memory).subspan(place);
  run.file->read_at(run.begin, bytes);
  if (run.file->version_now() != version) return false;
  place_values(run, bytes.data(), memory, tensors, unit);
  return true;
}

}  // namespace

MappableBox mappable_box(const OffloadedTensor& tensor) {
  if (stored_bytes(tensor) < kLeastMapped) return {};
  const StoredBox* const box = plain_box(tensor);
  if (box == nullptr) return {};
  return {box, box->file->mappable().protect()};
}

at::Tensor map_value(const MappableBox& place, const OffloadedTensor& tensor) {
  if (place.box == nullptr || place.promise == 0) return {};
  const StoredBox& box = *place.box;
  const InputFile& file = *box.file;
  const std::uint64_t end = box.offset + stored_bytes(tensor);
  if ((file.record() != nullptr && !file.is_verified(box.offset, end)) ||
      !file.is_cached(box.offset, end)) {
    return {};
  }
  const std::shared_ptr<MappedBytes> bytes =
      file.mappable().map(place.promise, box.offset, stored_bytes(tensor));
  if (bytes == nullptr || !bytes->populate()) return {};
  return tensor_at(bytes->data(), bytes, tensor);
}

bool can_fetch_at_once(const Tensors& tensors) {
  const auto runs = runs_of(tensors);
  return runs && std::ranges::all_of(*runs, [&](const FileRun& run) {
           return is_known_and_cached(run, tensors) &&
               (!run.is_mapped() || run.file->mappable().protect() != 0);
         });
}

std::optional<FetchedUnit> fetch_at_once(const Tensors& tensors) {
  const auto runs = runs_of(tensors);
  if (!runs) return std::nullopt;
  FetchedUnit unit;
  for (const OffloadedTensor* tensor : tensors)
    unit.values.push_back(tensor->source.host);
  for (const FileRun& run : *runs) {
    const bool is_done = run.is_mapped() ? map_run(run, tensors, unit)
                                         : copy_run(run, tensors, unit);
    if (!is_done) return std::nullopt;
  }
  return unit;
}

}  // namespace accelerate::detail
