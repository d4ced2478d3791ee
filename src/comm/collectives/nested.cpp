#include <accelerate/nested.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "comm/monitoring/public_call.h"
#include "comm/transport/adapters/reduction_encoding.h"

namespace accelerate {

namespace detail {

namespace {

// Indexed by ReduceOp.
constexpr std::array<std::string_view, 8> kOperations{
    "sum",
    "mean",
    "product",
    "min",
    "max",
    "bit_and",
    "bit_or",
    "bit_xor"};

bool is_debugging(const Group& group) {
  const auto& world = group.impl()->world;
  return world && world->debug;
}

// FNV-1a.
std::int64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::int64_t>(hash);
}

/// What ranks compare about lists, numbers and strings beside tensors, in
/// addition to their places.
struct Compared {
  bool list_sizes = false;
  bool list_items = false;
  bool values = false;
};

constexpr Compared kEverything{
    .list_sizes = true,
    .list_items = true,
    .values = true};

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() &&
      !tensor.is_quantized();
}

std::string list_text(const NestedLeaf& list, const Compared& compared) {
  std::string text = format("list at {}", list.place);
  if (compared.list_sizes)
    text += format(" of {} items", list.operations->size(list.object));
  // They may be long.
  if (compared.list_items && list.operations->to_bytes != nullptr) {
    text += format(
        " with hash {}", hash_of(list.operations->to_bytes(list.object)));
  }
  return text;
}

// Lists what `describe` returns for each tensor, and what is beside them.
template <class Describe>
std::string list_of(
    const NestedParts& parts,
    Describe&& describe,
    const Compared& compared) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    const at::Tensor& tensor = *parts.tensors[i];
    std::string word = tensor.defined() ? describe(tensor) : "undefined";
    if (tensor.defined() && !is_dense(tensor))
      word += format(" {}", tensor.layout());
    if (parts.has_keys) word += " at " + parts.places[i];
    words.push_back(std::move(word));
  }
  for (const NestedLeaf& list : parts.lists)
    words.push_back(list_text(list, compared));
  for (const NestedLeaf& value : parts.values) {
    words.push_back(format(
        "{} at {}",
        compared.values ? value.operations->text(value.object) : "value",
        value.place));
  }
  return words.empty() ? "nothing" : join(words, ", ");
}

std::string dtype_and_shape(const at::Tensor& tensor) {
  return format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes());
}

// Ranks may have different numbers of rows.
std::string dtype_and_row(const at::Tensor& tensor) {
  if (tensor.dim() < 2)
    return format("{} [rows]", c10::toString(tensor.scalar_type()));
  std::string shape = "rows";
  for (const std::int64_t extent : tensor.sizes().slice(1))
    shape += format(", {}", extent);
  return format("{} [{}]", c10::toString(tensor.scalar_type()), shape);
}

// Throws DistributedError, on all ranks, unless `mine` is the same on all. A
// transport would not notice a difference, and return wrong values or hang.
// Costs 8 bytes per rank.
void require_same(
    const Group& group,
    std::string_view function,
    const std::string& mine,
    std::string_view advice) {
  const std::int64_t hash = hash_of(mine);
  bool is_same = true;
  for (const at::Tensor& other :
       group.all_gather(at::full({1}, hash, at::kLong)))
    is_same = is_same && *other.const_data_ptr<std::int64_t>() == hash;
  if (is_same) return;
  std::vector<std::string> all = group.all_gather_bytes(mine);
  for (std::size_t peer = 0; peer < all.size(); ++peer)
    all[peer] = format("rank {}: {}", group.world_ranks()[peer], all[peer]);
  throw DistributedError(format(
      "[comm] {} got different values on different ranks; {}:\n  {}",
      function,
      advice,
      join(all, "\n  ")));
}

// Joins the ranks' lists.
void gather_lists(const NestedParts& parts, const Group& group) {
  if (parts.lists.empty()) return;
  const std::vector<std::string> all =
      group.all_gather_bytes(leaves_to_bytes({.lists = parts.lists}));
  for (const NestedLeaf& list : parts.lists)
    list.operations->resize(list.object, 0);
  for (const std::string& bytes : all) {
    const std::vector<std::string> theirs = unpack_bytes(bytes);
    for (std::size_t i = 0; i < parts.lists.size(); ++i) {
      const NestedLeaf& list = parts.lists[i];
      const std::shared_ptr<void> more = list.operations->make();
      list.operations->from_bytes(theirs.at(i), more.get());
      list.operations->append(list.object, more.get());
    }
  }
}

// Whether a tensor of this dtype can have the value.
bool can_hold(at::ScalarType dtype, double value) {
  const bool is_integral = at::isIntegralType(dtype, /*includeBool=*/true);
  if (is_integral && !std::isfinite(value)) return false;
  try {
    const double held =
        at::full({}, value, at::TensorOptions(c10::toRealValueType(dtype)))
            .item<double>();
    return is_integral ? held == value
                       : std::isfinite(held) == std::isfinite(value);
  } catch (const std::exception&) {
    return false;  // LibTorch's: beyond the range of the dtype
  }
}

}  // namespace

void gather_in_place(const NestedParts& parts, const Group& group) {
  const auto require_all_dense = [&] {
    for (const at::Tensor* const tensor : parts.tensors) {
      if (tensor->defined()) require_dense("gather", *tensor);
    }
  };
  if (group.size() == 1) return require_all_dense();
  const at::NoGradGuard no_grad;
  const PublicCall call("gather()");
  require_same(
      group,
      "gather",
      list_of(
          parts,
          is_debugging(group) ? dtype_and_shape : dtype_and_row,
          {.values = true}),
      "tensors may differ in dimension 0 only, so call pad_across_processes "
      "first, or gather_object for other values");
  require_all_dense();
  for (at::Tensor* const tensor : parts.tensors) {
    if (!tensor->defined()) continue;
    const at::Tensor rows = tensor->dim() == 0 ? tensor->reshape({1}) : *tensor;
    *tensor = at::cat(group.all_gather_uneven(rows.detach()), 0);
  }
  gather_lists(parts, group);
}

void reduce_in_place(
    const NestedParts& parts,
    const Group& group,
    std::optional<ReduceOp> op,
    double scale) {
  const at::NoGradGuard no_grad;
  const PublicCall call("reduce()");
  if (op && group.size() > 1) {
    require_same(
        group,
        "reduce",
        format(
            "{} of {}",
            kOperations[static_cast<std::size_t>(*op)],
            list_of(parts, dtype_and_shape, kEverything)),
        "pass the same dtypes and shapes");
  }
  for (at::Tensor* const tensor : parts.tensors) {
    if (!tensor->defined()) continue;
    if (op) require_dense("reduce", *tensor);
    at::Tensor result = tensor->detach().clone(at::MemoryFormat::Contiguous);
    *tensor = result;
    if (!op) continue;
    // On one rank, a mean of integers is defined.
    if (group.size() == 1 && *op == ReduceOp::mean) continue;
    // Also checks the tensor on a single rank.
    group.all_reduce(result, *op);
    if (group.size() == 1) continue;
    *tensor = scale == 1.0 ? result : result.mul(scale);
  }
}

void broadcast_in_place(
    const NestedParts& parts,
    const Group& group,
    int from_process) {
  const at::NoGradGuard no_grad;
  const PublicCall call("broadcast()");
  if (group.size() > 1) {
    require_same(
        group,
        "broadcast",
        format("{} from {}", list_of(parts, dtype_and_shape, {}), from_process),
        "pass the same dtypes and shapes, or use broadcast_object");
  }
  for (at::Tensor* const tensor : parts.tensors) {
    if (!tensor->defined()) continue;
    at::Tensor result = tensor->detach().clone(at::MemoryFormat::Contiguous);
    group.broadcast(result, from_process);
    *tensor = result;
  }
  if (group.size() == 1 || (parts.lists.empty() && parts.values.empty()))
    return;
  const bool is_sender = group.rank() == from_process;
  leaves_from_bytes(
      group.broadcast_bytes(
          is_sender ? leaves_to_bytes(parts) : std::string(), from_process),
      parts);
}

void pad_in_place(
    const NestedParts& parts,
    const Group& group,
    std::int64_t dim,
    double pad_index,
    bool pad_first) {
  const at::NoGradGuard no_grad;
  const PublicCall call("pad_across_processes()");
  std::string complaint;
  for (const at::Tensor* const tensor : parts.tensors) {
    const bool is_padded =
        tensor->defined() && dim < tensor->dim() && dim >= -tensor->dim();
    if (is_padded && complaint.empty() &&
        !can_hold(tensor->scalar_type(), pad_index)) {
      complaint = c10::toString(tensor->scalar_type());
    }
  }
  if (group.size() > 1) {
    const auto num_dimensions = [](const at::Tensor& tensor) {
      return format("{} dimensions", tensor.dim());
    };
    require_same(
        group,
        "pad_across_processes",
        list_of(parts, num_dimensions, {.list_sizes = true}) +
            (complaint.empty()
                 ? ""
                 : format(" with {} in {}", pad_index, complaint)),
        "pass tensors with the same numbers of dimensions");
  }
  if (!complaint.empty()) {
    throw ConfigError(format(
        "[nested] pad_index must be a value of the tensors that "
        "pad_across_processes pads, but is {}, which {} does not have",
        pad_index,
        complaint));
  }
  for (at::Tensor* const tensor : parts.tensors) {
    if (!tensor->defined()) continue;
    if (dim >= tensor->dim() || dim < -tensor->dim()) continue;
    const at::Tensor largest = at::full({}, tensor->size(dim), at::kLong);
    group.all_reduce(largest, ReduceOp::max);
    const auto size = largest.item<std::int64_t>();
    if (size == tensor->size(dim)) continue;
    std::vector<std::int64_t> shape = tensor->sizes().vec();
    const std::int64_t at = dim < 0 ? dim + tensor->dim() : dim;
    shape[static_cast<std::size_t>(at)] = size;
    at::Tensor padded = at::full(shape, pad_index, tensor->options());
    const std::int64_t start = pad_first ? size - tensor->size(at) : 0;
    padded.narrow(at, start, tensor->size(at)).copy_(*tensor);
    *tensor = padded;
  }
}

}  // namespace detail

}  // namespace accelerate
