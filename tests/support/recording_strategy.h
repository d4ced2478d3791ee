#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parallel/strategy.h"

namespace accelerate::testing {

/// What strategies were told, in order: "name:event".
using Events = std::shared_ptr<std::vector<std::string>>;

/// Writes down what it is told, and throws where it is asked to.
class RecordingStrategy final : public detail::Strategy,
                                public detail::JoinParticipant,
                                public detail::StrategyState {
 public:
  RecordingStrategy(
      std::string name,
      Events events,
      detail::StrategyTraits traits = {})
      : traits_after_prepare(std::move(traits)),
        name_(std::move(name)),
        events_(std::move(events)) {}

  detail::StrategyTraits traits_after_prepare;
  std::optional<StateDict> saved = std::nullopt;
  /// The event that throws `name`, and whether a failure does.
  std::string fails_in = {};
  bool explains_failures = false;

  [[nodiscard]] detail::StrategyTraits traits() const override {
    return is_prepared_ ? traits_after_prepare : detail::StrategyTraits();
  }
  [[nodiscard]] JoinParticipant* join_participant() override { return this; }
  [[nodiscard]] StrategyState* state() override {
    return saved ? this : nullptr;
  }

  void prepare(torch::nn::Module&, detail::ParameterTable&) override {
    is_prepared_ = true;
    tell("prepare");
  }
  void bind(torch::optim::Optimizer&, const detail::ParameterTable&) override {
    tell("bind");
  }
  void before_forward() override { tell("before_forward"); }
  void after_forward(const detail::ForwardOutputs&) override {
    tell("after_forward");
  }
  void before_backward(bool) override { tell("before_backward"); }
  void after_backward(bool) override { tell("after_backward"); }
  void average_gradient(const at::Tensor&) override {
    tell("average_gradient");
  }
  void before_step() override { tell("before_step"); }
  void after_step() override { tell("after_step"); }
  void average_parameters(const detail::ParameterTable&) override {
    tell("average_parameters");
  }
  void after_load() override { tell("after_load"); }
  void on_failure(const std::exception&) override {
    tell("on_failure");
    if (explains_failures) throw std::runtime_error(name_ + " knows why");
  }

  void begin_join(detail::JoinRound&, int) override { tell("begin_join"); }
  void shadow(const detail::JoinEvent&) override { tell("shadow"); }
  void end_join() override { tell("end_join"); }

  [[nodiscard]] StateDict state_dict() const override { return *saved; }
  void load_state_dict(const StateDict& state) override { saved = state; }

 private:
  void tell(const std::string& event) {
    events_->push_back(name_ + ":" + event);
    if (event == fails_in) throw std::runtime_error(name_);
  }

  std::string name_;
  Events events_;
  bool is_prepared_ = false;
};

}  // namespace accelerate::testing
