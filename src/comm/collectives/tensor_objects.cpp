#include <accelerate/detail/object_bytes.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/safe_numerics.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The head of a serialized tensor; its sizes and its elements follow.
struct TensorHead {
  std::int64_t is_defined = 0;
  std::int64_t dtype = 0;
  std::int64_t device_type = 0;
  std::int64_t num_dims = 0;
};

DistributedError torn_tensor() {
  return DistributedError(
      "[comm] a tensor from another rank cannot be read; run the same program "
      "on all ranks");
}

void append(std::string& out, const void* bytes, std::size_t count) {
  if (count > 0) out.append(static_cast<const char*>(bytes), count);
}

void take(std::string_view& bytes, void* out, std::size_t count) {
  if (bytes.size() < count) throw torn_tensor();
  if (count > 0) std::memcpy(out, bytes.data(), count);
  bytes.remove_prefix(count);
}

void require_sendable(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) {
    throw ConfigError(format(
        "[comm] a sparse tensor of shape {} cannot be sent in an object; send "
        "its indices and values, or to_dense()",
        tensor.sizes()));
  }
  if (tensor.is_quantized()) {
    throw ConfigError(format(
        "[comm] a quantized tensor of shape {} cannot be sent in an object; "
        "send its int_repr() with its scale and zero point, or dequantize() it",
        tensor.sizes()));
  }
}

// Requires a LibTorch dtype that is not quantized.
c10::ScalarType dtype_of(const TensorHead& head) {
  const auto dtype = static_cast<c10::ScalarType>(head.dtype);
  if (head.dtype < 0 ||
      head.dtype >= static_cast<std::int64_t>(c10::ScalarType::Undefined) ||
      c10::isQIntType(dtype)) {
    throw torn_tensor();
  }
  return dtype;
}

// Number of bytes of the elements.
std::uint64_t num_bytes_of(
    const std::vector<std::int64_t>& sizes,
    c10::ScalarType dtype) {
  std::uint64_t count = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) {
    if (size < 0 ||
        c10::mul_overflows(count, static_cast<std::uint64_t>(size), &count)) {
      throw torn_tensor();
    }
  }
  return count;
}

}  // namespace

std::string tensor_to_bytes(const at::Tensor& given) {
  TensorHead head;
  std::string out;
  if (!given.defined()) {
    append(out, &head, sizeof head);
    return out;
  }
  require_sendable(given);
  head = {
      1,
      static_cast<std::int64_t>(given.scalar_type()),
      static_cast<std::int64_t>(given.device().type()),
      given.dim()};
  const at::NoGradGuard no_grad;
  at::Tensor tensor;
  std::size_t num_bytes = 0;
  if (!given.is_meta()) {
    tensor =
        given.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
    num_bytes = tensor.nbytes();
  }
  const auto num_dims = static_cast<std::size_t>(head.num_dims);
  out.reserve(sizeof head + num_dims * sizeof(std::int64_t) + num_bytes);
  append(out, &head, sizeof head);
  append(out, given.sizes().data(), num_dims * sizeof(std::int64_t));
  if (num_bytes > 0) append(out, tensor.const_data_ptr(), num_bytes);
  return out;
}

at::Tensor tensor_from_bytes(std::string_view bytes) {
  TensorHead head;
  take(bytes, &head, sizeof head);
  if (head.is_defined == 0) {
    if (!bytes.empty()) throw torn_tensor();
    return {};
  }
  const c10::ScalarType dtype = dtype_of(head);
  const auto device = static_cast<c10::DeviceType>(head.device_type);
  if (!c10::isValidDeviceType(device) || head.num_dims < 0 ||
      static_cast<std::uint64_t>(head.num_dims) >
          bytes.size() / sizeof(std::int64_t)) {
    throw torn_tensor();
  }
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(head.num_dims));
  take(bytes, sizes.data(), sizes.size() * sizeof(std::int64_t));
  const std::uint64_t num_bytes = num_bytes_of(sizes, dtype);
  if (device == c10::kMeta) {
    if (!bytes.empty()) throw torn_tensor();
    return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
  }
  if (bytes.size() != num_bytes) throw torn_tensor();
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = at::empty(sizes, dtype);
  if (num_bytes > 0) take(bytes, tensor.mutable_data_ptr(), bytes.size());
  return device == c10::kCPU ? tensor : tensor.to(at::Device(device));
}

}  // namespace accelerate::detail
