#include "big_model/offload/checkpoint_tensor_reader.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include <accelerate/error.h>
#include <accelerate/objects.h>

#include "base/progress/byte_progress.h"
#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "format/tensors/verified_read.h"

namespace accelerate::detail {

std::vector<TensorInCheckpoint> CheckpointTensorReader::open(
    const std::filesystem::path& path,
    const LoadModelOptions& options) {
  std::vector<TensorInCheckpoint> tensors;
  std::string error;
  if (reads_file()) {
    try {
      saved_ = open_renamed(path, options);
      tensors = tensors_in_order(saved_);
    } catch (const CheckpointError& failed) {
      if (!group_) throw;
      error = failed.what();
    }
  }
  if (!group_) return tensors;
  using Described = std::tuple<std::string, int, std::vector<std::int64_t>>;
  std::vector<Described> described;
  for (const TensorInCheckpoint& each : tensors)
    described.emplace_back(each.name, static_cast<int>(each.dtype), each.shape);
  std::tie(error, described) =
      broadcast_object(std::tuple(error, described), *group_);
  if (!error.empty()) throw CheckpointError(error);
  tensors.clear();
  for (const auto& [name, dtype, shape] : described)
    tensors.push_back({name, static_cast<c10::ScalarType>(dtype), shape});
  return tensors;
}

const StoredTensor* CheckpointTensorReader::find(
    const std::string& name) const {
  const auto found = saved_.find(name);
  return found == saved_.end() ? nullptr : &found->second;
}

void CheckpointTensorReader::show(
    std::uint64_t num_bytes,
    const std::optional<ProgressOptions>& options) const {
  if (!options || !reads_file()) return;
  show_reads(saved_, std::make_shared<ByteProgress>(num_bytes, *options));
}

std::vector<std::uint8_t> CheckpointTensorReader::greatest(
    const std::vector<std::uint8_t>& values) const {
  if (!group_) return values;
  std::vector<std::uint8_t> most = values;
  const std::string own(values.begin(), values.end());
  for (const std::string& each :
       gather_object(std::vector<std::string>{own}, *group_)) {
    for (std::size_t i = 0; i < most.size(); ++i)
      most[i] = std::max(most[i], static_cast<std::uint8_t>(each.at(i)));
  }
  return most;
}

void CheckpointTensorReader::together(const std::function<void()>& body) const {
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
        "[big_model] the checkpoint was not loaded, since rank {} of the group "
        "failed: {}",
        rank,
        all[rank]));
  }
}

void CheckpointTensorReader::verify(
    const std::vector<const TensorToLoad*>& items) const {
  together([&] {
    if (!reads_file()) return;
    std::vector<const StoredTensor*> tensors;
    for (const TensorToLoad* item : items) tensors.push_back(item->stored);
    verify_checksums(tensors);
  });
}

void CheckpointTensorReader::read(
    const std::vector<TensorRows>& rows,
    const std::vector<at::Tensor>& values) const {
  std::string error;
  if (reads_file()) {
    std::vector<BoxToRead> boxes;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const StoredTensor& stored = *rows[i].item->stored;
      safetensors::Box box{
          safetensors::Shape(stored.shape.size(), 0), stored.shape};
      const bool is_cut = !rows[i].item->shape.empty() &&
          rows[i].count < rows[i].item->shape.front();
      if (is_cut) {
        box.begin.front() = static_cast<std::uint64_t>(rows[i].begin);
        box.size.front() = static_cast<std::uint64_t>(rows[i].count);
      }
      boxes.push_back({&stored, std::move(box), bytes_of(values[i])});
    }
    try {
      boxes_.read(boxes);
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

}  // namespace accelerate::detail
