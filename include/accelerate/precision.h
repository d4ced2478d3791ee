#pragma once

#include <optional>
#include <string_view>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <accelerate/export.h>

namespace accelerate {

/// The precision in which the forward pass computes: `fp16` and `bf16` by
/// autocast; `fp8` casts the products of linear layers as well (fp8.h). `no`
/// leaves every tensor unchanged.
enum class Precision { no, fp16, bf16, fp8 };

/// "no", "fp16", "bf16" or "fp8".
ACCELERATE_API std::string_view name_of(Precision precision);
/// Ignores case. Throws ConfigError for another name.
ACCELERATE_API Precision parse_precision(std::string_view name);

struct AutocastOptions {
  /// If false, the block computes in full precision, whatever the enclosing
  /// scope.
  bool enabled = true;
  /// Keep low-precision copies of weights until the outermost scope ends, so
  /// that a weight used twice is converted once. Costs their memory. Set it to
  /// false if weights change inside the scope: the copies would not. Unset:
  /// this thread's setting, which is on by default.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// While it lives, operations on this thread that benefit from it run in
/// `dtype` on devices of `device_type`, as in torch.autocast. Scopes nest; the
/// end of the outermost drops the cached low-precision weights. Destroy it on
/// the thread that made it, in reverse order of construction.
class ACCELERATE_API AutocastScope {
 public:
  /// With `dtype` empty, autocast is off inside.
  AutocastScope(
      c10::DeviceType device_type,
      std::optional<c10::ScalarType> dtype,
      const AutocastOptions& options = {});
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_type_;
  bool was_enabled_;
  bool was_caching_;
  c10::ScalarType previous_dtype_;
};

}  // namespace accelerate
