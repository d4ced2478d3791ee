#include "checkpoint/tensors/tensor_bytes.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/gate.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

using c10::ScalarType;
using safetensors::Dtype;

constexpr std::pair<ScalarType, Dtype> kDtypes[] = {
    {ScalarType::Bool, Dtype::BOOL},
    {ScalarType::Byte, Dtype::U8},
    {ScalarType::Char, Dtype::I8},
    {ScalarType::Short, Dtype::I16},
    {ScalarType::UInt16, Dtype::U16},
    {ScalarType::Int, Dtype::I32},
    {ScalarType::UInt32, Dtype::U32},
    {ScalarType::Long, Dtype::I64},
    {ScalarType::UInt64, Dtype::U64},
    {ScalarType::Half, Dtype::F16},
    {ScalarType::BFloat16, Dtype::BF16},
    {ScalarType::Float, Dtype::F32},
    {ScalarType::Double, Dtype::F64},
    {ScalarType::ComplexFloat, Dtype::C64},
    {ScalarType::Float8_e5m2, Dtype::F8_E5M2},
    {ScalarType::Float8_e4m3fn, Dtype::F8_E4M3},
    {ScalarType::Float8_e8m0fnu, Dtype::F8_E8M0},
    {ScalarType::Float8_e5m2fnuz, Dtype::F8_E5M2FNUZ},
    {ScalarType::Float8_e4m3fnuz, Dtype::F8_E4M3FNUZ},
    {ScalarType::Float4_e2m1fn_x2, Dtype::F4},
};

// Copies elements [begin, begin + count) of `tensor`, one row after another, to
// `out`, a flat tensor.
void copy_range(
    const at::Tensor& tensor,
    std::int64_t begin,
    std::int64_t count,
    const at::Tensor& out) {
  if (count == 0) return;
  if (count == tensor.numel()) {
    out.view(tensor.sizes()).copy_(tensor);
    return;
  }
  const std::int64_t row = tensor.numel() / tensor.size(0);
  std::int64_t done = 0;
  while (done < count) {
    const std::int64_t place = begin + done;
    const std::int64_t first = place / row;
    const std::int64_t inside = place % row;
    const std::int64_t left = count - done;
    std::int64_t taken = 0;
    if (inside == 0 && left >= row) {
      const std::int64_t rows = left / row;
      taken = rows * row;
      copy_range(
          tensor.narrow(0, first, rows), 0, taken, out.narrow(0, done, taken));
    } else {
      taken = std::min(left, row - inside);
      copy_range(
          tensor.select(0, first), inside, taken, out.narrow(0, done, taken));
    }
    done += taken;
  }
}

// Elements as integers, so that equality means equal bits, for any dtype.
at::Tensor bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    default:
      return tensor.view(at::kLong);
  }
}

// Where the elements of a view lie in memory, and the memory that follows.
struct Memory {
  /// The place of each element, one row after another.
  at::Tensor places;
  std::int64_t size = 1;

  explicit Memory(const at::Tensor& view) {
    for (std::int64_t dim = 0; dim < view.dim(); ++dim)
      size += (view.size(dim) - 1) * view.stride(dim);
    places = at::arange(size, at::kLong)
                 .as_strided(view.sizes(), view.strides())
                 .reshape(-1);
  }
};

// Memory in which each element of the view has its value; nothing if elements
// that share memory would differ.
at::Tensor memory_with(const Memory& memory, const at::Tensor& values) {
  const at::Tensor bits = bits_of(values.contiguous()).reshape(-1);
  const at::Tensor filled =
      at::zeros({memory.size}, bits.options()).scatter(0, memory.places, bits);
  const bool fits = at::equal(filled.index_select(0, memory.places), bits);
  return fits ? filled : at::Tensor();
}

}  // namespace

std::optional<Dtype> file_dtype(ScalarType dtype) {
  for (const auto& [torch, file] : kDtypes) {
    if (torch == dtype) return file;
  }
  return std::nullopt;
}

std::optional<ScalarType> torch_dtype(Dtype dtype) {
  for (const auto& [torch, file] : kDtypes) {
    if (file == dtype) return torch;
  }
  return std::nullopt;
}

safetensors::Shape file_shape(const at::Tensor& tensor) {
  safetensors::Shape shape;
  for (const std::int64_t size : tensor.sizes()) {
    shape.push_back(static_cast<std::uint64_t>(size));
  }
  if (tensor.scalar_type() == ScalarType::Float4_e2m1fn_x2) {
    if (shape.empty()) shape.push_back(1);
    shape.back() *= 2;
  }
  return shape;
}

std::vector<std::int64_t> torch_shape(
    Dtype dtype,
    const safetensors::Shape& shape) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  if (dtype == Dtype::F4) {
    if (sizes.empty() || sizes.back() % 2 != 0) {
      throw CheckpointError(
          "[checkpoint] 4-bit elements that do not fill whole bytes along the "
          "last dimension cannot be read into a tensor");
    }
    sizes.back() /= 2;
  }
  return sizes;
}

TensorToWrite described(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](std::string_view why) {
    throw ConfigError(
        format("[checkpoint] \"{}\" cannot be saved: {}", name, why));
  };
  if (tensor.layout() != c10::kStrided) {
    refuse("it is sparse; save its values and indices as tensors of their own");
  }
  if (tensor.is_quantized()) refuse("it is quantized; save its int_repr()");
  const auto dtype = file_dtype(tensor.scalar_type());
  if (!dtype) {
    refuse(format(
        "safetensors has no dtype {}; save a view of another dtype",
        c10::toString(tensor.scalar_type())));
  }
  TensorToWrite wanted;
  wanted.dtype = *dtype;
  wanted.shape = file_shape(tensor);
  wanted.bytes.num_bytes = tensor.nbytes();
  return wanted;
}

const void* memory_of(const at::Tensor& tensor) {
  return is_behind_operators(tensor)
      ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
      : tensor.const_data_ptr();
}

TensorToWrite to_write(const std::string& name, const at::Tensor& given) {
  if (given.is_meta()) {
    throw ConfigError(format(
        "[checkpoint] \"{}\" cannot be saved: it has no values (a meta "
        "tensor); materialise it first",
        name));
  }
  TensorToWrite wanted = described(name, given);
  // Operators fetch offloaded tensors, and give the values of codes.
  const bool is_fetched = is_behind_operators(given);
  const at::Tensor tensor = is_fetched
      ? given.variable_data()
      : given.detach().resolve_conj().resolve_neg();
  if (tensor.is_cpu() && tensor.is_contiguous() && !is_fetched) {
    wanted.bytes.data = static_cast<const std::byte*>(tensor.const_data_ptr());
    // Keeps the memory alive; never called.
    wanted.bytes.copy = [tensor](std::uint64_t, std::span<std::byte>) {};
    return wanted;
  }
  wanted.bytes.copy = [tensor](std::uint64_t begin, std::span<std::byte> out) {
    const at::NoGradGuard no_grad;
    const auto width = static_cast<std::uint64_t>(tensor.element_size());
    const auto count = static_cast<std::int64_t>(out.size() / width);
    const at::Tensor flat =
        at::from_blob(out.data(), {count}, tensor.options().device(at::kCPU));
    copy_range(tensor, static_cast<std::int64_t>(begin / width), count, flat);
  };
  return wanted;
}

void prefer_huge_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20U;
  if (!tensor.is_cpu() || !tensor.is_contiguous()) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const std::uintptr_t last = (begin + tensor.nbytes()) / kPage * kPage;
  // A hint, which the kernel may ignore.
  if (first < last) {
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

bool may_share_elements(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, size
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1)
      steps.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::ranges::sort(steps);
  // Each dimension must step over all that the ones with smaller strides span.
  std::int64_t span = 1;
  for (const auto& [stride, size] : steps) {
    if (stride < span) return true;
    span += (size - 1) * stride;
  }
  return false;
}

bool can_assign(const at::Tensor& target, const at::Tensor& values) {
  if (!may_share_elements(target)) return true;
  return memory_with(Memory(target), values).defined();
}

bool assign(const at::Tensor& target, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  if (!may_share_elements(target)) {
    target.copy_(values);
    return true;
  }
  if (target.is_conj()) return assign(target.conj(), values.conj());
  if (target.is_neg()) return assign(target._neg_view(), values.neg());
  const Memory memory(target);
  const at::Tensor host = values.resolve_conj().resolve_neg().to(
      at::TensorOptions(at::kCPU).dtype(target.scalar_type()));
  const at::Tensor filled = memory_with(memory, host);
  if (!filled.defined()) return false;
  const at::Tensor bits =
      bits_of(target).as_strided({memory.size}, {1}, target.storage_offset());
  const at::Tensor places = memory.places.to(target.device());
  bits.scatter_(0, places, filled.to(target.device()).index_select(0, places));
  return true;
}

}  // namespace accelerate::detail
