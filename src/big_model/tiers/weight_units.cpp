#include "big_model/tiers/weight_units.h"

#include <algorithm>
#include <utility>

#include <sys/mman.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Tensors begin at multiples of this, as direct reads like them.
constexpr std::uint64_t kAlignment = 4096;
// A recycled buffer may be so many times as large as what it is for.
constexpr std::uint64_t kMostSpare = 2;
// Smaller tensors are read: mapping costs about as much as copying so many
// bytes.
constexpr std::uint64_t kLeastMapped = std::uint64_t{256} << 10U;

std::uint64_t aligned(std::uint64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t stored_bytes(const OffloadedTensor& tensor) {
  if (tensor.source.stored == nullptr) return 0;
  const StoredTensor& stored = *tensor.source.stored;
  return safetensors::bytes_of(stored.dtype, stored.shape).value_or(0);
}

// The one range of a file that has the tensor's bytes as LibTorch wants them;
// null if they have to be read, converted or checked.
const StoredBox* mappable_box(const OffloadedTensor& tensor) {
  if (tensor.source.stored == nullptr || !tensor.device.is_cpu())
    return nullptr;
  const StoredTensor& stored = *tensor.source.stored;
  if (stored.boxes.size() != 1 || stored.boxes.front().strides ||
      torch_dtype(stored.dtype) != tensor.tensor.scalar_type() ||
      !tensor.tensor.is_contiguous()) {
    return nullptr;
  }
  const StoredBox& box = stored.boxes.front();
  const std::uint64_t num_bytes = stored_bytes(tensor);
  const bool is_whole = box.box.size == stored.shape;
  if (!is_whole || num_bytes < kLeastMapped ||
      box.offset % tensor.tensor.itemsize() != 0 ||
      (box.file->record() != nullptr &&
       !box.file->is_verified(box.offset, box.offset + num_bytes))) {
    return nullptr;
  }
  return box.file->is_cached(box.offset, box.offset + num_bytes) ? &box
                                                                 : nullptr;
}

// The tensor's bytes in the page cache, which cost no copy. Undefined if they
// cannot be mapped. Changes are not written.
at::Tensor map_value(const StoredBox& box, const OffloadedTensor& tensor) {
  const std::uint64_t num_bytes = stored_bytes(tensor);
  const std::uint64_t begin = box.offset / kAlignment * kAlignment;
  const std::size_t size = box.offset + num_bytes - begin;
  void* const data = ::mmap(
      nullptr,
      size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE,
      box.file->descriptor(),
      static_cast<off_t>(begin));
  if (data == MAP_FAILED) return {};
  // Fails where the file has become shorter, which a read explains.
  if (::madvise(data, size, MADV_POPULATE_READ) != 0) {
    ::munmap(data, size);
    return {};
  }
  return at::from_blob(
      static_cast<std::byte*>(data) + (box.offset - begin),
      tensor.tensor.sizes(),
      [data, size](void*) { ::munmap(data, size); },
      tensor.tensor.options().device(at::kCPU).requires_grad(false));
}

// A file with checksums is compared with them once more.
void require_as_before(const InputFile& file) {
  if (!file.has_changed()) return;
  const FileRecord* const record = file.record();
  if (record == nullptr) {
    throw CheckpointError(format(
        "[big_model] {} was changed while a model reads its weights from it: "
        "restore the file and load the model again",
        file.path().string()));
  }
  file.accept_changes();
}

// Calls `visit` with the files of a tensor.
template <class Visit>
void for_each_file(const OffloadedTensor& tensor, Visit&& visit) {
  if (tensor.source.stored == nullptr) return;
  const InputFile* last = nullptr;
  for (const StoredBox& box : tensor.source.stored->boxes) {
    if (box.file.get() != std::exchange(last, box.file.get())) visit(*box.file);
  }
}

// The value of a tensor in a file, as a part of the buffer that is read into.
at::Tensor value_in(
    const at::Tensor& buffer,
    std::uint64_t offset,
    const OffloadedTensor& tensor) {
  const StoredTensor& stored = *tensor.source.stored;
  const auto dtype = torch_dtype(stored.dtype);
  if (!dtype) {
    throw CheckpointError(format(
        "[big_model] {} has dtype {} in its file, which LibTorch does not have",
        tensor.name,
        safetensors::name_of(stored.dtype)));
  }
  return buffer
      .narrow(
          0,
          static_cast<std::int64_t>(offset),
          static_cast<std::int64_t>(stored_bytes(tensor)))
      .view(*dtype)
      .view(tensor.tensor.sizes());
}

// On a stream of its own, so that what computes is not waited for.
at::Tensor copy_to_device(const at::Tensor& value, c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream side = guard.getStreamFromGlobalPool(device);
  const c10::StreamGuard on_stream(side);
  at::Tensor copy = value.to(
      value.options().device(device), /*non_blocking=*/true, /*copy=*/true);
  c10::Event done(device.type());
  done.record(side);
  done.synchronize();
  return copy;
}

at::Tensor finished(const OffloadedTensor& tensor, at::Tensor value) {
  // Strides of the module's tensor, which need not be those of a row-major one.
  const at::ScalarType dtype = tensor.tensor.scalar_type();
  if (value.scalar_type() != dtype) value = value.to(dtype);
  if (value.strides() != tensor.tensor.strides()) {
    at::Tensor laid_out = at::empty_strided(
        tensor.tensor.sizes(), tensor.tensor.strides(), value.options());
    laid_out.copy_(value);
    value = laid_out;
  }
  return value.device() == tensor.device ? value
                                         : copy_to_device(value, tensor.device);
}

}  // namespace

std::uint64_t num_bytes_of(const at::Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel()) * tensor.itemsize();
}

at::Tensor BufferPool::take(std::uint64_t num_bytes) {
  const auto wanted = static_cast<std::int64_t>(num_bytes);
  auto best = buffers_.end();
  for (auto each = buffers_.begin(); each != buffers_.end(); ++each) {
    const std::int64_t size = each->numel();
    if (size < wanted || size > wanted * static_cast<std::int64_t>(kMostSpare))
      continue;
    if (best == buffers_.end() || size < best->numel()) best = each;
  }
  if (best != buffers_.end()) {
    at::Tensor buffer = std::move(*best);
    buffers_.erase(best);
    return buffer;
  }
  // What does not fit now will hardly fit later.
  buffers_.clear();
  const at::NoGradGuard no_grad;
  const at::Tensor made =
      at::empty({wanted + static_cast<std::int64_t>(kAlignment)}, at::kByte);
  prefer_huge_pages(made);
  const auto address = reinterpret_cast<std::uintptr_t>(made.const_data_ptr());
  const auto skipped = static_cast<std::int64_t>(
      (kAlignment - address % kAlignment) % kAlignment);
  return made.narrow(0, skipped, wanted);
}

void BufferPool::give_back(at::Tensor buffer) {
  if (!buffer.defined() || buffer.storage().use_count() > 1) return;
  buffers_.push_back(std::move(buffer));
}

void BufferPool::trim(std::uint64_t num_bytes) {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : buffers_) sum += num_bytes_of(buffer);
  while (sum > num_bytes && !buffers_.empty()) {
    sum -= num_bytes_of(buffers_.front());
    buffers_.erase(buffers_.begin());
  }
}

bool has_changed_files(
    const FetchedUnit& unit,
    const std::vector<const OffloadedTensor*>& tensors) {
  if (!unit.is_mapped) return false;
  bool has_changed = false;
  for (const OffloadedTensor* tensor : tensors) {
    for_each_file(*tensor, [&](const InputFile& file) {
      has_changed = has_changed || file.has_changed();
    });
  }
  return has_changed;
}

std::uint64_t buffer_bytes(const std::vector<const OffloadedTensor*>& tensors) {
  std::uint64_t sum = 0;
  for (const OffloadedTensor* tensor : tensors)
    sum += aligned(stored_bytes(*tensor));
  return sum;
}

std::vector<FetchedUnit> fetch(const std::vector<FetchRequest>& requests) {
  const at::NoGradGuard no_grad;
  std::vector<FetchedUnit> units(requests.size());
  std::vector<BoxToRead> boxes;
  for (const FetchRequest& request : requests) {
    for (const OffloadedTensor* tensor : request.tensors)
      for_each_file(*tensor, &require_as_before);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::uint64_t offset = 0;
    for (const OffloadedTensor* tensor : requests[i].tensors) {
      at::Tensor value = tensor->source.host;
      if (const StoredBox* const box = mappable_box(*tensor)) {
        value = map_value(*box, *tensor);
        units[i].is_mapped = units[i].is_mapped || value.defined();
      }
      if (tensor->source.stored != nullptr && !value.defined()) {
        value = value_in(requests[i].buffer, offset, *tensor);
        offset += aligned(stored_bytes(*tensor));
        const StoredTensor& stored = *tensor->source.stored;
        if (value.numel() > 0) {
          boxes.push_back(
              {&stored,
               {safetensors::Shape(stored.shape.size(), 0), stored.shape},
               bytes_of(value)});
        }
      }
      units[i].values.push_back(std::move(value));
    }
  }
  read_boxes(boxes);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool uses_buffer = false;
    for (std::size_t k = 0; k < units[i].values.size(); ++k) {
      at::Tensor& value = units[i].values[k];
      const OffloadedTensor& tensor = *requests[i].tensors[k];
      value = finished(tensor, std::move(value));
      uses_buffer = uses_buffer ||
          (requests[i].buffer.defined() &&
           value.storage().is_alias_of(requests[i].buffer.storage()));
    }
    if (uses_buffer) units[i].buffer = requests[i].buffer;
  }
  return units;
}

}  // namespace accelerate::detail
