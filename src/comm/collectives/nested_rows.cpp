#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>
#include <accelerate/nested.h>

#include "base/text/text.h"

namespace accelerate {

namespace detail {

namespace {

// Appends zeros along `dim`, up to `size`.
void pad_tensor(at::Tensor& tensor, std::int64_t size, std::int64_t dim) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  const std::int64_t at = dim < 0 ? dim + tensor.dim() : dim;
  if (at < 0 || at >= tensor.dim()) return;
  shape[static_cast<std::size_t>(at)] = size;
  const at::Tensor padded = at::zeros(shape, tensor.options());
  padded.narrow(at, 0, tensor.size(at)).copy_(tensor);
  tensor = padded;
}

}  // namespace

void slice_in_place(
    const NestedParts& parts,
    std::int64_t begin,
    std::int64_t end) {
  require_rows(
      "[nested] slice_tensors",
      parts,
      rows_of(parts).value_or(0),
      /*checks_tensors=*/false);
  cut_rows(parts, begin, end);
}

void pad_rows(
    const NestedParts& parts,
    std::int64_t batch_size,
    std::int64_t num_processes,
    std::int64_t dim) {
  if (num_processes < 1 || batch_size < 0) {
    throw ConfigError(format(
        "[nested] pad_input_tensors cannot divide a batch of {} among {} "
        "processes",
        batch_size,
        num_processes));
  }
  const std::int64_t each = batch_size / num_processes;
  const std::int64_t rest = batch_size - each * num_processes;
  std::int64_t missing =
      each == 0 ? num_processes - batch_size : num_processes - each;
  if (missing < 1 && rest > missing) missing = rest - missing;
  if (missing <= 0) return;
  for (at::Tensor* const tensor : parts.tensors) {
    if (tensor->defined() && tensor->dim() > 0)
      pad_tensor(*tensor, batch_size + missing, dim);
  }
  if (dim != 0) return;
  require_rows(
      "[nested] pad_input_tensors",
      parts,
      batch_size,
      /*checks_tensors=*/false);
  for (const NestedLeaf& list : parts.lists)
    list.operations->resize(list.object, batch_size + missing);
}

void copy_numbers(
    const at::Tensor& tensor,
    std::vector<std::int64_t>& numbers) {
  if (!tensor.defined()) return;
  if (!at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    throw ConfigError(format(
        "[nested] listify cannot return integers for a "
        "tensor of {}; ask for double",
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
        "[nested] listify cannot return a UInt64 of 2^63 or more as "
        "std::int64_t");
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

std::pair<std::int64_t, std::int64_t>
share_of(std::int64_t size, int rank, int count) {
  const std::int64_t each = size / count;
  const std::int64_t extra = size % count;
  const std::int64_t begin = each * rank + std::min<std::int64_t>(rank, extra);
  return {begin, begin + each + (rank < extra ? 1 : 0)};
}

std::int64_t
num_repeats(std::int64_t size, int rank, int count, bool apply_padding) {
  if (!apply_padding || size == 0) return 0;
  const auto [begin, end] = share_of(size, rank, count);
  const std::int64_t most = (size + count - 1) / count;
  return most - (end - begin);
}

std::optional<std::int64_t> first_size(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  }
  return std::nullopt;
}

void to_single(at::Tensor& tensor) {
  if (tensor.defined() &&
      (tensor.scalar_type() == at::kHalf ||
       tensor.scalar_type() == at::kBFloat16)) {
    tensor = tensor.to(at::kFloat);
  }
}

void require_equal_lengths(
    const std::vector<std::int64_t>& lengths,
    bool is_padded) {
  for (const std::int64_t length : lengths) {
    if (length != lengths.front()) {
      throw ConfigError(format(
          "[nested] values of split_between_processes must have equal lengths, "
          "but have {} and {} items",
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

void DeviceSender::operator()(at::Tensor& tensor) const {
  if (tensor.defined() && tensor.device() != device)
    tensor = tensor.to(device, options.non_blocking);
}

bool DeviceSender::enters(std::string_view key) const {
  const auto& skipped = options.skip_keys;
  return std::ranges::find(skipped, key) == skipped.end();
}

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
