#include "checkpoint/load/checkpoint_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/load/source.h"
#include "checkpoint/save/checkpoint_writer.h"
#include "checkpoint/tensors/state_json.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "format/checkpoint/checksums.h"
#include "format/tensors/verified_read.h"
#include "format/weights/weights.h"

namespace accelerate::detail {

CheckpointReader::CheckpointReader(std::filesystem::path directory, bool verify)
    : directory_(std::move(directory)),
      manifest_(read_manifest(directory_)),
      verifies_(verify) {}

StoredTensors CheckpointReader::tensors(const std::string& section) const {
  const auto found = manifest_.sections.find(section);
  if (found == manifest_.sections.end()) return {};
  return stored_in_checkpoint(
      directory_, found->second, verifies_ ? &manifest_.files : nullptr);
}

StateDict CheckpointReader::state(const std::string& file) const {
  if (verifies_) verify({file});
  const safetensors::Reader mapped(directory_ / file);
  const auto found = mapped.header().metadata.find(kStateKey);
  const std::string what = (directory_ / file).string();
  if (found == mapped.header().metadata.end()) {
    throw CheckpointError(format("[checkpoint] {} contains no state", what));
  }
  const auto json = nlohmann::json::parse(found->second, nullptr, false);
  return from_json(json, what, [&](const std::string& name) -> at::Tensor {
    if (!mapped.contains(name)) {
      throw CheckpointError(
          format("[checkpoint] {} has no tensor \"{}\"", what, name));
    }
    const safetensors::TensorInfo& info = mapped.info(name);
    const auto dtype = torch_dtype(info.dtype);
    if (!dtype) {
      throw CheckpointError(format(
          "[checkpoint] \"{}\" of {} has a dtype that LibTorch lacks",
          name,
          what));
    }
    at::Tensor tensor = at::empty(
        torch_shape(info.dtype, info.shape), at::TensorOptions().dtype(*dtype));
    const auto bytes = mapped.bytes(name);
    std::ranges::copy(bytes, bytes_of(tensor).begin());
    return tensor;
  });
}

CheckpointSource
open_checkpoint(const std::filesystem::path& directory, int rank, bool verify) {
  if (!std::filesystem::exists(directory / kManifestName) &&
      std::filesystem::exists(directory / "random_states_0.pkl")) {
    return open_python_checkpoint(directory, rank);
  }
  const CheckpointReader checkpoint(directory, verify);
  CheckpointSource source;
  source.directory = directory;
  source.num_processes = checkpoint.manifest().num_processes;
  for (const auto& [section, tensors] : checkpoint.manifest().sections) {
    source.sections.emplace(section, checkpoint.tensors(section));
  }
  for (std::size_t i = 0;; ++i) {
    const std::string section = numbered("model", i);
    if (source.sections.contains(section)) continue;
    const std::string file = torch_file_of(section);
    if (!checkpoint.manifest().files.contains(file)) break;
    if (verify) checkpoint.verify({file});
    source.sections.emplace(section, stored_in_torch_file(directory / file));
  }
  source.state = checkpoint.state(section_file(kStateSection, false, 0, 1));
  if (checkpoint.manifest().files.contains(rank_file(rank))) {
    source.rank_state = checkpoint.state(rank_file(rank));
  }
  return source;
}

void CheckpointReader::verify() const {
  std::vector<std::string> files;
  for (const auto& [name, record] : manifest_.files) files.push_back(name);
  verify(files);
}

void CheckpointReader::verify(const std::vector<std::string>& files) const {
  std::vector<std::string> damaged;
  for (const std::string& name : files) {
    const auto record = manifest_.files.find(name);
    if (record == manifest_.files.end() ||
        !damaged_chunks(directory_ / name, record->second).empty()) {
      damaged.push_back(name);
    }
  }
  if (damaged.empty()) return;
  throw DamagedCheckpoint(format(
      "[checkpoint] {} is damaged: the contents of {} have changed since they "
      "were written; load another checkpoint",
      directory_.string(),
      join(damaged, ", ")));
}

std::vector<std::string> CheckpointReader::files_of_hooks() const {
  // Compares names, not rank numbers: a node's own disk has only some ranks'
  // files.
  std::set<std::string> own{section_file(kStateSection, false, 0, 1)};
  for (const auto& [section, tensors] : manifest_.sections) {
    own.insert(section_file(section, false, 0, 1));
    for (const auto& [name, tensor] : tensors) {
      for (const SavedBox& box : tensor.boxes) own.insert(box.file);
    }
  }
  for (std::size_t i = 0;; ++i) {
    const std::string file = torch_file_of(numbered("model", i));
    if (!manifest_.files.contains(file) && i > 0) break;
    own.insert(file);
  }
  std::vector<std::string> others;
  for (const auto& [name, record] : manifest_.files) {
    const bool is_of_rank =
        name.starts_with("rank-") && name.ends_with(".safetensors");
    if (!is_of_rank && !own.contains(name)) others.push_back(name);
  }
  return others;
}

}  // namespace accelerate::detail
