#include <accelerate/load_checkpoint.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/module_tensors.h>
#include <accelerate/objects.h>
#include <accelerate/weights.h>

#include "base/available_memory.h"
#include "base/progress/byte_progress.h"
#include "base/text.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/checkpoint_plan.h"
#include "big_model/offload/file_mapping.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "params/model_modules.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;
using detail::format;
using detail::StoredTensor;
using detail::StoredTensors;
using detail::TensorInCheckpoint;
using detail::TensorToLoad;

// Bytes on their way at a time, unless a single tensor is larger.
constexpr std::size_t kMostBytesOnTheWay = 32U << 20U;

/// Reads tensors to the CPU, in groups, or receives them from the rank that
/// does.
class CheckpointSource {
 public:
  explicit CheckpointSource(std::optional<Group> group)
      : group_(std::move(group)) {}

  [[nodiscard]] bool reads() const { return !group_ || group_->rank() == 0; }

  /// The tensors of the checkpoint. If it cannot be opened, all ranks throw.
  std::vector<TensorInCheckpoint> open(
      const fs::path& path,
      const LoadModelOptions& options) {
    std::vector<TensorInCheckpoint> tensors;
    std::string error;
    if (reads()) {
      try {
        saved_ = detail::open_renamed(path, options);
        tensors = detail::tensors_in_order(saved_);
      } catch (const CheckpointError& failed) {
        if (!group_) throw;
        error = failed.what();
      }
    }
    if (!group_) return tensors;
    using Described = std::tuple<std::string, int, std::vector<std::int64_t>>;
    std::vector<Described> described;
    for (const TensorInCheckpoint& each : tensors)
      described.emplace_back(
          each.name, static_cast<int>(each.dtype), each.shape);
    std::tie(error, described) =
        broadcast_object(std::tuple(error, described), *group_);
    if (!error.empty()) throw CheckpointError(error);
    tensors.clear();
    for (const auto& [name, dtype, shape] : described)
      tensors.push_back({name, static_cast<c10::ScalarType>(dtype), shape});
    return tensors;
  }

  /// Has a bar show the bytes that are read from now on, if one is wanted.
  void show(
      std::uint64_t num_bytes,
      const std::optional<ProgressOptions>& options) const {
    if (!options || !reads()) return;
    detail::show_reads(
        saved_, std::make_shared<detail::ByteProgress>(num_bytes, *options));
  }

  /// Does what may fail on one rank only. If it fails, all ranks throw.
  template <class Body>
  void together(Body&& body) const {
    if (!group_) return body();
    std::exception_ptr own;
    std::string text;
    try {
      body();
    } catch (const std::exception& failed) {
      own = std::current_exception();
      text = failed.what();
    }
    const std::vector<std::string> all =
        gather_object(std::vector<std::string>{text}, *group_);
    if (own) std::rethrow_exception(own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty()) continue;
      throw CheckpointError(format(
          "[big_model] nothing was loaded, since rank {} of the group failed: "
          "{}",
          rank,
          all[rank]));
    }
  }

  /// Null on ranks that do not read.
  [[nodiscard]] const StoredTensor* find(const std::string& name) const {
    const auto found = saved_.find(name);
    return found == saved_.end() ? nullptr : &found->second;
  }

  /// Fills `values`, on the CPU, with the tensors of `items`, which are the same
  /// on all ranks. If they cannot be read, all ranks throw.
  void read(
      const std::vector<const TensorToLoad*>& items,
      const std::vector<at::Tensor>& values) const {
    std::string error;
    if (reads()) {
      std::vector<detail::BoxToRead> boxes;
      for (std::size_t i = 0; i < items.size(); ++i) {
        const StoredTensor& stored = *items[i]->stored;
        boxes.push_back(
            {&stored,
             {safetensors::Shape(stored.shape.size(), 0), stored.shape},
             detail::bytes_of(values[i])});
      }
      try {
        detail::read_boxes(boxes);
      } catch (const std::exception& failed) {
        if (!group_) throw;
        error = failed.what();
      }
    }
    if (!group_) return;
    error = broadcast_object(error, *group_);
    if (!error.empty()) throw CheckpointError(error);
    for (const at::Tensor& value : values)
      if (value.numel() > 0) group_->broadcast(value, 0);
  }

 private:
  std::optional<Group> group_;
  StoredTensors saved_;
};

/// Puts tensors where a plan says, all of them or none: the module's tensors
/// change after everything was read and written.
class CheckpointLoader {
 public:
  CheckpointLoader(
      const CheckpointSource& source,
      const LoadCheckpointOptions& options)
      : source_(source),
        sends_(options.broadcast_from_rank0),
        can_map_(options.map_weights && !sends_),
        folder_(options.offload_folder),
        replaces_(!options.strict_offload_folder),
        progress_(options.progress) {}

  void load(const std::vector<TensorToLoad>& plan) {
    // Ranks that send each other tensors have them in the same order.
    overwrites_ = !sends_ && !has_room_for_copies(plan);
    source_.together([&] { require_space_for(plan); });
    std::vector<const TensorToLoad*> to_read, to_overwrite;
    std::uint64_t num_read = 0;
    for (const TensorToLoad& item : plan) {
      if (!(overwrites_ && is_ready(item)) && map(item)) continue;
      (overwrites_ && is_ready(item) ? to_overwrite : to_read).push_back(&item);
      num_read += num_bytes(item);
    }
    source_.show(num_read, progress_);
    for (const TensorToLoad* item : to_read) add(*item);
    flush();
    source_.together([&] {
      if (writer_) writer_->commit();
    });
    overwrite(to_overwrite);
    for (const auto& [item, value] : values_) put(*item, value);
    for (const TensorToLoad& item : plan) empty(item);
  }

 private:
  static std::size_t num_bytes(const TensorToLoad& item) {
    std::size_t count = c10::elementSize(item.file_dtype);
    for (const std::int64_t size : item.shape)
      count *= static_cast<std::size_t>(size);
    return count;
  }

  void require_space_for(const std::vector<TensorToLoad>& plan) const {
    std::vector<std::pair<std::string, std::uint64_t>> sizes;
    for (const TensorToLoad& item : plan)
      if (item.to_disk) sizes.emplace_back(item.name, num_bytes(item));
    if (!sizes.empty()) detail::require_space(folder_, sizes);
  }

  // Values of tensors that have memory already are read beside it.
  static bool has_room_for_copies(const std::vector<TensorToLoad>& plan) {
    std::uint64_t sum = 0;
    for (const TensorToLoad& item : plan)
      if (is_ready(item)) sum += num_bytes(item);
    const auto available = detail::available_memory();
    return sum == 0 || !available || sum + kMostBytesOnTheWay < *available;
  }

  // Uses the file's own pages, if the tensor stays as the file has it.
  bool map(const TensorToLoad& item) {
    if (!can_map_ || item.stored == nullptr || !item.stays ||
        !item.tensor.is_meta() || !item.device.is_cpu() ||
        item.dtype != item.file_dtype || item.stored->boxes.size() != 1) {
      return false;
    }
    const detail::StoredBox& box = item.stored->boxes.front();
    const std::size_t alignment = c10::elementSize(item.dtype);
    if (box.strides || box.offset % alignment != 0 ||
        box.file->path().extension() != ".safetensors" ||
        box.file->record() != nullptr) {
      return false;
    }
    const auto [place, is_new] = mappings_.try_emplace(box.file->path());
    auto& mapping = place->second;
    if (is_new) mapping = detail::FileMapping::open_protected(box.file->path());
    // What others could shorten or change is read.
    if (!mapping) return false;
    values_.emplace_back(
        &item, mapping->tensor(box.offset, item.dtype, item.shape));
    return true;
  }

  // Whether its memory can hold the file's bytes as they are.
  static bool is_ready(const TensorToLoad& item) {
    return item.stays && item.tensor.is_cpu() && item.device.is_cpu() &&
        item.dtype == item.file_dtype &&
        item.tensor.scalar_type() == item.dtype && item.tensor.is_contiguous();
  }

  // Whether what is read is what stays.
  static bool is_final(const TensorToLoad& item) {
    return !item.to_disk && item.stays && item.device.is_cpu() &&
        item.dtype == item.file_dtype;
  }

  void add(const TensorToLoad& item) {
    // What stays as it is read takes no memory on its way: all of it is read at
    // once. Where that is may differ between ranks.
    const std::size_t bytes = is_final(item) && !sends_ ? 0 : num_bytes(item);
    if (bytes_on_the_way_ + bytes > kMostBytesOnTheWay) flush();
    bytes_on_the_way_ += bytes;
    waiting_.push_back(&item);
  }

  void flush() {
    std::vector<at::Tensor> values;
    for (const TensorToLoad* item : waiting_) {
      values.push_back(
          at::empty(item->shape, at::TensorOptions().dtype(item->file_dtype)));
      if (values.back().nbytes() > 0) detail::prefer_huge_pages(values.back());
    }
    source_.read(waiting_, values);
    source_.together([&] {
      for (std::size_t i = 0; i < waiting_.size(); ++i)
        take(*waiting_[i], values[i]);
    });
    waiting_.clear();
    bytes_on_the_way_ = 0;
  }

  void take(const TensorToLoad& item, const at::Tensor& value) {
    if (item.to_disk) {
      if (!writer_)
        writer_.emplace(detail::make_file_system(), folder_, replaces_);
      writer_->put(
          item.name,
          detail::dtype_name(item.file_dtype),
          detail::to_write(item.name, value));
    }
    if (!item.stays) return;
    const auto options = value.options().dtype(item.dtype).device(item.device);
    values_.emplace_back(&item, value.to(options));
  }

  void overwrite(const std::vector<const TensorToLoad*>& items) {
    if (items.empty()) return;
    std::vector<at::Tensor> memory;
    for (const TensorToLoad* item : items)
      memory.push_back(item->tensor.detach());
    try {
      source_.read(items, memory);
    } catch (const CheckpointError& error) {
      throw CheckpointError(explain_overwriting(error, *items.front()));
    } catch (const Error& error) {
      throw Error(explain_overwriting(error, *items.front()));
    }
  }

  static std::string explain_overwriting(
      const std::exception& error,
      const TensorToLoad& first) {
    return format(
        "{}; there was no memory for a second copy of the model, so values "
        "were read over those that it had, from {} on: load it again before it "
        "is used",
        error.what(),
        first.name);
  }

  static void put(const TensorToLoad& item, const at::Tensor& value) {
    const bool fits = item.tensor.device() == item.device &&
        item.tensor.scalar_type() == item.dtype;
    if (fits) {
      item.tensor.detach().copy_(value);
    } else {
      detail::replace_in_place(item.tensor, value);
    }
  }

  static void empty(const TensorToLoad& item) {
    if (item.stays || !item.tensor.defined()) return;
    detail::replace_in_place(
        item.tensor,
        at::empty(
            item.shape,
            at::TensorOptions().dtype(item.dtype).device(at::kMeta)));
  }

  const CheckpointSource& source_;
  bool sends_;
  bool can_map_;
  fs::path folder_;
  bool replaces_;
  std::optional<ProgressOptions> progress_;
  /// Read over the module's values, since there is no memory for others.
  bool overwrites_ = false;
  std::map<fs::path, std::shared_ptr<detail::FileMapping>> mappings_;
  std::optional<detail::OffloadFolderWriter> writer_;
  std::vector<const TensorToLoad*> waiting_;
  /// What the module's tensors get in the end.
  std::vector<std::pair<const TensorToLoad*, at::Tensor>> values_;
  std::size_t bytes_on_the_way_ = 0;
};

void require_usable(const LoadCheckpointOptions& options) {
  if (!options.full_state_dict) {
    throw ConfigError(
        "[big_model] full_state_dict is false, but only a prepared model has "
        "shards: load into it with Accelerator::load_model()");
  }
  if (options.broadcast_from_rank0 && !options.group) {
    throw ConfigError(
        "[big_model] broadcast_from_rank0 needs the ranks that load together: "
        "give their group, such as accelerator.world().group()");
  }
  if (options.dtype && !at::isFloatingType(*options.dtype)) {
    throw ConfigError(format(
        "[big_model] weights cannot be loaded as {}: dtype is a floating-point "
        "one",
        c10::toString(*options.dtype)));
  }
}

}  // namespace

void load_checkpoint_in_model(
    torch::nn::Module& model,
    const fs::path& checkpoint,
    const LoadCheckpointOptions& options) {
  require_usable(options);
  const at::NoGradGuard no_grad;
  CheckpointSource source(
      options.broadcast_from_rank0 ? options.group : std::nullopt);
  LoadModelOptions reading;
  reading.rename = options.rename;
  const std::vector<TensorInCheckpoint> saved =
      source.open(checkpoint, reading);
  if (!options.device_map.empty()) {
    static_cast<void>(check_tied_parameters_on_same_device(
        detail::tied_parameters(detail::module_tree(model)),
        options.device_map));
  }
  std::vector<TensorToLoad> plan =
      detail::plan_loading(model, saved, checkpoint.string(), options);
  for (TensorToLoad& item : plan) item.stored = source.find(item.name);
  CheckpointLoader(source, options).load(plan);
}

}  // namespace accelerate
