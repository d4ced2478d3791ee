#include "parallel/plan/activation_checkpointing.h"

#include <algorithm>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "activations/recorder.h"
#include "parallel/shard/prepare/units.h"

namespace accelerate::detail {

namespace {

class ActivationCheckpointing final : public Strategy {
 public:
  ActivationCheckpointing(
      RecomputationRequest request,
      std::shared_ptr<const torch::nn::Module> whole_model)
      : request_(std::move(request)), whole_model_(std::move(whole_model)) {}

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const UnitPlan plan = plan_units(module, table, request_.modules);
    std::size_t num_chosen = 0;
    for (const WrapUnit& unit : plan.units) {
      const std::size_t segment = unit.name == kRootUnit
          ? Segments::kUnrecorded
          : segment_of(unit.name, num_chosen++);
      for (const Parameter* row : unit.rows)
        segments_.segment_of.emplace(
            row->tensor.unsafeGetTensorImpl(), segment);
    }
    if (num_chosen == 0 && !chooses_some_elsewhere()) {
      throw ConfigError(
          "[parallel] activation checkpointing is on, but its policy chose no "
          "module of the model; name classes that the model has, or set a "
          "smaller number of parameters");
    }
  }

  void before_forward() override {
    if (depth_++ > 0) return;
    recording_ =
        std::make_unique<Recording>(segments_, request_.options, compared_);
  }

  void after_forward(const ForwardOutputs&) override {
    if (--depth_ == 0) recording_.reset();
  }

  void on_failure(const std::exception&) override {
    depth_ = 0;
    recording_.reset();
  }

 private:
  // Returns the segment of a chosen module that `num_before` others precede.
  std::size_t segment_of(const std::string& name, std::size_t num_before) {
    if (request_.num_modules &&
        std::cmp_greater_equal(num_before, *request_.num_modules))
      return Segments::kUnrecorded;
    const auto together = static_cast<std::size_t>(request_.modules_together);
    if (num_before % together == 0) {
      segments_.names.push_back(name);
    } else {
      segments_.names.back() += " and " + name;
    }
    return segments_.names.size() - 1;
  }

  // Whether the policy chooses any module of the whole model.
  [[nodiscard]] bool chooses_some_elsewhere() const {
    if (!whole_model_) return false;
    ParameterTable table(*whole_model_);
    const UnitPlan plan = plan_units(*whole_model_, table, request_.modules);
    return std::ranges::any_of(plan.units, [](const WrapUnit& unit) {
      return unit.name != kRootUnit;
    });
  }

  RecomputationRequest request_;
  std::shared_ptr<const torch::nn::Module> whole_model_;
  Segments segments_;
  std::shared_ptr<ComparedOperators> compared_ =
      std::make_shared<ComparedOperators>();
  int depth_ = 0;
  std::unique_ptr<Recording> recording_;
};

}  // namespace

std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request,
    std::shared_ptr<const torch::nn::Module> whole_model) {
  return std::make_unique<ActivationCheckpointing>(
      request, std::move(whole_model));
}

}  // namespace accelerate::detail
