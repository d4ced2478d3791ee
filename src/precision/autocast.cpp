#include <ATen/autocast_mode.h>

#include <accelerate/error.h>
#include <accelerate/precision.h>

#include "base/text/text.h"

namespace accelerate {

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::no:
      return "no";
    case Precision::fp16:
      return "fp16";
    case Precision::bf16:
      return "bf16";
    case Precision::fp8:
      return "fp8";
  }
  return "unknown";
}

Precision parse_precision(std::string_view name) {
  const std::string lower = detail::to_lower(name);
  for (const Precision precision :
       {Precision::no, Precision::fp16, Precision::bf16, Precision::fp8}) {
    if (lower == name_of(precision)) return precision;
  }
  throw ConfigError(detail::format(
      "[precision] mixed precision must be no, fp16, "
      "bf16 or fp8, but is \"{}\"",
      name));
}

AutocastScope::AutocastScope(
    c10::DeviceType device_type,
    std::optional<c10::ScalarType> dtype,
    const AutocastOptions& options)
    : device_type_(device_type),
      was_enabled_(at::autocast::is_autocast_enabled(device_type)),
      was_caching_(at::autocast::is_autocast_cache_enabled()),
      previous_dtype_(at::autocast::get_autocast_dtype(device_type)) {
  at::autocast::set_autocast_enabled(
      device_type, dtype.has_value() && options.enabled);
  if (dtype) at::autocast::set_autocast_dtype(device_type, *dtype);
  at::autocast::set_autocast_cache_enabled(
      options.cache_enabled.value_or(was_caching_));
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
  at::autocast::set_autocast_dtype(device_type_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(was_caching_);
}

}  // namespace accelerate
