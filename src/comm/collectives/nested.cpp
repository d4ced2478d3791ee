#include <accelerate/nested.h>

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/collectives/group_impl.h"

namespace accelerate {

namespace detail {

namespace {

void require_same_shapes(
    const at::Tensor& tensor,
    const Group& group,
    const char* operation) {
  const GroupImpl& impl = *group.impl();
  if (!impl.world || !impl.world->debug) return;
  check_agreement(
      impl,
      operation,
      format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes()));
}

}  // namespace

void gather_in_place(std::vector<at::Tensor>& tensors, const Group& group) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    require_same_shapes(tensor, group, "gather");
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
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
    tensor = result;
    if (!op || group.size() == 1) continue;
    group.all_reduce(result, *op);
    tensor = scale == 1.0 ? result : result.mul(scale);
  }
}

void broadcast_in_place(
    std::vector<at::Tensor>& tensors,
    const Group& group,
    int from_process) {
  const at::NoGradGuard no_grad;
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
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const GroupImpl& impl = *group.impl();
    if (impl.world && impl.world->debug) {
      check_agreement(
          impl, "pad_across_processes", format("{} dimensions", tensor.dim()));
    }
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
