#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/progress.h>
#include <accelerate/weights.h>
#include <accelerate/world.h>

#include "big_model/offload/checkpoint_plan.h"
#include "format/tensors/box_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Consecutive rows of a tensor: slices of its first dimension. A tensor without
/// dimensions is one row.
struct TensorRows {
  const TensorToLoad* item = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 1;
};

/// The tensors of a checkpoint, read to the CPU, or received from the rank that
/// reads them.
class CheckpointTensorReader {
 public:
  /// With a group, its first rank reads for all.
  explicit CheckpointTensorReader(std::optional<Group> group)
      : group_(std::move(group)) {}

  /// Whether ranks send each other what they read.
  [[nodiscard]] bool sends() const { return group_.has_value(); }

  /// The tensors of the checkpoint. If it cannot be opened, all ranks throw.
  std::vector<TensorInCheckpoint> open(
      const std::filesystem::path& path,
      const LoadModelOptions& options);

  /// Null on ranks that do not read.
  [[nodiscard]] const StoredTensor* find(const std::string& name) const;

  /// Shows the bytes read from now on in a progress bar, if one is wanted.
  void show(
      std::uint64_t num_bytes,
      const std::optional<ProgressOptions>& options) const;

  /// The element-wise maximum of the ranks' lists.
  [[nodiscard]] std::vector<std::uint8_t> greatest(
      const std::vector<std::uint8_t>& values) const;

  /// Runs code that may fail on a single rank; if it does, all ranks throw.
  void together(const std::function<void()>& body) const;

  /// Compares tensors with their checksums, where the checkpoint has some. If
  /// they differ, all ranks throw.
  void verify(const std::vector<const TensorToLoad*>& items) const;

  /// Fills `values`, contiguous and on the CPU, with these rows, which are the
  /// same on all ranks. If they cannot be read, all ranks throw.
  void read(
      const std::vector<TensorRows>& rows,
      const std::vector<at::Tensor>& values) const;

 private:
  [[nodiscard]] bool reads_file() const {
    return !group_ || group_->rank() == 0;
  }

  std::optional<Group> group_;
  StoredTensors saved_;
  mutable BoxReader boxes_;
};

}  // namespace accelerate::detail
