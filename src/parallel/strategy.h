#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/state_dict.h>

#include "parallel/join_round.h"
#include "params/parameter_table.h"
#include "params/shared_state.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// The outputs of a forward: its tensors, or unknown for a type that
/// visit_tensors cannot open.
struct ForwardOutputs {
  bool is_known = false;
  std::vector<at::Tensor> tensors;
};

/// Facts about a strategy that its callers act on.
struct StrategyTraits {
  /// True if prepare() accepts parameters without memory (meta tensors);
  /// otherwise they are given memory first.
  bool takes_empty = false;
  /// True if after_forward reads the outputs; collecting them costs time.
  bool needs_outputs = false;
  /// The dtypes that floating inputs and outputs of a forward are cast to.
  std::optional<at::ScalarType> input_dtype = std::nullopt;
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Why ranks with different numbers of steps cannot be joined; unset if they
  /// can be.
  std::optional<std::string> join_complaint = std::nullopt;
  /// Why ranks cannot step independently and average parameters periodically
  /// (LocalSGD); unset if they can.
  std::optional<std::string> local_sgd_complaint = std::nullopt;
  /// Why an optimizer cannot update parameters inside a backward (LOMO); unset
  /// if it can.
  std::optional<std::string> lomo_complaint = std::nullopt;
  /// Why LOMO cannot update if it needs more than each element's own gradient;
  /// unset if it can.
  std::optional<std::string> sliced_lomo_complaint = std::nullopt;
  /// Why gradients cannot be scaled, clipped or unscaled between a backward and
  /// a step; unset if they can be.
  std::optional<std::string> clipping_complaint = std::nullopt;
  /// True if optimizers step in parts (Strategy::step_parts).
  bool steps_in_parts = false;
  /// True if events have no effect: a single-process stand-in for a strategy of
  /// several ranks, which rejects what that one rejects.
  bool is_idle = false;
};

/// A metric of one step, for the run's journal.
struct StepFigure {
  std::string name;
  double value = 0;
};

/// Parameters on which an optimizer steps at a time.
using ParameterPart = std::vector<at::Tensor>;

class Strategy;

/// What a strategy may call once all strategies of the model are prepared.
struct ModelCalls {
  /// If something other than a gradient shows the strategy that a plain
  /// backward has begun: one that the program runs itself (`loss.backward()`).
  /// The function does nothing at any other time.
  std::function<void()> begin_plain_backward = nullptr;
  /// Whether optimizers step after the backward that runs, or begins.
  std::function<bool()> ends_window = nullptr;
  /// Steps on the first of the parts, whose gradients are complete, with the
  /// optimizers that have its parameters, between the strategy's before_part()
  /// and after_part().
  std::function<void(Strategy&, std::span<const ParameterPart>)> step_on_part =
      nullptr;
};

/// Interface of strategies that take part in join_uneven_inputs.
class JoinParticipant {
 public:
  virtual ~JoinParticipant() = default;

  /// From here to end_join(), announces collectives in `round` under model
  /// number `model`.
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

  /// State that differs per rank; loaded on the same number of ranks that saved
  /// it.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}
  /// State that is the same on all ranks. Names are unique in the model.
  [[nodiscard]] virtual SharedStates shared_states() const { return {}; }
  /// Receives the saved states among the names above, in their saved shapes.
  virtual void load_shared_states(const SavedSharedStates& /*saved*/) {}
};

/// One technique for one model: a row of the table in plan.cpp. Events arrive
/// in the order below, through a StrategyList; a strategy overrides the ones it
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
  virtual void after_prepare(const ModelCalls&) {}
  /// Makes an optimizer step on the rows' `local`.
  virtual void bind(torch::optim::Optimizer&, const ParameterTable&) {}
  /// Binds parameters that the program has added since to an optimizer that
  /// steps on rows already.
  virtual void bind_added(torch::optim::Optimizer&, const ParameterTable&) {}
  virtual void before_forward() {}
  virtual void after_forward(const ForwardOutputs&) {}
  /// `sync_gradients`: this backward ends a step, so gradients must be the same
  /// on all ranks after it. It begins at `loss`, which may be unrelated to this
  /// model.
  virtual void before_backward(
      bool /*sync_gradients*/,
      const at::Tensor& /*loss*/) {}
  virtual void after_backward(bool /*sync_gradients*/) {}
  /// Called instead of before_backward() and after_backward() for a plain
  /// backward that reaches this model. It may already have computed the first
  /// gradient.
  virtual void before_plain_backward(bool /*sync_gradients*/) {}
  virtual void after_plain_backward(bool /*sync_gradients*/) {}
  /// Called in a non-syncing backward of a pipeline's step, before it computes:
  /// no later backward adds to the gradients of these parameters, so they can
  /// be sent from here on. The step ends with a backward that syncs and
  /// computes nothing.
  virtual void before_last_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {}
  /// Replaces a gradient of an unsharded parameter with its mean over the
  /// ranks, where backward does not keep the gradient (LOMO).
  virtual void average_gradient(const at::Tensor& /*gradient*/) {}
  /// Called when the gradient of a row's `tensor` is dropped (zero_grad), for a
  /// strategy that keeps it elsewhere.
  virtual void drop_gradient(const at::Tensor& /*parameter*/) {}
  /// Called when the gradients of a step are complete and about to be unscaled,
  /// clipped or used; may be called several times per step.
  virtual void before_step() {}
  /// Called when an optimizer of this model's parameters has stepped.
  virtual void after_step() {}
  /// Called before an optimizer of this model's parameters steps, and before
  /// its state is read or replaced: puts the state into the form that the
  /// optimizer's class expects.
  virtual void unpack_optimizer_state(torch::optim::Optimizer&) {}
  /// Called afterwards; the state may be kept in another form until the next
  /// unpack_optimizer_state().
  virtual void pack_optimizer_state(torch::optim::Optimizer&) {}
  /// The parts in which an optimizer must step, because its state is not in
  /// memory all at once; none: it steps at once. Called before each step.
  [[nodiscard]] virtual std::vector<ParameterPart> step_parts(
      const torch::optim::Optimizer&) {
    return {};
  }
  /// Called around the step on a part, the first of `parts`, which others
  /// follow.
  virtual void before_part(
      const torch::optim::Optimizer&,
      std::span<const ParameterPart> /*parts*/) {}
  virtual void after_part(
      const torch::optim::Optimizer&,
      const ParameterPart& /*part*/) {}
  /// Takes the metrics of the last step, if any; only the main process's are
  /// used. Called after after_step().
  [[nodiscard]] virtual std::vector<StepFigure> take_figures() { return {}; }
  /// Called between steps, on all ranks alike: starts or ends (`is_local`)
  /// independent steps of ranks that read different samples (LocalSGD), where
  /// gradients are averaged only over ranks that share samples. While no ranks
  /// share samples, no backward syncs.
  virtual void step_locally(bool /*is_local*/) {}
  /// Replaces parameters with their mean over the ranks (LocalSGD).
  virtual void average_parameters(const ParameterTable&) {}
  /// Called when a checkpoint was loaded into the rows' `local`.
  virtual void after_load() {}
  /// While the returned object is alive, the module's parameters are unsharded
  /// and may be changed, by all ranks alike. Null if they are always unsharded.
  /// Collective.
  [[nodiscard]] virtual std::shared_ptr<void> unshard_parameters() {
    return nullptr;
  }
  /// Called when a forward or backward threw `error` after its start was
  /// reported here. May throw an error that says more.
  virtual void on_failure(const std::exception& /*error*/) {}
};

}  // namespace accelerate::detail
