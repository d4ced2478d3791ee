#include "parallel/context/context.h"

namespace accelerate::detail {

namespace {

class Context final : public Strategy {
 public:
  [[nodiscard]] StrategyTraits traits() const override {
    return {
        .local_sgd_complaint =
            "[parallel] with LocalSGD the parameters of ranks differ between "
            "averages, but ranks that share a sequence need the same ones; "
            "set context to 1"};
  }

  void prepare(torch::nn::Module&, ParameterTable&) override {}
};

}  // namespace

std::unique_ptr<Strategy> make_context() { return std::make_unique<Context>(); }

}  // namespace accelerate::detail
