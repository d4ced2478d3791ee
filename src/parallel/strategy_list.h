#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "parallel/strategy.h"

namespace accelerate::detail {

/// The strategies of one model, and the rules of how they hear of events: in
/// the order in which they were added, but last first of the end of a backward,
/// of a failure and of the end of a join, each of which takes back what was
/// begun in that order.
class ACCELERATE_API StrategyList {
 public:
  StrategyList() = default;
  StrategyList(StrategyList&&) = default;
  StrategyList& operator=(StrategyList&&) = default;

  /// `name` is the key of its state in checkpoints; no two have the same.
  void add(std::string_view name, std::unique_ptr<Strategy> strategy);
  void clear();

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::vector<std::string_view> names() const;
  /// What holds for any of them: of two dtypes the later one's, of complaints
  /// all.
  [[nodiscard]] const StrategyTraits& traits() const { return traits_; }

  void prepare(torch::nn::Module& module, ParameterTable& table);
  /// From here on after_step() passes steps of `optimizer` on, if it steps on
  /// parameters of `table`.
  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table);
  void before_forward();
  void after_forward(const ForwardOutputs& outputs);
  void before_backward(bool sync_gradients);
  void after_backward(bool sync_gradients);
  void average_gradient(const at::Tensor& gradient);
  void before_step();
  /// Steps of optimizers that step on no parameter of the model are nobody's
  /// business.
  void after_step(const torch::optim::Optimizer& optimizer);
  void average_parameters(const ParameterTable& table);
  void after_load();
  [[nodiscard]] std::vector<std::shared_ptr<void>> open_parameters();

  /// Tells every strategy, even if one of them throws. Returns the first
  /// exception that one threw because it knows more than `error`; null if none
  /// did.
  [[nodiscard]] std::exception_ptr on_failure(const std::exception& error);

  void begin_join(JoinRound& round, int model);
  void shadow(const JoinEvent& event);
  void end_join();

  /// By name, without those that have no state.
  [[nodiscard]] StateDict state_dict() const;
  /// Returns the names whose state no strategy here takes. Also reads what
  /// versions before names wrote, by position in the list.
  [[nodiscard]] std::vector<std::string> load_state_dict(
      const StateDict& saved);

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Strategy> strategy;
  };

  void merge_traits();
  [[nodiscard]] Strategy* find(std::string_view name) const;

  std::vector<Entry> entries_;
  StrategyTraits traits_;
  std::unordered_set<const torch::optim::Optimizer*> bound_;
};

}  // namespace accelerate::detail
