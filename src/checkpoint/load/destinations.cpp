#include "checkpoint/load/destinations.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Number of bytes staged before they are copied to tensors that cannot be read
// into directly.
constexpr std::size_t kStageBytes = 32U << 20U;

std::string text_of(const safetensors::Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += format("{}{}", i > 0 ? ", " : "", shape[i]);
  }
  return text + "]";
}

safetensors::Shape global_shape(const Destination& destination) {
  if (destination.layout.is_unsharded()) return file_shape(destination.tensor);
  const auto& sizes = destination.layout.global_shape;
  return {sizes.begin(), sizes.end()};
}

// Adds the boxes to read into `target`, which has the layout's box.
void add_boxes(
    std::vector<BoxToRead>& boxes,
    const StoredTensor& saved,
    const Layout& layout,
    const at::Tensor& target) {
  for (const LayoutPiece& piece : pieces_of(layout)) {
    const at::Tensor rows = rows_of(target, piece);
    safetensors::Shape size = file_shape(rows);
    const auto& offset = piece.layout.offset;
    safetensors::Shape begin(size.size(), 0);
    if (!layout.is_unsharded()) begin.assign(offset.begin(), offset.end());
    boxes.push_back(
        {&saved, {std::move(begin), std::move(size)}, bytes_of(rows)});
  }
}

// Adds one complaint that lists at most 20 names.
void append(
    std::vector<std::string>& complaints,
    const std::string& section,
    const std::string& what,
    const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  if (names.empty()) return;
  std::vector<std::string> shown(
      names.begin(),
      names.begin() +
          static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  std::string text = format("{}: {}: {}", section, what, join(shown, ", "));
  if (names.size() > kMost) {
    text += format(", and {} more", names.size() - kMost);
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
    const std::string& section,
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
      complaints.push_back(format(
          "{}: {} has shape {} in the checkpoint and {} here",
          section,
          destination.name,
          text_of(found->second.shape),
          text_of(shape)));
    } else if (!torch_dtype(found->second.dtype)) {
      complaints.push_back(format(
          "{}: {} is of dtype {}, which LibTorch does not have",
          section,
          destination.name,
          safetensors::name_of(found->second.dtype)));
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (rules.strict && !wanted.contains(name) && !aliases.contains(name) &&
        !matches_any(rules.skip, name)) {
      left_over.push_back(name);
    }
  }
  append(complaints, section, "not in the checkpoint", missing);
  append(complaints, section, "in the checkpoint only", left_over);
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
  std::vector<BoxToRead> to_stage;
  std::vector<Staged> staged;
  std::size_t num_staged = 0;
  const auto flush = [&] {
    read_boxes(to_stage);
    for (Staged& each : staged) each.target.copy_(each.stage);
    to_stage.clear();
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
    if (target.is_cpu() && target.is_contiguous() &&
        target.scalar_type() == dtype) {
      add_boxes(direct, found->second, destination.layout, target);
      continue;
    }
    const at::Tensor stage = at::empty(
        target.sizes(), at::TensorOptions().dtype(dtype).device(at::kCPU));
    add_boxes(to_stage, found->second, destination.layout, stage);
    staged.push_back({stage, target});
    num_staged += stage.nbytes();
    if (num_staged >= kStageBytes) flush();
  }
  flush();
  read_boxes(direct);
}

}  // namespace accelerate::detail
