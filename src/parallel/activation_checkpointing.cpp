#include "parallel/activation_checkpointing.h"

#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "activations/recorder.h"
#include "parallel/shard/prepare/units.h"

namespace accelerate::detail {

namespace {

class ActivationCheckpointing final : public Strategy {
 public:
  ActivationCheckpointing(RecomputationRequest request, bool may_choose_none)
      : request_(std::move(request)), may_choose_none_(may_choose_none) {}

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const UnitPlan plan = plan_units(module, table, request_.modules);
    for (const WrapUnit& unit : plan.units) {
      const bool is_root = unit.name == kRootUnit;
      const std::size_t segment =
          is_root ? Segments::kUnrecorded : segments_.names.size();
      if (!is_root) segments_.names.push_back(unit.name);
      for (const Parameter* row : unit.rows)
        segments_.segment_of.emplace(
            row->tensor.unsafeGetTensorImpl(), segment);
    }
    if (segments_.names.size() == 1 && !may_choose_none_) {
      throw ConfigError(
          "[parallel] activation checkpointing was asked for, but its policy "
          "chose no module of the model; name classes of modules that it has, "
          "or give a smaller number of parameters");
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
  RecomputationRequest request_;
  bool may_choose_none_;
  Segments segments_;
  std::shared_ptr<ComparedOperators> compared_ =
      std::make_shared<ComparedOperators>();
  int depth_ = 0;
  std::unique_ptr<Recording> recording_;
};

}  // namespace

std::unique_ptr<Strategy> make_activation_checkpointing(
    const RecomputationRequest& request,
    bool may_choose_none) {
  return std::make_unique<ActivationCheckpointing>(request, may_choose_none);
}

}  // namespace accelerate::detail
