#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parallel/strategy.h"

namespace accelerate::testing {

/// The events of strategies, in order: "name:event".
using Events = std::shared_ptr<std::vector<std::string>>;

/// A strategy that records its events and throws at a chosen event.
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
  /// The event at which it throws its name; empty for none.
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
    record("prepare");
  }
  void bind(torch::optim::Optimizer&, const detail::ParameterTable&) override {
    record("bind");
  }
  void before_forward() override { record("before_forward"); }
  void after_forward(const detail::ForwardOutputs&) override {
    record("after_forward");
  }
  void before_backward(bool, const at::Tensor&) override {
    record("before_backward");
  }
  void after_backward(bool) override { record("after_backward"); }
  void average_gradient(const at::Tensor&) override {
    record("average_gradient");
  }
  void before_step() override { record("before_step"); }
  void after_step() override { record("after_step"); }
  void step_locally(bool is_local) override {
    record(is_local ? "step_locally" : "step_together");
  }
  void average_parameters(const detail::ParameterTable&) override {
    record("average_parameters");
  }
  void after_load() override { record("after_load"); }
  void on_failure(const std::exception&) override {
    record("on_failure");
    if (explains_failures) throw std::runtime_error(name_ + " knows why");
  }

  void begin_join(detail::JoinRound&, int) override { record("begin_join"); }
  void shadow(const detail::JoinEvent&) override { record("shadow"); }
  void end_join() override { record("end_join"); }

  [[nodiscard]] StateDict state_dict() const override { return *saved; }
  void load_state_dict(const StateDict& state) override { saved = state; }

 private:
  void record(const std::string& event) {
    events_->push_back(name_ + ":" + event);
    if (event == fails_in) throw std::runtime_error(name_);
  }

  std::string name_;
  Events events_;
  bool is_prepared_ = false;
};

}  // namespace accelerate::testing
