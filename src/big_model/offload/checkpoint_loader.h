#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/load_checkpoint.h>
#include <accelerate/progress.h>

#include "big_model/offload/checkpoint_plan.h"
#include "big_model/offload/checkpoint_tensor_reader.h"
#include "big_model/offload/file_mapping.h"
#include "big_model/offload/offload_folder.h"

namespace accelerate::detail {

/// Puts tensors where a plan says. Memory in use is that of the tensors that
/// stay, and one buffer: the values of tensors with memory are replaced one
/// after another, once everything else is read and written.
class CheckpointLoader {
 public:
  /// `reader` must outlive this object.
  CheckpointLoader(
      const CheckpointTensorReader& reader,
      const LoadCheckpointOptions& options);

  /// Loads all tensors of the plan. Throws load_checkpoint_in_model()'s errors.
  void load(const std::vector<TensorToLoad>& plan);

 private:
  using RowGroup = std::vector<TensorRows>;
  enum class Need : std::uint8_t { nothing, memory, overwriting };

  [[nodiscard]] std::vector<Need> needs_of(
      const std::vector<TensorToLoad>& plan);
  void require_space_for(const std::vector<TensorToLoad>& plan) const;
  bool map(const TensorToLoad& item);
  /// Whether the bytes are read to where they stay.
  [[nodiscard]] bool is_read_in_place(const TensorToLoad& item) const;
  [[nodiscard]] std::vector<RowGroup> groups_of(
      const std::vector<const TensorToLoad*>& items) const;
  void load_group(const RowGroup& group);
  void overwrite(const std::vector<const TensorToLoad*>& items);
  std::vector<at::Tensor> prepare(const RowGroup& group);
  at::Tensor target_of(const TensorToLoad& item);
  void take(const TensorRows& rows, const at::Tensor& value);
  static void put(const TensorToLoad& item, const at::Tensor& value);
  static void empty(const TensorToLoad& item);

  const CheckpointTensorReader& reader_;
  bool maps_;
  std::filesystem::path folder_;
  bool replaces_;
  std::optional<ProgressOptions> progress_;
  std::map<std::filesystem::path, std::shared_ptr<FileMapping>> mappings_;
  std::optional<OffloadFolderWriter> writer_;
  /// Buffer of one group after another.
  at::Tensor buffer_;
  /// All values pass through the buffer, so that the module's values stay until
  /// the whole group has arrived.
  bool buffers_all_ = false;
  /// Memory of tensors that are partly read.
  std::unordered_map<const TensorToLoad*, at::Tensor> targets_;
  /// Final values of the module's tensors that have no memory.
  std::vector<std::pair<const TensorToLoad*, at::Tensor>> values_;
};

}  // namespace accelerate::detail
