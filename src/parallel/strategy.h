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
#include "params/shared_state.h"

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
  /// True if prepare() accepts parameters without memory (meta tensors); else
  /// they are given memory first.
  bool takes_empty = false;
  /// True if after_forward reads the outputs; collecting them costs time.
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
  /// Why an optimizer cannot update parameters inside a backward (LOMO); unset
  /// if it can.
  std::optional<std::string> lomo_complaint = std::nullopt;
  /// Why one cannot that needs more than each element's own gradient; unset if
  /// it can.
  std::optional<std::string> sliced_lomo_complaint = std::nullopt;
  /// True if no event changes anything: the strategy stands for one that
  /// several ranks would have, and refuses what that one refuses.
  bool is_idle = false;
};

/// A figure of a step, for the journal of the run.
struct StepFigure {
  std::string name;
  double value = 0;
};

/// Interface of strategies that take part in join_uneven_inputs.
class JoinParticipant {
 public:
  virtual ~JoinParticipant() = default;

  /// From here to end_join(), collectives are announced in `round`, as those of
  /// model number `model`.
  virtual void begin_join(JoinRound& round, int model) = 0;
  /// Called on a rank without data: shadows the collective that the others
  /// announced.
  virtual void shadow(const JoinEvent& event) = 0;
  /// Called when all ranks have run out of data, or when this rank failed; it
  /// must not communicate.
  virtual void end_join() = 0;
};

/// State besides parameters that later steps depend on.
class StrategyState {
 public:
  virtual ~StrategyState() = default;

  /// What differs from rank to rank; loaded by as many ranks as saved it.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}
  /// What is the same on all ranks. Names are unique in the model.
  [[nodiscard]] virtual SharedStates shared_states() const { return {}; }
  /// Gets those of the names above that were saved, in the shapes in which they
  /// were saved.
  virtual void load_shared_states(const SavedSharedStates& /*saved*/) {}
};

/// One technique, for one model: a row of the table in plan.cpp. Events arrive
/// in the order below, through a StrategyList; a strategy overrides those it
/// needs. Forward events also arrive while gradients are disabled.
class Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  /// Called before prepare() and once more after it.
  [[nodiscard]] virtual StrategyTraits traits() const { return {}; }
  /// Null if the strategy takes no part in joins.
  [[nodiscard]] virtual JoinParticipant* join_participant() { return nullptr; }
  /// Null if the strategy has no state.
  [[nodiscard]] virtual StrategyState* state() { return nullptr; }

  /// Rewrites rows: shards, places or broadcasts them.
  virtual void prepare(torch::nn::Module& module, ParameterTable& table) = 0;
  /// Makes an optimizer step on the rows' `local`.
  virtual void bind(torch::optim::Optimizer&, const ParameterTable&) {}
  virtual void before_forward() {}
  virtual void after_forward(const ForwardOutputs&) {}
  /// `sync_gradients`: this backward ends a step, so gradients must be the same
  /// on all ranks after it. It begins at `loss`, which may have nothing to do
  /// with this model.
  virtual void before_backward(
      bool /*sync_gradients*/,
      const at::Tensor& /*loss*/) {}
  virtual void after_backward(bool /*sync_gradients*/) {}
  /// Called inside a backward that does not sync, one of a pipeline's step,
  /// before it computes: no later backward adds to the gradients of these
  /// parameters, so they may travel from here on. The step ends with a backward
  /// that syncs, and computes nothing.
  virtual void before_last_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {}
  /// Replaces a gradient of an unsharded parameter, which no backward keeps
  /// (LOMO), with its mean over the ranks.
  virtual void average_gradient(const at::Tensor& /*gradient*/) {}
  /// Called when the gradient of a row's `tensor` is dropped (zero_grad), for a
  /// strategy that keeps it elsewhere.
  virtual void drop_gradient(const at::Tensor& /*parameter*/) {}
  /// Called when the gradients of a step are complete and about to be unscaled,
  /// clipped or used; may be called several times per step.
  virtual void before_step() {}
  /// Called when an optimizer of this model's parameters has stepped.
  virtual void after_step() {}
  /// Called before an optimizer of this model's parameters steps, and before its
  /// state is read or replaced: the state must be as the optimizer's class has
  /// it.
  virtual void unpack_optimizer_state(torch::optim::Optimizer&) {}
  /// Called after that: the state may be kept otherwise until the next call.
  virtual void pack_optimizer_state(torch::optim::Optimizer&) {}
  /// Takes the figures of the last step, if it has any; they count on the main
  /// process. Called after after_step().
  [[nodiscard]] virtual std::vector<StepFigure> take_figures() { return {}; }
  /// Between steps, on all ranks alike: from here on (`is_local`), or no longer,
  /// ranks that read different samples step by themselves (LocalSGD), and
  /// gradients are averaged only over those that share samples. While no ranks
  /// share samples, no backward syncs.
  virtual void step_locally(bool /*is_local*/) {}
  /// Replaces parameters with their mean over the ranks (LocalSGD).
  virtual void average_parameters(const ParameterTable&) {}
  /// Called when a checkpoint was loaded into the rows' `local`.
  virtual void after_load() {}
  /// While the returned object lives, the module's parameters are unsharded and
  /// may be changed, by all ranks alike. Null if they always are. Collective.
  [[nodiscard]] virtual std::shared_ptr<void> unshard_parameters() {
    return nullptr;
  }
  /// Called when a forward or backward threw `error` after its begin was
  /// reported here. May throw an error that says more.
  virtual void on_failure(const std::exception& /*error*/) {}
};

}  // namespace accelerate::detail
