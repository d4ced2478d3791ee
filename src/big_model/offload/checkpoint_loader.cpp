#include "big_model/offload/checkpoint_loader.h"

#include <algorithm>
#include <exception>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Maximum bytes in transit, unless a row, or a tensor on its way to disk, is
// larger.
constexpr std::uint64_t kMostBytesOnTheWay = 32U << 20U;
// Where values begin in the buffer.
constexpr std::uint64_t kTensorAlignment = 64;

std::uint64_t bytes_of_rows(const TensorToLoad& item, std::int64_t count) {
  std::uint64_t bytes = c10::elementSize(item.file_dtype);
  for (std::size_t i = 0; i < item.shape.size(); ++i) {
    const std::int64_t size = i == 0 ? count : item.shape[i];
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

std::int64_t num_rows(const TensorToLoad& item) {
  return item.shape.empty() ? 1 : item.shape.front();
}

std::uint64_t num_bytes(const TensorToLoad& item) {
  return bytes_of_rows(item, num_rows(item));
}

at::Tensor rows_of(const at::Tensor& tensor, const TensorRows& rows) {
  return tensor.dim() == 0 ? tensor : tensor.narrow(0, rows.begin, rows.count);
}

bool has_last_row(const TensorRows& rows) {
  return rows.begin + rows.count >= num_rows(*rows.item);
}

// Whether the module's tensor keeps its memory. Expanded views cannot be written
// to.
bool is_filled_in_place(const TensorToLoad& item) {
  return item.tensor.device() == item.device &&
      item.tensor.scalar_type() == item.dtype &&
      at::has_internal_overlap(item.tensor) != at::MemOverlap::Yes;
}

// Whether it gets new memory in place of its own.
bool is_replaced(const TensorToLoad& item) {
  return item.stays && !item.tensor.is_meta() && !is_filled_in_place(item);
}

std::string explain_overwriting(
    const std::exception& error,
    const TensorToLoad& first) {
  return format(
      "{}; values of the model were already overwritten, from {} on: load it "
      "again before using it",
      error.what(),
      first.name);
}

}  // namespace

CheckpointLoader::CheckpointLoader(
    const CheckpointTensorReader& reader,
    const LoadCheckpointOptions& options)
    : reader_(reader),
      maps_(options.map_weights && !reader.sends()),
      folder_(options.offload_folder),
      replaces_(!options.strict_offload_folder),
      progress_(options.progress) {}

void CheckpointLoader::load(const std::vector<TensorToLoad>& plan) {
  reader_.together([&] { require_space_for(plan); });
  const std::vector<Need> needs = needs_of(plan);
  std::vector<const TensorToLoad*> to_read, to_overwrite;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (needs[i] == Need::nothing) continue;
    (needs[i] == Need::memory ? to_read : to_overwrite).push_back(&plan[i]);
    sum += num_bytes(plan[i]);
  }
  reader_.show(sum, progress_);
  for (const RowGroup& group : groups_of(to_read)) load_group(group);
  reader_.together([&] {
    if (writer_) writer_->commit();
  });
  overwrite(to_overwrite);
  for (const auto& [item, value] : values_) put(*item, value);
  for (const TensorToLoad& item : plan) empty(item);
}

// Ranks that send each other tensors read them in the same order, whatever
// their own modules hold.
std::vector<CheckpointLoader::Need> CheckpointLoader::needs_of(
    const std::vector<TensorToLoad>& plan) {
  std::vector<std::uint8_t> own;
  for (const TensorToLoad& item : plan) {
    Need need = Need::nothing;
    if (item.to_disk) {
      need = Need::memory;
    } else if (item.stays && !map(item)) {
      need = item.tensor.is_meta() ? Need::memory : Need::overwriting;
    }
    own.push_back(static_cast<std::uint8_t>(need));
  }
  std::vector<Need> needs;
  for (const std::uint8_t need : reader_.greatest(own))
    needs.push_back(static_cast<Need>(need));
  return needs;
}

void CheckpointLoader::require_space_for(
    const std::vector<TensorToLoad>& plan) const {
  std::vector<std::pair<std::string, std::uint64_t>> sizes;
  for (const TensorToLoad& item : plan)
    if (item.to_disk) sizes.emplace_back(item.name, num_bytes(item));
  if (!sizes.empty()) require_space(folder_, sizes);
}

// Uses the file's own pages, if the tensor stays as the file has it.
bool CheckpointLoader::map(const TensorToLoad& item) {
  if (!maps_ || item.stored == nullptr || !item.tensor.is_meta() ||
      !item.device.is_cpu() || item.dtype != item.file_dtype ||
      item.stored->boxes.size() != 1) {
    return false;
  }
  const StoredBox& box = item.stored->boxes.front();
  const std::size_t alignment = c10::elementSize(item.dtype);
  if (box.strides || box.offset % alignment != 0 ||
      box.file->path().extension() != ".safetensors" ||
      box.file->record() != nullptr) {
    return false;
  }
  const auto [place, is_new] = mappings_.try_emplace(box.file->path());
  auto& mapping = place->second;
  if (is_new) mapping = FileMapping::open_protected(box.file->path());
  // A file that others could shorten or change is read instead.
  if (!mapping) return false;
  values_.emplace_back(
      &item, mapping->tensor(box.offset, item.dtype, item.shape));
  return true;
}

bool CheckpointLoader::is_read_in_place(const TensorToLoad& item) const {
  if (item.to_disk || !item.stays || !item.device.is_cpu() ||
      item.dtype != item.file_dtype) {
    return false;
  }
  if (item.tensor.is_meta() || is_replaced(item)) return true;
  return !buffers_all_ && item.tensor.is_contiguous();
}

// Tensors read in place need no buffer: all are read at once, unless they
// replace other memory, which is freed group by group. Ranks that send each
// other tensors have the same groups, wherever the tensors go on each of them.
std::vector<CheckpointLoader::RowGroup> CheckpointLoader::groups_of(
    const std::vector<const TensorToLoad*>& items) const {
  std::vector<RowGroup> groups;
  std::uint64_t sum = 0;
  const auto add = [&](const TensorRows& rows, std::uint64_t bytes) {
    if (groups.empty() || sum + bytes > kMostBytesOnTheWay) {
      groups.emplace_back();
      sum = 0;
    }
    sum += bytes;
    groups.back().push_back(rows);
  };
  for (const TensorToLoad* item : items) {
    const bool is_on_the_way =
        reader_.sends() || !is_read_in_place(*item) || is_replaced(*item);
    const std::uint64_t bytes = num_bytes(*item);
    // Tensors with elements smaller than a byte are not divided.
    const bool is_whole = !is_on_the_way || item->to_disk ||
        bytes <= kMostBytesOnTheWay ||
        item->file_dtype == at::ScalarType::Float4_e2m1fn_x2;
    const std::int64_t step = is_whole
        ? num_rows(*item)
        : std::max<std::int64_t>(
              1,
              static_cast<std::int64_t>(
                  kMostBytesOnTheWay / bytes_of_rows(*item, 1)));
    if (num_rows(*item) == 0) add({item, 0, 0}, 0);
    for (std::int64_t begin = 0; begin < num_rows(*item); begin += step) {
      const std::int64_t count = std::min(step, num_rows(*item) - begin);
      add({item, begin, count},
          is_on_the_way ? bytes_of_rows(*item, count) : 0);
    }
  }
  return groups;
}

void CheckpointLoader::load_group(const RowGroup& group) {
  std::vector<at::Tensor> values;
  reader_.together([&] { values = prepare(group); });
  reader_.read(group, values);
  reader_.together([&] {
    for (std::size_t i = 0; i < group.size(); ++i) take(group[i], values[i]);
  });
}

// Everything that can be checked has been, so only a disk or rank that fails
// meanwhile leaves some of the values replaced. Values that fit into the buffer
// are replaced once all of them have arrived.
void CheckpointLoader::overwrite(
    const std::vector<const TensorToLoad*>& items) {
  if (items.empty()) return;
  std::uint64_t sum = 0;
  for (const TensorToLoad* item : items) sum += num_bytes(*item);
  buffers_all_ = sum <= kMostBytesOnTheWay;
  if (!buffers_all_) reader_.verify(items);
  try {
    for (const RowGroup& group : groups_of(items)) load_group(group);
  } catch (const CheckpointError& error) {
    if (buffers_all_) throw;
    throw CheckpointError(explain_overwriting(error, *items.front()));
  } catch (const std::exception& error) {
    if (buffers_all_) throw;
    throw Error(explain_overwriting(error, *items.front()));
  }
}

// Memory into which rows will be read.
std::vector<at::Tensor> CheckpointLoader::prepare(const RowGroup& group) {
  std::vector<std::uint64_t> offsets;
  std::uint64_t size = 0;
  for (const TensorRows& rows : group) {
    offsets.push_back(size);
    if (is_read_in_place(*rows.item)) continue;
    size += bytes_of_rows(*rows.item, rows.count);
    size = (size + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  if (size > 0 &&
      (!buffer_.defined() ||
       buffer_.nbytes() < static_cast<std::size_t>(size))) {
    buffer_.reset();
    buffer_ = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
    prefer_huge_pages(buffer_);
  }
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const TensorToLoad& item = *group[i].item;
    if (item.stays) {
      const at::Tensor target = target_of(item);
      if (is_read_in_place(item)) {
        values.push_back(rows_of(target, group[i]));
        continue;
      }
    }
    std::vector<std::int64_t> shape = item.shape;
    if (!shape.empty()) shape.front() = group[i].count;
    const auto bytes =
        static_cast<std::int64_t>(bytes_of_rows(item, group[i].count));
    values.push_back(
        buffer_.defined()
            ? buffer_.narrow(0, static_cast<std::int64_t>(offsets[i]), bytes)
                  .view(item.file_dtype)
                  .view(shape)
            : at::empty(shape, at::TensorOptions().dtype(item.file_dtype)));
  }
  return values;
}

// The memory that the tensor has when it is loaded.
at::Tensor CheckpointLoader::target_of(const TensorToLoad& item) {
  if (!item.tensor.is_meta() && is_filled_in_place(item))
    return item.tensor.detach();
  at::Tensor& target = targets_[&item];
  if (!target.defined()) {
    target = at::empty(
        item.shape, at::TensorOptions().dtype(item.dtype).device(item.device));
    if (target.nbytes() > 0) prefer_huge_pages(target);
  }
  return target;
}

void CheckpointLoader::take(const TensorRows& rows, const at::Tensor& value) {
  const TensorToLoad& item = *rows.item;
  if (item.to_disk) {
    if (!writer_) writer_.emplace(make_file_system(), folder_, replaces_);
    writer_->put(
        item.name, dtype_name(item.file_dtype), to_write(item.name, value));
  }
  if (!item.stays) return;
  const at::Tensor target = target_of(item);
  if (!is_read_in_place(item)) rows_of(target, rows).copy_(value);
  if (!has_last_row(rows)) return;
  targets_.erase(&item);
  if (item.tensor.is_meta()) {
    values_.emplace_back(&item, target);
  } else if (is_replaced(item)) {
    replace_in_place(item.tensor, target);
  }
}

void CheckpointLoader::put(const TensorToLoad& item, const at::Tensor& value) {
  replace_in_place(item.tensor, value);
}

void CheckpointLoader::empty(const TensorToLoad& item) {
  if (item.stays || !item.tensor.defined()) return;
  replace_in_place(
      item.tensor,
      at::empty(
          item.shape, at::TensorOptions().dtype(item.dtype).device(at::kMeta)));
}

}  // namespace accelerate::detail
