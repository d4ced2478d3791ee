#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Shows the values of which a parameter is a rounded copy (a shard's, a master
/// weight's) in the parameter itself, inside full_parameters(). Forwards of the
/// model still see it rounded.
class PreciseView {
 public:
  /// `values`: dense, of the parameter's sizes and on its device; until hide(),
  /// the parameter uses their memory.
  PreciseView(const at::Tensor& parameter, const at::Tensor& values);

  /// From begin_forward() to end_forward(), the parameter is rounded to its own
  /// dtype. What the forward itself writes to it is kept.
  void begin_forward();
  void end_forward();

  [[nodiscard]] const at::Tensor& values() const { return values_; }
  /// Whether the parameter was written to since this object was made, or since
  /// forget_changes().
  [[nodiscard]] bool is_changed() const;
  void forget_changes();

  /// Restores the parameter; `values()` are those that it showed last. Without
  /// this call, it continues to show them.
  void hide();

 private:
  at::Tensor parameter_;
  at::Tensor values_;
  /// The parameter's tensor before it showed the values.
  at::Tensor before_;
  /// The tensor that it showed before a forward; undefined outside.
  at::Tensor before_forward_ = {};
  std::int64_t version_ = 0;
  std::int64_t version_in_forward_ = 0;
};

}  // namespace accelerate::detail
