#include "exported/graph/dtypes.h"

#include <optional>
#include <type_traits>
#include <variant>

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

c10::Device device_of(const ExportedDevice& device) {
  try {
    return c10::Device(
        device.index ? format("{}:{}", device.type, *device.index)
                     : device.type);
  } catch (const c10::Error&) {
    throw ConfigError(format(
        "[exported] a device of the program must be known, but is '{}'",
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
  switch (dtype) {
    case ExportedDtype::uint8:
      return at::kByte;
    case ExportedDtype::int8:
      return at::kChar;
    case ExportedDtype::int16:
      return at::kShort;
    case ExportedDtype::int32:
      return at::kInt;
    case ExportedDtype::int64:
      return at::kLong;
    case ExportedDtype::float16:
      return at::kHalf;
    case ExportedDtype::float32:
      return at::kFloat;
    case ExportedDtype::float64:
      return at::kDouble;
    case ExportedDtype::complex32:
      return at::kComplexHalf;
    case ExportedDtype::complex64:
      return at::kComplexFloat;
    case ExportedDtype::complex128:
      return at::kComplexDouble;
    case ExportedDtype::boolean:
      return at::kBool;
    case ExportedDtype::bfloat16:
      return at::kBFloat16;
    case ExportedDtype::uint16:
      return at::kUInt16;
    case ExportedDtype::float8_e4m3fn:
      return at::kFloat8_e4m3fn;
    case ExportedDtype::float8_e5m2:
      return at::kFloat8_e5m2;
    case ExportedDtype::float8_e4m3fnuz:
      return at::kFloat8_e4m3fnuz;
    case ExportedDtype::float8_e5m2fnuz:
      return at::kFloat8_e5m2fnuz;
    case ExportedDtype::float8_e8m0fnu:
      return at::kFloat8_e8m0fnu;
    case ExportedDtype::uint32:
      return at::kUInt32;
    case ExportedDtype::uint64:
      break;
  }
  return at::kUInt64;
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
