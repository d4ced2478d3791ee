#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "format/checkpoint/file_names.h"
#include "params/layout.h"

namespace accelerate::detail {

/// Further names of tensors, each with the first one, in the module's order.
using Aliases = std::vector<std::pair<std::string, std::string>>;

/// This rank's shard of a tensor in a section.
struct SectionEntry {
  std::string name;
  /// The shard; `layout` gives its box.
  at::Tensor tensor;
  Layout layout;
  /// True if this rank writes the box; other ranks may have replicas of it.
  bool is_writer = true;
};

/// The tensors of one model or optimizer, which have their own files: "model",
/// "optimizer" and so on.
struct Section {
  std::string name;
  std::vector<SectionEntry> entries;
  /// Further names of entries.
  Aliases aliases = {};
  /// True if other ranks have other tensors of the section: stages of a
  /// pipeline.
  bool is_stage = false;

  /// True if several ranks write it: any entry is sharded over ranks, or it is
  /// a stage.
  [[nodiscard]] bool is_sharded() const;
};

/// One rank's contribution to a checkpoint.
struct CheckpointContents {
  std::vector<Section> sections;
  /// State that is the same on all ranks; the leader's is written.
  StateDict state;
  /// State of this rank only.
  StateDict rank_state;
};

}  // namespace accelerate::detail
