#include "big_model/tiers/units/weight_units.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/tiers/units/mapped_units.h"
#include "big_model/tiers/units/weight_files.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Alignment of the beginning of a tensor.
constexpr std::uint64_t kLeastAlignment = 16;

std::uint64_t aligned(std::uint64_t num_bytes) {
  return (num_bytes + kWeightAlignment - 1) / kWeightAlignment *
      kWeightAlignment;
}

// Tensors with several boxes sort first.
std::pair<const InputFile*, std::uint64_t> place_in_file(
    const OffloadedTensor& tensor) {
  const std::vector<StoredBox>& boxes = tensor.source.stored->boxes;
  if (boxes.size() != 1) return {};
  return {boxes.front().file.get(), boxes.front().offset};
}

// A tensor's offset within a page of its buffer: the same as in its file where
// possible, so that direct reads need no copy.
std::uint64_t place_in_page(const OffloadedTensor& tensor) {
  if (tensor.source.stored == nullptr) return 0;
  const StoredTensor& stored = *tensor.source.stored;
  if (stored.boxes.size() != 1) return 0;
  const std::uint64_t place = stored.boxes.front().offset % kWeightAlignment;
  return place % kLeastAlignment == 0 ? place : 0;
}

// Whether `after` follows `before` directly in the file.
bool follows(const OffloadedTensor& before, const OffloadedTensor& after) {
  const StoredTensor& a = *before.source.stored;
  const StoredTensor& b = *after.source.stored;
  return a.boxes.size() == 1 && b.boxes.size() == 1 &&
      a.boxes.front().file == b.boxes.front().file &&
      a.boxes.front().offset + stored_bytes(before) == b.boxes.front().offset &&
      b.boxes.front().offset % kLeastAlignment == 0 &&
      place_in_page(before) == a.boxes.front().offset % kWeightAlignment;
}

struct BufferLayout {
  /// Offsets of the tensors that come from files, in the order of the request.
  std::vector<std::uint64_t> offsets;
  std::uint64_t num_bytes = 0;
};

// Neighbours in a file are also neighbours in the buffer and are read as one.
BufferLayout layout_of(const std::vector<const OffloadedTensor*>& tensors) {
  BufferLayout layout{std::vector<std::uint64_t>(tensors.size(), 0), 0};
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]->source.stored != nullptr) order.push_back(i);
  std::ranges::stable_sort(order, [&](auto a, auto b) {
    return place_in_file(*tensors[a]) < place_in_file(*tensors[b]);
  });
  const OffloadedTensor* last = nullptr;
  for (const std::size_t i : order) {
    const OffloadedTensor& tensor = *tensors[i];
    if (last == nullptr || !follows(*last, tensor))
      layout.num_bytes = aligned(layout.num_bytes) + place_in_page(tensor);
    layout.offsets[i] = layout.num_bytes;
    layout.num_bytes += stored_bytes(tensor);
    last = &tensor;
  }
  layout.num_bytes = aligned(layout.num_bytes);
  return layout;
}

// If a file with checksums has changed, has it verified again when it is read.
// Returns whether it has changed.
bool verify_again_if_changed(const InputFile& file) {
  const bool has_changed = file.record() != nullptr && file.has_changed();
  if (has_changed) file.accept_changes();
  return has_changed;
}

// Reads the boxes again, with checksums, if a file with checksums changed
// during the read.
void read_again_if_changed(const std::vector<BoxToRead>& boxes) {
  std::set<const InputFile*> files;
  for (const BoxToRead& box : boxes)
    for (const StoredBox& stored : box.tensor->boxes)
      files.insert(stored.file.get());
  bool has_changed = false;
  for (const InputFile* file : files)
    has_changed = verify_again_if_changed(*file) || has_changed;
  if (has_changed) read_boxes(boxes);
}

[[noreturn]] void refuse_changed(const std::string& file) {
  throw CheckpointError(format(
      "[big_model] {} was changed while a model reads its weights from it: "
      "restore the file and load the model again",
      file));
}

// A truncated file has no bytes to compare.
void require_length(const StoredTensor& stored) {
  for (const StoredBox& box : stored.boxes) {
    const std::uint64_t size =
        safetensors::bytes_of(stored.dtype, box.box.size).value_or(0);
    if (box.strides || box.file->record() != nullptr) continue;
    const std::int64_t there = box.file->version_now().size;
    if (there >= 0 && static_cast<std::uint64_t>(there) < box.offset + size)
      refuse_changed(box.file->path().string());
  }
}

using Versions = FirstContents::Versions;

// Throws if a tensor in files without checksums differs from what was read
// first. `before` holds the files' versions before the value was read.
void require_first_contents(
    const OffloadedTensor& tensor,
    const at::Tensor& value,
    const Versions& before) {
  bool is_compared = false;
  bool was_written_to = false;
  std::string name;
  for_each_file(tensor, [&](const InputFile& file) {
    is_compared = is_compared || file.record() == nullptr;
    was_written_to = was_written_to || file.was_written_to();
    name = file.path().string();
  });
  if (!is_compared) return;
  const bool is_first = tensor.source.first->matches(
      value, before, versions_of(tensor), was_written_to);
  if (!is_first) refuse_changed(name);
}

// Views the part of the read buffer that receives a tensor's value.
at::Tensor value_in(
    const at::Tensor& buffer,
    std::uint64_t offset,
    const OffloadedTensor& tensor) {
  const StoredTensor& stored = *tensor.source.stored;
  const auto dtype = torch_dtype(stored.dtype);
  if (!dtype) {
    throw CheckpointError(format(
        "[big_model] {} has dtype {} in its file, which LibTorch lacks",
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

// Converts to the dtype and strides of the module's tensor, which may not be
// contiguous.
at::Tensor converted(const OffloadedTensor& tensor, at::Tensor value) {
  const at::ScalarType dtype = tensor.tensor.scalar_type();
  if (value.scalar_type() != dtype) value = value.to(dtype);
  if (value.strides() == tensor.tensor.strides()) return value;
  at::Tensor laid_out = at::empty_strided(
      tensor.tensor.sizes(), tensor.tensor.strides(), value.options());
  laid_out.copy_(value);
  return laid_out;
}

// Locates values and appends the boxes that must be read. Returns the versions
// of each tensor's files.
std::vector<Versions> place_values(
    const FetchRequest& request,
    FetchedUnit& unit,
    std::vector<BoxToRead>& boxes) {
  std::vector<Versions> versions;
  const BufferLayout layout = layout_of(request.tensors);
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const OffloadedTensor* const tensor = request.tensors[i];
    // Must come before the checks of the file.
    const MappableBox mappable = mappable_box(*tensor);
    for_each_file(*tensor, &verify_again_if_changed);
    versions.push_back(versions_of(*tensor));
    at::Tensor value = tensor->source.host;
    if (!value.defined()) value = map_value(mappable, *tensor);
    const bool is_mapped = value.defined() && tensor->source.stored != nullptr;
    if (is_mapped) unit.mapped_bytes += stored_bytes(*tensor);
    if (!value.defined()) {
      value = value_in(request.buffer, layout.offsets[i], *tensor);
      const StoredTensor& stored = *tensor->source.stored;
      require_length(stored);
      if (value.numel() > 0) {
        boxes.push_back(
            {&stored,
             {safetensors::Shape(stored.shape.size(), 0), stored.shape},
             bytes_of(value)});
      }
    }
    unit.values.push_back(std::move(value));
  }
  return versions;
}

// Converts values and starts copying those that are needed on a device.
void finish_values(
    const FetchRequest& request,
    const std::vector<Versions>& versions,
    FetchedUnit& unit,
    DeviceCopies& copies) {
  std::optional<c10::Device> copied_to;
  bool uses_buffer = false;
  for (std::size_t i = 0; i < unit.values.size(); ++i) {
    at::Tensor& value = unit.values[i];
    const OffloadedTensor& tensor = *request.tensors[i];
    if (tensor.source.stored != nullptr)
      require_first_contents(tensor, value, versions[i]);
    value = converted(tensor, std::move(value));
    if (value.device() != tensor.device) {
      copied_to = tensor.device;
      value = copies.copy(value, tensor.device);
    }
    uses_buffer = uses_buffer ||
        (request.buffer.defined() &&
         value.storage().is_alias_of(request.buffer.storage()));
  }
  if (copied_to) unit.arrival = copies.arrival(*copied_to);
  if (uses_buffer) unit.buffer = request.buffer;
}

}  // namespace

bool is_ready_on_host(const OffloadedTensor& tensor) {
  const at::Tensor& host = tensor.source.host;
  return host.defined() && host.device() == tensor.device &&
      host.scalar_type() == tensor.tensor.scalar_type() &&
      host.strides() == tensor.tensor.strides();
}

at::Tensor on_host(const at::Tensor& value, c10::Device device) {
  const at::Tensor host = value.detach().to(at::kCPU);
  if (device.is_cpu() || host.is_pinned()) return host;
  try {
    return host.pin_memory();
  } catch (const std::exception&) {
    return host;
  }
}

std::uint64_t num_bytes_of(const at::Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel()) * tensor.itemsize();
}

std::uint64_t buffer_bytes(const std::vector<const OffloadedTensor*>& tensors) {
  return layout_of(tensors).num_bytes;
}

UnitsFetch::UnitsFetch(std::vector<FetchRequest> requests)
    : requests_(std::move(requests)), units_(requests_.size()) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    versions_.push_back(place_values(requests_[i], units_[i], boxes_));
}

std::vector<FetchedUnit> UnitsFetch::finish(DeviceCopies& copies) {
  const at::NoGradGuard no_grad;
  read_again_if_changed(boxes_);
  for (std::size_t i = 0; i < requests_.size(); ++i)
    finish_values(requests_[i], versions_[i], units_[i], copies);
  return std::move(units_);
}

std::vector<FetchedUnit> fetch(
    std::vector<FetchRequest> requests,
    DeviceCopies& copies) {
  UnitsFetch fetch(std::move(requests));
  if (!fetch.boxes().empty()) read_boxes(fetch.boxes());
  return fetch.finish(copies);
}

at::Tensor fetch_now(const OffloadedTensor& tensor) {
  FetchRequest request{{&tensor}, {}};
  const auto num_bytes =
      static_cast<std::int64_t>(buffer_bytes(request.tensors));
  if (num_bytes > 0) request.buffer = at::empty({num_bytes}, at::kByte);
  DeviceCopies copies;
  const FetchedUnit fetched = fetch({request}, copies).front();
  if (fetched.arrival) fetched.arrival->synchronize();
  return fetched.values.front();
}

}  // namespace accelerate::detail
