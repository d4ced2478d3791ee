#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace accelerate::detail {

/// The arguments of aten::scaled_dot_product_attention.
struct AttentionArguments {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> attn_mask = std::nullopt;
  double dropout_p = 0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  bool enable_gqa = false;
};

/// Calls the operator itself.
at::Tensor attend_by_operator(const AttentionArguments& arguments);

/// The tensor as autocast would give it to the operator, which autocast has not
/// reached yet.
at::Tensor cast_by_autocast(const at::Tensor& tensor);

/// While it lives, a function takes the place of
/// aten::scaled_dot_product_attention on this thread (replaced_operator.h).
/// Other threads, and programs without such an object, pay nothing. Destroyed on
/// the thread that made it, the innermost first.
class ReplacedAttention {
 public:
  /// Gets the object that it belongs to, too.
  using Attend = std::function<
      at::Tensor(const ReplacedAttention&, const AttentionArguments&)>;

  explicit ReplacedAttention(Attend attend);
  ReplacedAttention(const ReplacedAttention&) = delete;
  ReplacedAttention& operator=(const ReplacedAttention&) = delete;
  ~ReplacedAttention();

  /// For the function: attention as it would be without this object, by the
  /// enclosing one's function, or the operator itself.
  [[nodiscard]] at::Tensor enclosing(const AttentionArguments& arguments) const;

 private:
  friend struct ReplacedAttentionKernel;

  Attend attend_;
  const ReplacedAttention* enclosing_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace accelerate::detail
