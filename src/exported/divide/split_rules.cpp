// Rules of operators: how their results are divided if their arguments are.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <ATen/core/enum_tag.h>

#include "base/text/text.h"
#include "exported/divide/divided_call.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kAlike = "divided alike";

bool contains(const std::vector<std::int64_t>& dims, std::int64_t dim) {
  return std::ranges::find(dims, dim) != dims.end();
}

// Number of the dimensions before `dim`.
std::int64_t num_before(
    const std::vector<std::int64_t>& dims,
    std::int64_t dim) {
  return std::ranges::count_if(
      dims, [&](std::int64_t each) { return each < dim; });
}

[[noreturn]] void refuse_along(
    const DividedCall& call,
    const ValueSplit& split) {
  call.refuse(split, "whole along the dimension on which it works");
}

// For operators of which only the first tensor may be divided.
struct Only {
  ValueSplit split;
  std::vector<std::int64_t> sizes;
  std::int64_t num_dims = 0;
};

Only only_tensor(const DividedCall& call) {
  const std::vector<int> slots = call.tensors();
  const int first = slots.front();
  for (const int slot : slots) {
    const auto& found = call.value(slot).split;
    if (found && slot != first)
      call.refuse(*found, "whole, except for the first");
  }
  return {*call.value(first).split, call.sizes(first), call.num_dims(first)};
}

// Tensors that are broadcast to `num_dims` dimensions must be divided alike if
// they have the divided dimension.
ValueSplit split_of_all(
    const DividedCall& call,
    const std::vector<int>& slots,
    std::int64_t num_dims) {
  std::optional<ValueSplit> common;
  for (const int slot : slots) {
    std::optional<ValueSplit> split = call.value(slot).split;
    if (!split) continue;
    split->dim += num_dims - call.num_dims(slot);
    if (common && !common->is_like(*split)) call.refuse(*split, kAlike);
    common = split;
  }
  for (const int slot : slots) {
    if (call.value(slot).split) continue;
    const std::int64_t dim = common->dim - num_dims + call.num_dims(slot);
    if (dim >= 0 && call.sizes(slot).at(static_cast<std::size_t>(dim)) != 1)
      call.refuse(*common, kAlike);
  }
  return *common;
}

bool writes_first_argument(const DividedCall& call) {
  const auto& arguments = call.instruction().op->schema().arguments();
  const auto* const alias =
      arguments.empty() ? nullptr : arguments.front().alias_info();
  return alias != nullptr && alias->isWrite();
}

void elementwise(DividedCall& call) {
  const std::vector<int> slots = call.tensors();
  std::int64_t num_dims = 0;
  for (const int slot : slots)
    num_dims = std::max(num_dims, call.num_dims(slot));
  const ValueSplit split = split_of_all(call, slots, num_dims);
  if (writes_first_argument(call) && !call.value(slots.front()).split)
    call.refuse(split, kAlike);
  call.set_results(split);
}

// Takes all indices of some dimensions together.
void reduction(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const auto dims = call.dims("dim", num_dims);
  if (dims.empty() || contains(dims, split.dim)) refuse_along(call, split);
  if (call.number("keepdim", 0) == 0) split.dim -= num_before(dims, split.dim);
  call.set_results(split);
}

// Works along one dimension, and keeps it.
void along(DividedCall& call) {
  const auto [split, sizes, num_dims] = only_tensor(call);
  if (call.dim("dim", num_dims) == split.dim) refuse_along(call, split);
  call.set_results(split);
}

void norm(DividedCall& call) {
  const auto [split, sizes, num_dims] = only_tensor(call);
  const auto normalized =
      static_cast<std::int64_t>(call.dims("normalized_shape", 0).size());
  if (normalized == 0 || split.dim >= num_dims - normalized)
    refuse_along(call, split);
  call.set_results(split);
}

void transpose(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const bool has_dims = call.has("dim0");
  const std::int64_t first = has_dims ? call.dim("dim0", num_dims) : 0;
  const std::int64_t second =
      has_dims ? call.dim("dim1", num_dims) : num_dims - 1;
  if (split.dim == first) {
    split.dim = second;
  } else if (split.dim == second) {
    split.dim = first;
  }
  call.set_results(split);
}

void permute(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const auto dims = call.dims("dims", num_dims);
  const auto found = std::ranges::find(dims, split.dim);
  if (found == dims.end()) refuse_along(call, split);
  split.dim = found - dims.begin();
  call.set_results(split);
}

void unsqueeze(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  if (call.dim("dim", num_dims + 1) <= split.dim) ++split.dim;
  call.set_results(split);
}

void squeeze(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  auto dims = call.dims("dim", num_dims);
  // Without dimensions, it removes the divided one where a rank has one index.
  if (dims.empty() || contains(dims, split.dim)) refuse_along(call, split);
  std::erase_if(dims, [&, &of = sizes](std::int64_t dim) {
    return of.at(static_cast<std::size_t>(dim)) != 1;
  });
  split.dim -= num_before(dims, split.dim);
  call.set_results(split);
}

// view(), reshape() and others that keep the order of elements.
void view(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const std::vector<std::int64_t>& to = call.result_sizes();
  const auto found = viewed_dim(split.dim, sizes, to);
  const bool keeps_size = found && found->from_stride == found->to_stride;
  if (!found || (split.begins.empty() && !keeps_size))
    call.refuse(split, "whole along dimensions that it joins or divides");
  const auto begins =
      rescaled(split.begins, found->from_stride, found->to_stride);
  if (!begins) {
    call.refuse(
        split,
        format(
            "divided between indices of dimension {} of its result (attention "
            "heads, say), whose number must be divisible "
            "by {} ranks, but is {}",
            found->dim,
            split.num_ranks(),
            to.at(static_cast<std::size_t>(found->dim))));
  }
  split.dim = found->dim;
  split.begins = *begins;
  for (const std::string_view argument : {"size", "shape"}) {
    if (call.has(argument)) call.set_size(argument, split.dim, split);
  }
  call.set_results(split);
}

void expand(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  split.dim += static_cast<std::int64_t>(call.result_sizes().size()) - num_dims;
  call.set_size("size", split.dim, split);
  call.set_results(split);
}

void slice(DividedCall& call) {
  const auto [split, sizes, num_dims] = only_tensor(call);
  if (call.dim("dim", num_dims) == split.dim) {
    constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
    const std::int64_t least = split.begins.empty()
        ? kEnd
        : sizes.at(static_cast<std::size_t>(split.dim));
    const bool takes_all = !call.is_computed("start") &&
        !call.is_computed("end") && call.number("start", 0) == 0 &&
        call.number("end", kEnd) >= least && call.number("step", 1) == 1;
    if (!takes_all) refuse_along(call, split);
  }
  call.set_results(split);
}

// One index of a dimension, or all of them as separate results.
void select(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const std::int64_t dim = call.dim("dim", num_dims);
  if (dim == split.dim) refuse_along(call, split);
  if (dim < split.dim) --split.dim;
  call.set_results(split);
}

// Tensors of the same number of dimensions, which all are divided.
void join_tensors(DividedCall& call, bool adds_dim) {
  const std::vector<int> slots = call.tensors();
  const std::int64_t num_dims = call.num_dims(slots.front());
  ValueSplit split = split_of_all(call, slots, num_dims);
  for (const int slot : slots) {
    if (!call.value(slot).split) call.refuse(split, kAlike);
  }
  const std::int64_t dim = call.dim("dim", num_dims + (adds_dim ? 1 : 0));
  if (!adds_dim && dim == split.dim) refuse_along(call, split);
  if (adds_dim && dim <= split.dim) ++split.dim;
  call.set_results(split);
}
void cat(DividedCall& call) { join_tensors(call, false); }
void stack(DividedCall& call) { join_tensors(call, true); }

void repeat_interleave(DividedCall& call) {
  auto [split, sizes, num_dims] = only_tensor(call);
  const bool is_flat = call.number("dim", num_dims) == num_dims;
  if (is_flat || call.is_computed("repeats")) refuse_along(call, split);
  if (call.dim("dim", num_dims) == split.dim) {
    const auto begins = rescaled(split.begins, call.number("repeats", 1), 1);
    if (!begins || call.number("output_size", -1) >= 0)
      refuse_along(call, split);
    split.begins = *begins;
  }
  call.set_results(split);
}

// (..., rows, common) x (..., common, columns)
void matmul(DividedCall& call) {
  const std::vector<int> slots = call.tensors();
  const auto num_dims = static_cast<std::int64_t>(call.result_sizes().size());
  std::optional<ValueSplit> common;
  for (std::size_t i = 0; i < 2; ++i) {
    auto split = call.value(slots.at(i)).split;
    if (!split) continue;
    const std::int64_t own = call.num_dims(slots[i]);
    const std::int64_t summed = i == 0 ? own - 1 : own - 2;
    if (own < 2 || split->dim == summed) refuse_along(call, *split);
    split->dim += num_dims - own;
    if (common && !common->is_like(*split)) call.refuse(*split, kAlike);
    common = split;
  }
  // Matrices of a batch meet those with the same index.
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t dim =
        common->dim - num_dims + call.num_dims(slots.at(i));
    if (common->dim >= num_dims - 2 || call.value(slots[i]).split || dim < 0)
      continue;
    if (call.sizes(slots[i]).at(static_cast<std::size_t>(dim)) != 1)
      call.refuse(*common, kAlike);
  }
  call.set_results(*common);
}

// (batch, heads, positions, features) each; with enable_gqa, each head of keys
// and values serves several of queries.
void attention(DividedCall& call) {
  const int query = call.slot("query");
  const int key = call.slot("key");
  const int value = call.slot("value");
  const int mask = call.slot("attn_mask");
  std::vector<int> slots = {query, key, value};
  const std::int64_t num_dims = call.num_dims(query);
  for (const int slot : {query, key, value, mask}) {
    const auto split = slot < 0 ? std::nullopt : call.value(slot).split;
    if (split && split->dim >= call.num_dims(slot) - 2)
      refuse_along(call, *split);
  }
  const auto& of_query = call.value(query).split;
  const bool has_groups = call.number("enable_gqa", 0) == 1 && of_query &&
      of_query->dim == num_dims - 3;
  if (has_groups) {
    const auto heads = static_cast<std::size_t>(num_dims - 3);
    for (const int slot : {key, value}) {
      const auto& split = call.value(slot).split;
      const auto begins = !split ? std::nullopt
                                 : rescaled(
                                       split->begins,
                                       call.sizes(query).at(heads),
                                       call.sizes(slot).at(heads));
      if (!begins || split->dim != of_query->dim ||
          *begins != of_query->begins) {
        call.refuse(*of_query, kAlike);
      }
    }
    slots = {query};
  }
  if (mask >= 0) slots.push_back(mask);
  call.set_results(split_of_all(call, slots, num_dims));
}

// The divided weight is another operator's subject (divided_program.cpp).
void linear(DividedCall& call) {
  const auto [split, sizes, num_dims] = only_tensor(call);
  if (split.dim == num_dims - 1) refuse_along(call, split);
  call.set_results(split);
}

using Rule = void (*)(DividedCall&);

// Operators that are elementwise, but not tagged so: they are composed of
// others, or copy.
constexpr std::string_view kElementwise[] = {
    "aten::__and__",      "aten::__or__",          "aten::_to_copy",
    "aten::alias",        "aten::alpha_dropout",   "aten::clone",
    "aten::contiguous",   "aten::copy_",           "aten::detach",
    "aten::dropout",      "aten::dropout_",        "aten::empty_like",
    "aten::full_like",    "aten::lift_fresh_copy", "aten::masked_fill",
    "aten::masked_fill_", "aten::ones_like",       "aten::to",
    "aten::type_as",      "aten::where",           "aten::zeros_like",
};

constexpr std::pair<std::string_view, Rule> kRules[] = {
    {"aten::_unsafe_view", view},
    {"aten::amax", reduction},
    {"aten::amin", reduction},
    {"aten::bmm", matmul},
    {"aten::cat", cat},
    {"aten::chunk", along},
    {"aten::cumsum", along},
    {"aten::expand", expand},
    {"aten::flatten", view},
    {"aten::layer_norm", norm},
    {"aten::linear", linear},
    {"aten::log_softmax", along},
    {"aten::logsumexp", reduction},
    {"aten::matmul", matmul},
    {"aten::mean", reduction},
    {"aten::narrow", along},
    {"aten::permute", permute},
    {"aten::repeat_interleave", repeat_interleave},
    {"aten::reshape", view},
    {"aten::rms_norm", norm},
    {"aten::scaled_dot_product_attention", attention},
    {"aten::select", select},
    {"aten::slice", slice},
    {"aten::softmax", along},
    {"aten::split", along},
    {"aten::split_with_sizes", along},
    {"aten::squeeze", squeeze},
    {"aten::stack", stack},
    {"aten::sum", reduction},
    {"aten::t", transpose},
    {"aten::transpose", transpose},
    {"aten::unbind", select},
    {"aten::unsqueeze", unsqueeze},
    {"aten::var", reduction},
    {"aten::view", view},
};

Rule rule_of(const DividedCall& call) {
  for (const auto& [name, rule] : kRules) {
    if (name == call.name()) return rule;
  }
  const bool is_elementwise =
      std::ranges::find(kElementwise, call.name()) != std::end(kElementwise);
  return is_elementwise || call.instruction().op->hasTag(at::Tag::pointwise)
      ? elementwise
      : nullptr;
}

std::optional<ValueSplit> first_split(const DividedCall& call) {
  for (const int slot : call.tensors()) {
    if (call.value(slot).split) return call.value(slot).split;
  }
  return std::nullopt;
}

}  // namespace

void divide_results(DividedCall& call) {
  const std::optional<ValueSplit> split = first_split(call);
  if (!split) return;
  const Rule rule = rule_of(call);
  for (std::size_t i = 0; i < call.instruction().results.size(); ++i) {
    if (call.instruction().results[i] >= 0 && !call.has_result_sizes(i))
      call.refuse(
          *split, "whole, since the file lacks the sizes of its result");
  }
  if (rule == nullptr) {
    call.refuse(
        *split, "whole, since there is no rule for slices of this operator");
  }
  try {
    rule(call);
  } catch (const std::out_of_range&) {
    call.refuse(*split, "whole, since the file has other sizes of them");
  }
}

}  // namespace accelerate::detail
