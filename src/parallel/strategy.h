#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/state_dict.h>

#include "parallel/join_round.h"
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
/// overrides those it needs. Forward events also come while no gradients are
/// recorded. Events before backward run in the order of the table, those after
/// it in reverse.
class Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Whether prepare() takes parameters without memory (meta tensors); else
  /// they get some before.
  [[nodiscard]] virtual bool takes_empty() const { return false; }
  /// Rewrites rows: split, place, broadcast.
  virtual void prepare(torch::nn::Module& module, ParameterTable& table) = 0;
  /// Makes an optimizer step on the rows' `local`.
  virtual void bind(torch::optim::Optimizer&, const ParameterTable&) {}
  /// What floating inputs of a forward are cast to, and what it returns.
  [[nodiscard]] virtual std::optional<at::ScalarType> input_dtype() const {
    return std::nullopt;
  }
  [[nodiscard]] virtual std::optional<at::ScalarType> output_dtype() const {
    return std::nullopt;
  }
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
  virtual void after_step(const torch::optim::Optimizer& /*optimizer*/) {}
  /// Parameters' `local` were changed from outside: a checkpoint was loaded.
  virtual void after_load() {}
  /// Until the object is gone, the module's parameters are whole and may be
  /// changed; all ranks alike. Null: they always are.
  [[nodiscard]] virtual std::shared_ptr<void> open_parameters() {
    return nullptr;
  }
  /// The forward or backward threw `error`. May throw one that says more;
  /// else the first goes on.
  virtual void on_failure(const std::exception& /*error*/) {}

  /// What later steps depend on besides parameters; different on each rank.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}

  /// Why ranks with different numbers of steps cannot be joined; nothing if
  /// they can.
  [[nodiscard]] virtual std::optional<std::string> join_complaint() const {
    return std::nullopt;
  }
  /// From here, to the end of the round, messages are announced in `round`, as
  /// those of model number `model`.
  virtual void begin_join(JoinRound& /*round*/, int /*model*/) {}
  /// This rank has no data: takes part in what the others announced.
  virtual void shadow(const JoinEvent& /*event*/) {}
  /// All ranks have ended; or this one failed, then nothing may be sent.
  virtual void end_join() {}
};

}  // namespace accelerate::detail
