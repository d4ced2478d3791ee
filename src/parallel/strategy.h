#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/state_dict.h>

#include "parallel/replicate/join_round.h"
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

/// The facts about a strategy that others act on.
struct StrategyTraits {
  /// prepare() takes parameters without memory (meta tensors); else they get
  /// some before.
  bool takes_empty = false;
  /// after_forward reads the outputs; collecting them costs time.
  bool needs_outputs = false;
  /// The dtypes that floating inputs and outputs of a forward are cast to.
  std::optional<at::ScalarType> input_dtype = std::nullopt;
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Why ranks with different numbers of steps cannot be joined; unset if they
  /// can.
  std::optional<std::string> join_complaint = std::nullopt;
  /// Why ranks cannot step by themselves and average parameters now and then
  /// (LocalSGD); unset if they can.
  std::optional<std::string> local_sgd_complaint = std::nullopt;
};

/// What a strategy does in join_uneven_inputs, if it has messages of its own.
class JoinParticipant {
 public:
  virtual ~JoinParticipant() = default;

  /// From here to the end of the round, messages are announced in `round`, as
  /// those of model number `model`.
  virtual void begin_join(JoinRound& round, int model) = 0;
  /// This rank has no data: takes part in what the others announced.
  virtual void shadow(const JoinEvent& event) = 0;
  /// All ranks have ended; or this one failed, then nothing may be sent.
  virtual void end_join() = 0;
};

/// What later steps depend on besides parameters; different on each rank.
class StrategyState {
 public:
  virtual ~StrategyState() = default;

  [[nodiscard]] virtual StateDict state_dict() const = 0;
  virtual void load_state_dict(const StateDict& state) = 0;
};

/// One technique, for one model: a row of the table in plan.cpp. Events arrive
/// in the order below, through a StrategyList; a strategy overrides those it
/// needs. Forward events also come while no gradients are recorded.
class Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  /// Asked before prepare() and once more after it.
  [[nodiscard]] virtual StrategyTraits traits() const { return {}; }
  /// Null: it has nothing to do there, or no state.
  [[nodiscard]] virtual JoinParticipant* join_participant() { return nullptr; }
  [[nodiscard]] virtual StrategyState* state() { return nullptr; }

  /// Rewrites rows: split, place, broadcast.
  virtual void prepare(torch::nn::Module& module, ParameterTable& table) = 0;
  /// Makes an optimizer step on the rows' `local`.
  virtual void bind(torch::optim::Optimizer&, const ParameterTable&) {}
  virtual void before_forward() {}
  virtual void after_forward(const ForwardOutputs&) {}
  /// `sync_gradients`: this backward ends a step, so ranks must agree after it.
  virtual void before_backward(bool /*sync_gradients*/) {}
  virtual void after_backward(bool /*sync_gradients*/) {}
  /// Replaces a gradient of an unsharded parameter, which no backward keeps
  /// (LOMO), with its mean over the ranks.
  virtual void average_gradient(const at::Tensor& /*gradient*/) {}
  /// The gradients of a step are complete, and about to be unscaled, clipped
  /// or used; may come several times.
  virtual void before_step() {}
  /// An optimizer that steps on this model's parameters has stepped.
  virtual void after_step() {}
  /// Replaces parameters with their mean over the ranks (LocalSGD).
  virtual void average_parameters(const ParameterTable&) {}
  /// Parameters' `local` were changed from outside: a checkpoint was loaded.
  virtual void after_load() {}
  /// Until the object is gone, the module's parameters are whole and may be
  /// changed; all ranks alike. Null: they always are.
  [[nodiscard]] virtual std::shared_ptr<void> open_parameters() {
    return nullptr;
  }
  /// A forward or backward that it was told of threw `error`. May throw one
  /// that says more.
  virtual void on_failure(const std::exception& /*error*/) {}
};

}  // namespace accelerate::detail
