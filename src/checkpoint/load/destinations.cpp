#include "checkpoint/load/destinations.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

// Number of bytes staged before they are copied to tensors that cannot be read
// into directly.
constexpr std::size_t kStageBytes = 32U << 20U;

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
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

void take_other_names(
    StoredTensors& saved,
    const Aliases& aliases,
    const std::vector<std::string>& skip) {
  for (const auto& [alias, name] : aliases) {
    const auto last = saved.find(alias);
    if (last == saved.end() || matches_any(skip, alias)) continue;
    const auto first = saved.find(name);
    // mismatches() complains about the wrong one of two shapes.
    if (first != saved.end() && first->second.shape != last->second.shape)
      continue;
    saved.insert_or_assign(name, last->second);
    saved.erase(last);
  }
}

namespace {

at::Tensor read_values(
    const StoredTensor& saved,
    c10::ScalarType dtype,
    const safetensors::Box& box) {
  at::Tensor values = at::empty(
      torch_shape(saved.dtype, box.size), at::TensorOptions().dtype(dtype));
  read_boxes({{&saved, box, bytes_of(values)}});
  return values;
}

bool has_negatives(const at::Tensor& values) {
  return at::isSignedType(values.scalar_type()) &&
      values.lt(0).any().item<bool>();
}

// Whether an integral dtype has all of these values.
bool can_hold(c10::ScalarType wanted, const at::Tensor& values) {
  if (at::isFloatingType(values.scalar_type())) {
    const at::Tensor exact = values.to(at::kDouble);
    return at::equal(exact.to(wanted).to(at::kDouble), exact);
  }
  const at::Tensor converted = values.to(wanted);
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.reshape(-1).view(at::kByte);
  };
  return has_negatives(converted) == has_negatives(values) &&
      at::equal(bytes(converted.to(values.scalar_type())), bytes(values));
}

// Whether `dtype` can hold all values of a saved tensor, of which some rows are
// read at a time.
bool can_hold(
    c10::ScalarType wanted,
    const StoredTensor& saved,
    c10::ScalarType dtype) {
  const auto num_rows =
      saved.shape.empty() ? std::uint64_t{1} : saved.shape.front();
  const std::uint64_t num_bytes =
      at::empty(
          torch_shape(saved.dtype, saved.shape),
          at::TensorOptions(dtype).device(at::kMeta))
          .nbytes();
  if (num_bytes == 0) return true;
  const std::uint64_t row_bytes =
      std::max(num_bytes / num_rows, std::uint64_t{1});
  const std::uint64_t step =
      std::max(kStageBytes / row_bytes, std::uint64_t{1});
  for (std::uint64_t row = 0; row < num_rows; row += step) {
    safetensors::Box box{
        safetensors::Shape(saved.shape.size(), 0), saved.shape};
    if (!saved.shape.empty()) {
      box.begin.front() = row;
      box.size.front() = std::min(step, num_rows - row);
    }
    if (!can_hold(wanted, read_values(saved, dtype, box))) return false;
  }
  return true;
}

// Returns why a destination cannot hold the values of a saved tensor of its
// shape; empty if it can. All ranks that hold shards find the same.
std::string value_complaint(
    const StoredTensor& saved,
    c10::ScalarType dtype,
    const Destination& destination) {
  const at::Tensor& target = destination.tensor;
  const c10::ScalarType wanted = target.scalar_type();
  if (at::isComplexType(dtype) && !at::isComplexType(wanted)) {
    return format(
        "has complex numbers in the checkpoint and {} here: their imaginary "
        "parts would be lost",
        c10::toString(wanted));
  }
  const bool is_narrower =
      dtype != wanted && at::isIntegralType(wanted, /*includeBool=*/true);
  if (is_narrower && !can_hold(wanted, saved, dtype)) {
    return format(
        "has values in the checkpoint that {}, its dtype here, cannot hold",
        c10::toString(wanted));
  }
  if (!destination.layout.is_unsharded() || !may_share_elements(target))
    return {};
  const safetensors::Box all{
      safetensors::Shape(saved.shape.size(), 0), saved.shape};
  if (can_assign(target, read_values(saved, dtype, all).to(wanted))) return {};
  return "is a view here whose elements share memory, such as one from "
         "expand(), and their values in the checkpoint differ; make it "
         "contiguous()";
}

// Returns why a destination cannot take a saved tensor, to follow its name.
std::string tensor_complaint(
    const StoredTensor& saved,
    const Destination& destination) {
  const safetensors::Shape shape = global_shape(destination);
  if (saved.shape != shape) {
    return format(
        "has shape {} in the checkpoint and {} here",
        c10::ArrayRef(saved.shape),
        c10::ArrayRef(shape));
  }
  const auto dtype = torch_dtype(saved.dtype);
  if (!dtype) {
    return format(
        "has dtype {}, which LibTorch lacks",
        safetensors::name_of(saved.dtype));
  }
  return value_complaint(saved, *dtype, destination);
}

// Names of the model and of the checkpoint that differ by a prefix, as an
// explanation; empty if there are none.
std::string prefix_hint(
    const std::vector<std::string>& missing,
    const std::vector<std::string>& left_over) {
  const std::set<std::string_view> wanted(missing.begin(), missing.end());
  const std::set<std::string_view> found(left_over.begin(), left_over.end());
  const auto prefix_of = [](const std::vector<std::string>& longer,
                            const std::set<std::string_view>& shorter) {
    for (const std::string& name : longer) {
      for (std::size_t dot = name.find('.'); dot != std::string::npos;
           dot = name.find('.', dot + 1)) {
        if (shorter.contains(std::string_view(name).substr(dot + 1)))
          return name.substr(0, dot + 1);
      }
    }
    return std::string();
  };
  const auto hint = [](std::string_view verb,
                       const std::string& prefix,
                       const std::string& before,
                       const std::string& after) {
    return format(
        "names in the checkpoint {} the prefix \"{}\"; load_model() takes "
        "them with LoadModelOptions::rename = rename_prefixes({{{{\"{}\", "
        "\"{}\"}}}})",
        verb,
        prefix,
        before,
        after);
  };
  if (const std::string more = prefix_of(left_over, wanted); !more.empty())
    return hint("have", more, more, "");
  if (const std::string less = prefix_of(missing, found); !less.empty())
    return hint("lack", less, "", less);
  return {};
}

}  // namespace

std::vector<std::string> mismatches(
    const std::string& section,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const Aliases& aliases,
    const MatchRules& rules) {
  std::vector<std::string> complaints, missing, left_over;
  std::map<std::string_view, const Destination*> wanted;
  bool has_any = false;
  const auto check = [&](const std::string& name, const Destination& here) {
    const auto found = saved.find(name);
    if (found == saved.end()) return false;
    const std::string complaint = tensor_complaint(found->second, here);
    if (!complaint.empty())
      complaints.push_back(format("{}: {} {}", section, name, complaint));
    return true;
  };
  for (const Destination& destination : destinations) {
    wanted.emplace(destination.name, &destination);
    if (matches_any(rules.skip, destination.name)) continue;
    if (check(destination.name, destination)) {
      has_any = true;
    } else if (!matches_any(rules.allow_missing, destination.name)) {
      missing.push_back(destination.name);
    }
  }
  for (const auto& [alias, name] : aliases) {
    const auto first = wanted.find(name);
    const Destination* const here =
        first == wanted.end() ? nullptr : first->second;
    const bool is_new = wanted.emplace(alias, here).second;
    if (is_new && here != nullptr && !matches_any(rules.skip, alias))
      check(alias, *here);
  }
  for (const auto& [name, tensor] : saved) {
    if (!wanted.contains(name) && !matches_any(rules.skip, name))
      left_over.push_back(name);
  }
  const bool has_nothing = !has_any && !missing.empty() && !saved.empty();
  if (rules.strict || has_nothing) {
    append(complaints, section, "not in the checkpoint", missing);
    append(complaints, section, "in the checkpoint only", left_over);
    const std::string hint = prefix_hint(missing, left_over);
    if (!hint.empty()) complaints.push_back(format("{}: {}", section, hint));
  }
  return complaints;
}

void set_values(
    const std::string& name,
    const at::Tensor& target,
    const at::Tensor& values) {
  std::string why =
      "it is a view whose elements share memory, and their values differ";
  try {
    if (assign(target, values)) return;
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  }
  throw CheckpointError(
      format("[checkpoint] {} cannot be loaded: {}", name, why));
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
    const std::string& name;
  };
  std::vector<BoxToRead> to_stage;
  std::vector<Staged> staged;
  std::size_t num_staged = 0;
  const auto flush = [&] {
    read_boxes(to_stage);
    for (Staged& each : staged) set_values(each.name, each.target, each.stage);
    to_stage.clear();
    staged.clear();
    num_staged = 0;
  };
  for (const Destination& destination : destinations) {
    const auto found = saved.find(destination.name);
    if (found == saved.end() || matches_any(rules.skip, destination.name)) {
      continue;
    }
    // detach() is an operator, which would bring memory.
    const bool is_away = is_behind_operators(destination.tensor);
    const at::Tensor target = is_away ? destination.tensor.variable_data()
                                      : destination.tensor.detach();
    const c10::ScalarType dtype = *torch_dtype(found->second.dtype);
    const bool has_address = !target.is_conj() && !target.is_neg() && !is_away;
    if (target.is_cpu() && target.is_contiguous() && has_address &&
        target.scalar_type() == dtype) {
      add_boxes(direct, found->second, destination.layout, target);
      continue;
    }
    const at::Tensor stage = at::empty(
        target.sizes(), at::TensorOptions().dtype(dtype).device(at::kCPU));
    add_boxes(to_stage, found->second, destination.layout, stage);
    staged.push_back({stage, target, destination.name});
    num_staged += stage.nbytes();
    if (num_staged >= kStageBytes) flush();
  }
  flush();
  read_boxes(direct);
}

}  // namespace accelerate::detail
