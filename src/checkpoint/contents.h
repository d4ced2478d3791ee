#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/state_dict.h>

#include "params/layout.h"

namespace accelerate::detail {

/// "model", "model_1", … for the i-th of a kind.
ACCELERATE_API std::string numbered(const std::string& kind, std::size_t i);

/// A tensor of a part: what of it this rank has.
struct SectionEntry {
  std::string name;
  /// The box that `layout` says.
  at::Tensor tensor;
  Layout layout;
  /// This rank writes the box, which other ranks may have, too.
  bool is_writer = true;
};

/// Tensors that go to files of their own: "model", "optimizer" and so on.
struct ACCELERATE_API Section {
  std::string name;
  std::vector<SectionEntry> entries;
  /// Other names of entries.
  std::map<std::string, std::string> aliases = {};

  /// Some entry is split over ranks.
  [[nodiscard]] bool is_split() const;
};

/// Everything of one rank that a checkpoint holds.
struct CheckpointContents {
  std::vector<Section> sections;
  /// What all ranks have alike; the leader's is written.
  StateDict state;
  /// What each rank has for itself.
  StateDict rank_state;
};

}  // namespace accelerate::detail
