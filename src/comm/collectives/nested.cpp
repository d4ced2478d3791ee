#include <accelerate/nested.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/collectives/group_impl.h"
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

// Lists what `describe` returns for each tensor.
template <class Describe>
std::string list_of(
    const std::vector<at::Tensor>& tensors,
    Describe&& describe) {
  std::vector<std::string> words;
  for (const at::Tensor& tensor : tensors)
    words.push_back(tensor.defined() ? describe(tensor) : "undefined");
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
      "[comm] {} was given different values on different ranks; {}:\n  {}",
      function,
      advice,
      join(all, "\n  ")));
}

}  // namespace

void gather_in_place(std::vector<at::Tensor>& tensors, const Group& group) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) require_dense("gather", tensor);
  }
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  require_same(
      group,
      "gather",
      is_debugging(group) ? list_of(tensors, dtype_and_shape)
                          : list_of(tensors, dtype_and_row),
      "tensors may differ in dimension 0 only, so call pad_across_processes "
      "first, or gather_object for other values");
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
    tensor = at::cat(group.all_gather_uneven(rows.detach()), 0);
  }
}

void reduce_in_place(
    std::vector<at::Tensor>& tensors,
    const Group& group,
    std::optional<ReduceOp> op,
    double scale) {
  const at::NoGradGuard no_grad;
  if (op && group.size() > 1) {
    require_same(
        group,
        "reduce",
        format(
            "{} of {}",
            kOperations[static_cast<std::size_t>(*op)],
            list_of(tensors, dtype_and_shape)),
        "give it the same dtypes and shapes");
  }
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (op) require_dense("reduce", tensor);
    at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
    tensor = result;
    if (!op) continue;
    // On one rank, a mean of integers is defined.
    if (group.size() == 1 && *op == ReduceOp::mean) continue;
    // Also checks the tensor on a single rank.
    group.all_reduce(result, *op);
    if (group.size() == 1) continue;
    tensor = scale == 1.0 ? result : result.mul(scale);
  }
}

void broadcast_in_place(
    std::vector<at::Tensor>& tensors,
    const Group& group,
    int from_process) {
  const at::NoGradGuard no_grad;
  if (group.size() > 1) {
    require_same(
        group,
        "broadcast",
        format("{} from {}", list_of(tensors, dtype_and_shape), from_process),
        "give it the same dtypes and shapes, or use broadcast_object");
  }
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
    group.broadcast(result, from_process);
    tensor = result;
  }
}

void pad_in_place(
    std::vector<at::Tensor>& tensors,
    const Group& group,
    std::int64_t dim,
    double pad_index,
    bool pad_first) {
  const at::NoGradGuard no_grad;
  if (group.size() > 1) {
    const auto num_dimensions = [](const at::Tensor& tensor) {
      return format("{} dimensions", tensor.dim());
    };
    require_same(
        group,
        "pad_across_processes",
        list_of(tensors, num_dimensions),
        "give it tensors with the same numbers of dimensions");
  }
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (dim >= tensor.dim() || dim < -tensor.dim()) continue;
    const at::Tensor largest = at::full({}, tensor.size(dim), at::kLong);
    group.all_reduce(largest, ReduceOp::max);
    const auto size = largest.item<std::int64_t>();
    if (size == tensor.size(dim)) continue;
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    const std::int64_t at = dim < 0 ? dim + tensor.dim() : dim;
    shape[static_cast<std::size_t>(at)] = size;
    at::Tensor padded = at::full(shape, pad_index, tensor.options());
    const std::int64_t start = pad_first ? size - tensor.size(at) : 0;
    padded.narrow(at, start, tensor.size(at)).copy_(tensor);
    tensor = padded;
  }
}

at::Tensor concatenate_rows(
    const std::vector<at::Tensor>& tensors,
    std::int64_t dim) {
  if (tensors.empty()) {
    throw ConfigError(
        "[nested] concatenate was given nothing, or values of different "
        "structure; give it values with the same tensors in the same places");
  }
  return at::cat(tensors, dim);
}

at::Tensor pad_rows(
    const at::Tensor& tensor,
    std::int64_t batch_size,
    std::int64_t num_processes,
    std::int64_t dim) {
  if (!tensor.defined() || tensor.dim() == 0) return tensor;
  if (num_processes < 1 || batch_size < 0) {
    throw ConfigError(format(
        "[nested] pad_input_tensors was given a batch of {} for {} processes",
        batch_size,
        num_processes));
  }
  const std::int64_t each = batch_size / num_processes;
  const std::int64_t rest = batch_size - each * num_processes;
  std::int64_t missing =
      each == 0 ? num_processes - batch_size : num_processes - each;
  if (missing < 1 && rest > missing) missing = rest - missing;
  if (missing <= 0) return tensor;
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  const std::int64_t at = dim < 0 ? dim + tensor.dim() : dim;
  if (at < 0 || at >= tensor.dim()) return tensor;
  shape[static_cast<std::size_t>(at)] = batch_size + missing;
  at::Tensor padded = at::zeros(shape, tensor.options());
  padded.narrow(at, 0, tensor.size(at)).copy_(tensor);
  return padded;
}

void copy_numbers(
    const at::Tensor& tensor,
    std::vector<std::int64_t>& numbers) {
  if (!tensor.defined()) return;
  if (!at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    throw ConfigError(format(
        "[nested] listify was asked for integers of a tensor of {}; ask for "
        "double",
        tensor.scalar_type()));
  }
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kLong).contiguous();
  const std::int64_t* data = flat.const_data_ptr<std::int64_t>();
  const auto size = static_cast<std::size_t>(flat.numel());
  const bool is_unsigned = tensor.scalar_type() == at::kUInt64;
  if (is_unsigned && std::any_of(data, data + size, [](std::int64_t number) {
        return number < 0;
      })) {
    throw ConfigError(
        "[nested] listify was given a UInt64 tensor with 2^63 or more, which "
        "no std::int64_t holds");
  }
  numbers.insert(numbers.end(), data, data + size);
}

void copy_numbers(const at::Tensor& tensor, std::vector<double>& numbers) {
  if (!tensor.defined()) return;
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == at::kLong || dtype == at::kUInt64) {
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    std::vector<std::int64_t> integers;
    copy_numbers(tensor, integers);
    for (const std::int64_t number : integers) {
      if (number > kMost || number < -kMost) {
        throw ConfigError(format(
            "[nested] listify would round {} to a double; ask for integers: "
            "listify<std::int64_t>(value)",
            number));
      }
      numbers.push_back(static_cast<double>(number));
    }
    return;
  }
  const at::Tensor flat =
      tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  numbers.insert(numbers.end(), data, data + flat.numel());
}

at::Tensor
slice_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end) {
  if (!tensor.defined() || tensor.dim() == 0) {
    throw ConfigError(
        "[nested] slice_tensors was given a tensor without dimensions; give it "
        "batches");
  }
  return tensor.slice(0, begin, end);
}

std::pair<std::int64_t, std::int64_t>
share_of(std::int64_t size, int rank, int count) {
  const std::int64_t each = size / count;
  const std::int64_t extra = size % count;
  const std::int64_t begin = each * rank + std::min<std::int64_t>(rank, extra);
  return {begin, begin + each + (rank < extra ? 1 : 0)};
}

void require_equal_lengths(
    const std::vector<std::int64_t>& lengths,
    bool is_padded) {
  for (const std::int64_t length : lengths) {
    if (length != lengths.front()) {
      throw ConfigError(format(
          "[nested] split_between_processes was given values of {} and {} "
          "items; give it values of equal length",
          lengths.front(),
          length));
    }
    if (length == 0 && is_padded) {
      throw ConfigError(
          "[nested] split_between_processes cannot pad an empty value; leave "
          "apply_padding out");
    }
  }
}

}  // namespace detail

at::Tensor split_between_processes(
    const at::Tensor& tensor,
    const Group& group,
    bool apply_padding) {
  if (tensor.dim() == 0) return tensor.clone();
  const std::int64_t size = tensor.size(0);
  const auto [begin, end] = detail::share_of(size, group.rank(), group.size());
  const at::Tensor own = tensor.slice(0, begin, end);
  const std::int64_t missing =
      (size + group.size() - 1) / group.size() - own.size(0);
  if (!apply_padding || size == 0 || missing <= 0) return own.clone();
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tensor.dim()), -1);
  shape[0] = missing;
  return at::cat({own, tensor.slice(0, size - 1).expand(shape)}, 0);
}

}  // namespace accelerate
