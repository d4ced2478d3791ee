#include "precision/support.h"

#include <ATen/autocast_mode.h>

#include "base/text/text.h"

namespace accelerate::detail {

std::optional<c10::ScalarType> autocast_dtype(Precision precision) {
  switch (precision) {
    case Precision::no:
      return std::nullopt;
    case Precision::fp16:
      return c10::kHalf;
    case Precision::bf16:
      return c10::kBFloat16;
    case Precision::fp8:
      return c10::kBFloat16;
  }
  return std::nullopt;
}

std::optional<std::string> precision_complaint(
    Precision precision,
    c10::Device device) {
  if (precision == Precision::no) return std::nullopt;
  if (!at::autocast::is_autocast_available(device.type())) {
    return format(
        "[precision] mixed precision {} is not possible on {}, for which "
        "LibTorch has no autocast; use no",
        name_of(precision),
        device.str());
  }
  return std::nullopt;
}

}  // namespace accelerate::detail
