#include "checkpoint/load.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/save.h"
#include "checkpoint/source.h"
#include "checkpoint/state_json.h"
#include "checkpoint/tensor_bytes.h"
#include "format/checksums.h"
#include "format/weights.h"

namespace accelerate::detail {

namespace {

// Tensors that cannot be read where they lie are read beside, so many bytes at
// a time.
constexpr std::size_t kStageBytes = 32U << 20U;

std::string text_of(const safetensors::Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += concat(i > 0 ? ", " : "", shape[i]);
  }
  return text + "]";
}

safetensors::Shape global_shape(const Destination& destination) {
  if (destination.layout.is_whole()) return file_shape(destination.tensor);
  const auto& sizes = destination.layout.global_shape;
  return {sizes.begin(), sizes.end()};
}

safetensors::Box box_of(const Destination& destination) {
  safetensors::Shape size = file_shape(destination.tensor);
  if (destination.layout.is_whole()) {
    return {safetensors::Shape(size.size(), 0), size};
  }
  const auto& offset = destination.layout.offset;
  return {{offset.begin(), offset.end()}, std::move(size)};
}

// Not a multiple of what is shown when there are thousands.
void append(
    std::vector<std::string>& complaints,
    const std::string& part,
    const std::string& what,
    const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  if (names.empty()) return;
  std::vector<std::string> shown(
      names.begin(),
      names.begin() +
          static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  std::string text = concat(part, ": ", what, ": ", join(shown, ", "));
  if (names.size() > kMost) {
    text += concat(", and ", names.size() - kMost, " more");
  }
  complaints.push_back(std::move(text));
}

}  // namespace

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name) {
  return std::any_of(
      patterns.begin(), patterns.end(), [&](const std::string& pattern) {
        return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
      });
}

void take_other_names(
    StoredTensors& saved,
    const std::map<std::string, std::string>& aliases) {
  for (const auto& [alias, name] : aliases) {
    if (saved.contains(name)) continue;
    auto entry = saved.extract(alias);
    if (entry.empty()) continue;
    entry.key() = name;
    saved.insert(std::move(entry));
  }
}

std::vector<std::string> mismatches(
    const std::string& part,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::map<std::string, std::string>& aliases,
    const MatchRules& rules) {
  std::vector<std::string> complaints, missing, left_over;
  std::set<std::string> wanted;
  for (const Destination& destination : destinations) {
    wanted.insert(destination.name);
    if (matches_any(rules.skip, destination.name)) continue;
    const auto found = saved.find(destination.name);
    if (found == saved.end()) {
      if (rules.strict && !matches_any(rules.allow_missing, destination.name)) {
        missing.push_back(destination.name);
      }
      continue;
    }
    const safetensors::Shape shape = global_shape(destination);
    if (found->second.shape != shape) {
      complaints.push_back(concat(
          part,
          ": ",
          destination.name,
          " has shape ",
          text_of(found->second.shape),
          " in the checkpoint and ",
          text_of(shape),
          " here"));
    } else if (!torch_dtype(found->second.dtype)) {
      complaints.push_back(concat(
          part,
          ": ",
          destination.name,
          " is of dtype ",
          safetensors::name_of(found->second.dtype),
          ", which LibTorch does not have"));
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (rules.strict && !wanted.contains(name) && !aliases.contains(name) &&
        !matches_any(rules.skip, name)) {
      left_over.push_back(name);
    }
  }
  append(complaints, part, "not in the checkpoint", missing);
  append(complaints, part, "in the checkpoint only", left_over);
  return complaints;
}

void read_into(
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const MatchRules& rules) {
  const at::NoGradGuard no_grad;
  std::vector<BoxToRead> direct;
  struct Staged {
    at::Tensor stage;
    at::Tensor target;
  };
  std::vector<BoxToRead> beside;
  std::vector<Staged> staged;
  std::size_t num_staged = 0;
  const auto flush = [&] {
    read_boxes(beside);
    for (Staged& each : staged) each.target.copy_(each.stage);
    beside.clear();
    staged.clear();
    num_staged = 0;
  };
  for (const Destination& destination : destinations) {
    const auto found = saved.find(destination.name);
    if (found == saved.end() || matches_any(rules.skip, destination.name)) {
      continue;
    }
    const at::Tensor target = destination.tensor.detach();
    const c10::ScalarType dtype = *torch_dtype(found->second.dtype);
    const safetensors::Box box = box_of(destination);
    if (target.is_cpu() && target.is_contiguous() &&
        target.scalar_type() == dtype) {
      direct.push_back({&found->second, box, bytes_of(target)});
      continue;
    }
    const at::Tensor stage = at::empty(
        target.sizes(), at::TensorOptions().dtype(dtype).device(at::kCPU));
    beside.push_back({&found->second, box, bytes_of(stage)});
    staged.push_back({stage, target});
    num_staged += stage.nbytes();
    if (num_staged >= kStageBytes) flush();
  }
  flush();
  read_boxes(direct);
}

Checkpoint::Checkpoint(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {}

StoredTensors Checkpoint::tensors(const std::string& part) const {
  const auto found = manifest_.parts.find(part);
  if (found == manifest_.parts.end()) return {};
  return stored_in_checkpoint(folder_, found->second);
}

StateDict Checkpoint::state(const std::string& file) const {
  const safetensors::Reader mapped(folder_ / file);
  const auto found = mapped.header().metadata.find(kStateKey);
  const std::string what = (folder_ / file).string();
  if (found == mapped.header().metadata.end()) {
    throw CheckpointError(concat("[checkpoint] ", what, " holds no state"));
  }
  const auto json = nlohmann::json::parse(found->second, nullptr, false);
  return from_json(json, what, [&](const std::string& name) -> at::Tensor {
    if (!mapped.contains(name)) {
      throw CheckpointError(
          concat("[checkpoint] ", what, " has no tensor \"", name, "\""));
    }
    const safetensors::TensorInfo& info = mapped.info(name);
    const auto dtype = torch_dtype(info.dtype);
    if (!dtype) {
      throw CheckpointError(concat(
          "[checkpoint] \"",
          name,
          "\" of ",
          what,
          " has a dtype that LibTorch "
          "does not know"));
    }
    at::Tensor tensor = at::empty(
        torch_shape(info.dtype, info.shape), at::TensorOptions().dtype(*dtype));
    const auto bytes = mapped.bytes(name);
    std::copy(bytes.begin(), bytes.end(), bytes_of(tensor).begin());
    return tensor;
  });
}

CheckpointSource
open_checkpoint(const std::filesystem::path& folder, int rank, bool verify) {
  if (!std::filesystem::exists(folder / kManifestName) &&
      std::filesystem::exists(folder / "random_states_0.pkl")) {
    return open_python_checkpoint(folder, rank);
  }
  const Checkpoint checkpoint(folder);
  if (verify) checkpoint.verify();
  CheckpointSource source;
  source.folder = folder;
  source.num_processes = checkpoint.manifest().num_processes;
  for (const auto& [part, tensors] : checkpoint.manifest().parts) {
    source.parts.emplace(part, checkpoint.tensors(part));
  }
  for (std::size_t i = 0;; ++i) {
    const std::string part = numbered("model", i);
    if (source.parts.contains(part)) continue;
    const std::string file = torch_file_of(part);
    if (!checkpoint.manifest().files.contains(file)) break;
    source.parts.emplace(part, stored_in_torch_file(folder / file));
  }
  source.state = checkpoint.state(part_file(kStatePart, false, 0, 1));
  if (checkpoint.manifest().files.contains(rank_file(rank))) {
    source.rank_state = checkpoint.state(rank_file(rank));
  }
  return source;
}

void Checkpoint::verify() const {
  std::vector<std::string> damaged;
  for (const auto& [name, record] : manifest_.files) {
    if (!damaged_chunks(folder_ / name, record).empty()) {
      damaged.push_back(name);
    }
  }
  if (damaged.empty()) return;
  throw CheckpointError(concat(
      "[checkpoint] ",
      folder_.string(),
      " is damaged: the contents of ",
      join(damaged, ", "),
      " have changed since they were written; load another checkpoint"));
}

}  // namespace accelerate::detail
