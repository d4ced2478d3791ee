#include "format/torch/torch_tensor.h"

#include <array>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using safetensors::Dtype;
using safetensors::Shape;
using PickleKind = Pickle::Kind;
using Value = Pickle::Value;

// Names of typed storages, and of dtypes that have no storage class in Python.
// LibTorch's C++ functions write storages of every dtype.
constexpr std::array<std::pair<std::string_view, Dtype>, 38> kTypeNames{{
    {"torch FloatStorage", Dtype::F32},
    {"torch DoubleStorage", Dtype::F64},
    {"torch HalfStorage", Dtype::F16},
    {"torch BFloat16Storage", Dtype::BF16},
    {"torch LongStorage", Dtype::I64},
    {"torch IntStorage", Dtype::I32},
    {"torch ShortStorage", Dtype::I16},
    {"torch CharStorage", Dtype::I8},
    {"torch ByteStorage", Dtype::U8},
    {"torch BoolStorage", Dtype::BOOL},
    {"torch ComplexFloatStorage", Dtype::C64},
    {"torch UInt16Storage", Dtype::U16},
    {"torch UInt32Storage", Dtype::U32},
    {"torch UInt64Storage", Dtype::U64},
    {"torch Float8_e4m3fnStorage", Dtype::F8_E4M3},
    {"torch Float8_e5m2Storage", Dtype::F8_E5M2},
    {"torch Float8_e4m3fnuzStorage", Dtype::F8_E4M3FNUZ},
    {"torch Float8_e5m2fnuzStorage", Dtype::F8_E5M2FNUZ},
    {"torch Float8_e8m0fnuStorage", Dtype::F8_E8M0},
    {"torch float32", Dtype::F32},
    {"torch float64", Dtype::F64},
    {"torch float16", Dtype::F16},
    {"torch bfloat16", Dtype::BF16},
    {"torch int64", Dtype::I64},
    {"torch int32", Dtype::I32},
    {"torch int16", Dtype::I16},
    {"torch int8", Dtype::I8},
    {"torch uint8", Dtype::U8},
    {"torch bool", Dtype::BOOL},
    {"torch complex64", Dtype::C64},
    {"torch uint16", Dtype::U16},
    {"torch uint32", Dtype::U32},
    {"torch uint64", Dtype::U64},
    {"torch float8_e4m3fn", Dtype::F8_E4M3},
    {"torch float8_e5m2", Dtype::F8_E5M2},
    {"torch float8_e4m3fnuz", Dtype::F8_E4M3FNUZ},
    {"torch float8_e5m2fnuz", Dtype::F8_E5M2FNUZ},
    {"torch float8_e8m0fnu", Dtype::F8_E8M0},
}};

bool is_function(const Value& function, std::string_view name) {
  return function.kind() == PickleKind::global &&
      is_global(function.text(), name);
}

bool has_flag(const Value& dict, std::string_view key) {
  if (dict.kind() != PickleKind::dict) return false;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const Value name = dict.key(i);
    if (name.kind() == PickleKind::text && name.text() == key)
      return dict.value(i).integer() != 0;
  }
  return false;
}

HiddenBits hidden_bits_in(const Value& arguments, std::size_t index) {
  if (arguments.size() <= index) return {};
  const Value marks = without_type(arguments.item(index));
  return {has_flag(marks, "conj"), has_flag(marks, "neg")};
}

std::optional<TensorCall> tensor_call(
    const Value& function,
    const Value& arguments,
    const TensorPlace& place) {
  if (is_function(function, "torch._tensor _rebuild_from_type_v2") ||
      is_function(function, "torch._tensor _rebuild_from_type")) {
    // (function, type, its arguments, attributes)
    return tensor_call(arguments.item(0), arguments.item(2), place);
  }
  if (is_function(function, "torch._utils _rebuild_parameter") ||
      is_function(function, "torch._utils _rebuild_parameter_with_state")) {
    auto parameter = tensor_call_in(arguments.item(0), place);
    if (!parameter) place.fail("it is a parameter without a tensor");
    parameter->requires_grad = arguments.item(1).integer() != 0;
    return parameter;
  }
  const bool has_dtype =
      is_function(function, "torch._utils _rebuild_tensor_v3");
  if (has_dtype || is_function(function, "torch._utils _rebuild_tensor_v2")) {
    TensorCall call{arguments, std::nullopt, false, {}};
    if (has_dtype) call.dtype = arguments.item(6);
    call.requires_grad = arguments.item(4).integer() != 0;
    call.hidden_bits = hidden_bits_in(arguments, has_dtype ? 7 : 6);
    return call;
  }
  if (is_function(function, "torch._utils _rebuild_tensor"))
    return TensorCall{arguments, std::nullopt, false, {}};
  const bool is_global = function.kind() == PickleKind::global;
  if (is_global && function.text().starts_with("torch._utils\n_rebuild_")) {
    place.fail(format(
        "it was made by {}, so it is sparse, quantised, without values or "
        "otherwise unsupported; save a dense tensor in its place",
        printable(function.text().substr(function.text().find('\n') + 1))));
  }
  return std::nullopt;
}

}  // namespace

std::size_t element_bytes(Dtype dtype) {
  return static_cast<std::size_t>(safetensors::bits_of(dtype)) / 8;
}

std::optional<Dtype> torch_dtype_of(const Value& value) {
  if (value.kind() != PickleKind::global) return std::nullopt;
  for (const auto& [known, dtype] : kTypeNames) {
    if (is_global(value.text(), known)) return dtype;
  }
  return std::nullopt;
}

Value without_type(const Value& value) {
  if (value.kind() != PickleKind::call ||
      value.item(0).kind() != PickleKind::global)
    return value;
  const std::string_view function = value.item(0).text();
  const bool is_typed =
      function.starts_with("torch.jit._pickle\n") && value.item(1).size() > 0;
  return is_typed ? without_type(value.item(1).item(0)) : value;
}

void TensorPlace::fail(std::string_view what) const {
  const std::string tensor =
      name.empty() ? "a tensor" : format("\"{}\"", printable(name));
  throw CheckpointError(format("[torch] {} of {}: {}", tensor, path, what));
}

std::optional<TensorCall> tensor_call_in(
    const Value& value,
    const TensorPlace& place) {
  if (value.kind() != PickleKind::call) return std::nullopt;
  return tensor_call(value.item(0), value.item(1), place);
}

Shape torch_shape_in(const Value& value, const TensorPlace& place) {
  Shape shape;
  if (value.size() > kMostDimensions) {
    place.fail(format(
        "it has {} sizes or strides, but at most {} are read",
        value.size(),
        kMostDimensions));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::int64_t size = value.item(i).integer();
    if (size < 0) place.fail("a size or stride is negative");
    shape.push_back(static_cast<std::uint64_t>(size));
  }
  return shape;
}

bool TorchTensor::is_contiguous() const {
  std::uint64_t expected = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

std::vector<std::byte> TorchTensor::contiguous() const {
  const std::size_t width = element_bytes(dtype);
  const std::uint64_t count = safetensors::bytes_of(dtype, sizes).value_or(0);
  std::vector<std::byte> out(count);
  if (count == 0) return out;
  if (is_contiguous()) {
    std::memcpy(out.data(), bytes.data() + offset * width, count);
    resolve(hidden_bits, dtype, out);
    return out;
  }
  Shape index(sizes.size(), 0);
  for (std::uint64_t at = 0; at < count; at += width) {
    std::uint64_t from = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      from += index[i] * strides[i];
    }
    std::memcpy(out.data() + at, bytes.data() + from * width, width);
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (++index[i] < sizes[i]) break;
      index[i] = 0;
    }
  }
  resolve(hidden_bits, dtype, out);
  return out;
}

}  // namespace accelerate::detail
