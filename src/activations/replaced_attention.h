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

/// Casts the tensor as autocast would for the operator; the function runs
/// before autocast.
at::Tensor cast_by_autocast(const at::Tensor& tensor);

/// While alive, replaces aten::scaled_dot_product_attention on this thread with
/// a function (gate/mode_keys.h). Other threads, and programs without such
/// an object, pay nothing. Must be destroyed on the thread that made it, the
/// innermost first.
class ReplacedAttention {
 public:
  /// A function that also receives the object that it belongs to.
  using Attend = std::function<
      at::Tensor(const ReplacedAttention&, const AttentionArguments&)>;

  explicit ReplacedAttention(Attend attend);
  ReplacedAttention(const ReplacedAttention&) = delete;
  ReplacedAttention& operator=(const ReplacedAttention&) = delete;
  ~ReplacedAttention();

  /// For use by the function: computes attention as if this object did not
  /// exist, by the enclosing object's function or the operator itself.
  [[nodiscard]] at::Tensor enclosing(const AttentionArguments& arguments) const;

 private:
  friend struct ReplacedAttentionKernel;

  Attend attend_;
  const ReplacedAttention* enclosing_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace accelerate::detail
