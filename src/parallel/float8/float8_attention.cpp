#include "parallel/float8/float8_attention.h"

#include <functional>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include "activations/replaced_attention.h"
#include "parallel/context/attention_scope.h"
#include "precision/fp8/float8_attention.h"

namespace accelerate::detail {

namespace {

class AttentionInFloat8 final : public Strategy {
 public:
  AttentionInFloat8(const Mesh& mesh, const Float8Request& request)
      : mesh_(mesh), granularity_(request.attention) {
    if (const auto* const te = std::get_if<TERecipeKwargs>(&request.recipe))
      in_evaluation_ = *te->use_autocast_during_eval;
  }

  void prepare(torch::nn::Module& module, ParameterTable&) override {
    module_ = &module;
  }

  void before_forward() override {
    const bool in_float8 = module_->is_training() || in_evaluation_;
    // A null scope keeps the order of nested forwards.
    scopes_.push_back(
        in_float8 ? std::make_unique<ReplacedAttention>(
                        [this](
                            const ReplacedAttention& scope,
                            const AttentionArguments& arguments) {
                          return scope.enclosing(rounded(arguments));
                        })
                  : nullptr);
  }
  void after_forward(const ForwardOutputs&) override { end_forward(); }
  void on_failure(const std::exception&) override {
    while (!scopes_.empty()) end_forward();
  }

 private:
  // The innermost scope ends first.
  void end_forward() {
    if (!scopes_.empty()) scopes_.pop_back();
  }

  [[nodiscard]] AttentionArguments rounded(AttentionArguments arguments) const {
    std::function<void(const at::Tensor&)> agree = nullptr;
    if (divides_sequence()) {
      agree = [this](const at::Tensor& amax) {
        mesh_.group(Axis::context).all_reduce(amax, ReduceOp::max);
      };
    }
    for (at::Tensor* const heads :
         {&arguments.query, &arguments.key, &arguments.value}) {
      *heads = cast_by_autocast(*heads);
      if (heads->is_floating_point() && heads->numel() > 0)
        *heads = round_to_float8(*heads, granularity_, agree);
    }
    return arguments;
  }

  Mesh mesh_;
  Float8Attention granularity_;
  bool in_evaluation_ = true;
  torch::nn::Module* module_ = nullptr;
  std::vector<std::unique_ptr<ReplacedAttention>> scopes_;
};

}  // namespace

std::unique_ptr<Strategy> make_float8_attention(
    const Mesh& mesh,
    const Float8Request& request) {
  return std::make_unique<AttentionInFloat8>(mesh, request);
}

}  // namespace accelerate::detail
