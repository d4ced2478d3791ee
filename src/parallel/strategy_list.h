#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// The strategies of one model. Events reach them in the order they were added;
/// the end of a backward, a failure and the end of a join reach them in reverse
/// order, since these undo what was begun before.
class StrategyList {
 public:
  StrategyList() = default;
  StrategyList(StrategyList&&) = default;
  StrategyList& operator=(StrategyList&&) = default;

  /// `name` is the key of the strategy's state in checkpoints; it must be
  /// unique.
  void add(std::string_view name, std::unique_ptr<Strategy> strategy);
  void clear();

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// True if no strategy does anything in the events of a step.
  [[nodiscard]] bool is_idle() const { return traits_.is_idle; }
  [[nodiscard]] std::vector<std::string_view> names() const;
  /// The traits of all strategies combined: a flag is true if any is
  /// (is_idle: if all are), a later strategy's dtype wins, complaints are
  /// joined.
  [[nodiscard]] const StrategyTraits& traits() const { return traits_; }

  void prepare(torch::nn::Module& module, ParameterTable& table);
  /// If `optimizer` steps on parameters of `table`, after_step() passes its
  /// steps on from now on. May be called again after it has gained parameters.
  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table);
  void before_forward();
  void after_forward(const ForwardOutputs& outputs);
  void before_backward(bool sync_gradients, const at::Tensor& loss);
  void after_backward(bool sync_gradients);
  void after_prepare(const ModelCalls& calls);
  void before_plain_backward(bool sync_gradients);
  void after_plain_backward(bool sync_gradients);
  void before_last_gradients(const std::vector<at::Tensor>& parameters);
  void average_gradient(const at::Tensor& gradient);
  void drop_gradient(const at::Tensor& parameter) const;
  void before_step();
  /// The next three functions ignore optimizers that were not bound to
  /// parameters of this model.
  void unpack_optimizer_state(torch::optim::Optimizer& optimizer);
  void pack_optimizer_state(torch::optim::Optimizer& optimizer);
  void after_step(const torch::optim::Optimizer& optimizer);
  /// The parts in which the optimizer must step, with their strategies. Ignores
  /// optimizers like the functions above.
  struct OwnedParts {
    Strategy* strategy = nullptr;
    std::vector<ParameterPart> parts;
  };
  [[nodiscard]] std::vector<OwnedParts> step_parts(
      const torch::optim::Optimizer& optimizer);
  /// Takes the metrics of all strategies.
  [[nodiscard]] std::vector<StepFigure> take_figures();
  void step_locally(bool is_local);
  void average_parameters(const ParameterTable& table);
  void after_load();
  [[nodiscard]] std::vector<std::shared_ptr<void>> unshard_parameters();

  /// Notifies every strategy, even if one of them throws. Returns the first
  /// exception thrown, which says more than `error`; null if none threw.
  [[nodiscard]] std::exception_ptr on_failure(const std::exception& error);

  void begin_join(JoinRound& round, int model);
  void shadow(const JoinEvent& event);
  void end_join();

  /// State by strategy name; strategies without state of this kind are left
  /// out.
  [[nodiscard]] StateDict state_dict() const;
  /// Returns the names of states that no strategy here takes. Also reads the
  /// earlier format, which has positions in the list as names.
  [[nodiscard]] std::vector<std::string> load_state_dict(
      const StateDict& saved);
  /// State that all ranks share; names begin with the strategy's name, as in
  /// "float8/fc1/scale".
  [[nodiscard]] SharedStates shared_states() const;
  void load_shared_states(const SavedSharedStates& saved);

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Strategy> strategy;
  };

  void merge_traits();
  [[nodiscard]] Strategy* find(std::string_view name) const;

  std::vector<Entry> entries_;
  StrategyTraits traits_ = {.is_idle = true};
  std::unordered_set<const torch::optim::Optimizer*> bound_;
};

}  // namespace accelerate::detail
