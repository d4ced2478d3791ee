#pragma once

#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// What a forward returned, as far as it is known: the tensors in it, or
/// nothing for a type that visit_tensors cannot open.
struct ForwardOutputs {
  bool is_known = false;
  std::vector<at::Tensor> tensors;
};

/// One technique, for one model. Events arrive in the order below; a strategy
/// overrides those it needs. Forward events come only while gradients are
/// recorded. Events before backward run in the order of the table, those after
/// it in reverse.
class Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Rewrites rows: split, place, broadcast.
  virtual void prepare(torch::nn::Module& module, ParameterTable& table) = 0;
  /// Makes an optimizer step on the rows' `local`.
  virtual void bind(torch::optim::Optimizer&, const ParameterTable&) {}
  virtual void before_forward() {}
  virtual void after_forward(const ForwardOutputs&) {}
  /// Whether after_forward uses the outputs; collecting them costs time.
  [[nodiscard]] virtual bool needs_outputs() const { return false; }
  /// `sync_gradients`: this backward ends a step, so ranks must agree after it.
  virtual void before_backward(bool /*sync_gradients*/) {}
  virtual void after_backward(bool /*sync_gradients*/) {}
  /// The gradients of a step are complete, and about to be unscaled, clipped
  /// or used; may come several times.
  virtual void before_step() {}
  virtual void after_step() {}
  /// The forward or backward threw `error`. May throw one that says more;
  /// else the first goes on.
  virtual void on_failure(const std::exception& /*error*/) {}
};

}  // namespace accelerate::detail
