#include "exported/graph/dtypes.h"

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::pair<ExportedDtype, at::ScalarType> kScalarTypes[] = {
    {ExportedDtype::uint8, at::kByte},
    {ExportedDtype::int8, at::kChar},
    {ExportedDtype::int16, at::kShort},
    {ExportedDtype::int32, at::kInt},
    {ExportedDtype::int64, at::kLong},
    {ExportedDtype::float16, at::kHalf},
    {ExportedDtype::float32, at::kFloat},
    {ExportedDtype::float64, at::kDouble},
    {ExportedDtype::complex32, at::kComplexHalf},
    {ExportedDtype::complex64, at::kComplexFloat},
    {ExportedDtype::complex128, at::kComplexDouble},
    {ExportedDtype::boolean, at::kBool},
    {ExportedDtype::bfloat16, at::kBFloat16},
    {ExportedDtype::uint16, at::kUInt16},
    {ExportedDtype::float8_e4m3fn, at::kFloat8_e4m3fn},
    {ExportedDtype::float8_e5m2, at::kFloat8_e5m2},
    {ExportedDtype::float8_e4m3fnuz, at::kFloat8_e4m3fnuz},
    {ExportedDtype::float8_e5m2fnuz, at::kFloat8_e5m2fnuz},
    {ExportedDtype::float8_e8m0fnu, at::kFloat8_e8m0fnu},
    {ExportedDtype::uint32, at::kUInt32},
    {ExportedDtype::uint64, at::kUInt64}};

c10::Device device_of(const ExportedDevice& device) {
  try {
    return c10::Device(
        device.index ? format("{}:{}", device.type, *device.index)
                     : device.type);
  } catch (const c10::Error&) {
    throw ConfigError(format(
        "[exported] a device of the program must be known "
        "to LibTorch, but is '{}'",
        printable(device.type)));
  }
}

at::MemoryFormat memory_format_of(ExportedMemoryFormat memory_format) {
  switch (memory_format) {
    case ExportedMemoryFormat::contiguous:
      return at::MemoryFormat::Contiguous;
    case ExportedMemoryFormat::channels_last:
      return at::MemoryFormat::ChannelsLast;
    case ExportedMemoryFormat::channels_last_3d:
      return at::MemoryFormat::ChannelsLast3d;
    case ExportedMemoryFormat::preserve:
      break;
  }
  return at::MemoryFormat::Preserve;
}

}  // namespace

at::ScalarType scalar_type(ExportedDtype dtype) {
  for (const auto& [exported, type] : kScalarTypes)
    if (exported == dtype) return type;
  throw InternalError("[exported] a dtype is missing in the table");
}

std::optional<at::ScalarType> scalar_type(const std::string& name) {
  constexpr std::int64_t kMostNumber = 64;
  for (std::int64_t number = 0; number < kMostNumber; ++number) {
    const auto dtype = exported_dtype(number);
    if (dtype && name_of(*dtype) == name) return scalar_type(*dtype);
  }
  return std::nullopt;
}

c10::IValue constant_value(const ExportedArgument& argument) {
  return std::visit(
      [](const auto& value) -> c10::IValue {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, ExportedDtype>) {
          return static_cast<std::int64_t>(scalar_type(value));
        } else if constexpr (std::is_same_v<Value, ExportedMemoryFormat>) {
          return static_cast<std::int64_t>(memory_format_of(value));
        } else if constexpr (std::is_same_v<Value, ExportedStrided>) {
          return static_cast<std::int64_t>(at::kStrided);
        } else if constexpr (std::is_same_v<Value, ExportedDevice>) {
          return device_of(value);
        } else if constexpr (std::is_same_v<Value, std::complex<double>>) {
          return c10::complex<double>(value.real(), value.imag());
        } else if constexpr (
            std::is_same_v<Value, bool> || std::is_same_v<Value, double> ||
            std::is_same_v<Value, std::int64_t> ||
            std::is_same_v<Value, std::string>) {
          return value;
        } else {
          return {};
        }
      },
      argument.value);
}

}  // namespace accelerate::detail
