#include "params/optimizer_state.h"

#include <accelerate/error.h>

#include "base/text/text.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace optimizer_state_test {

using testing::expect_error;

// A user-defined class with its own options and state.
struct PullOptions : torch::optim::OptimizerCloneableOptions<PullOptions> {
  PullOptions(double pull = 0.5) : pull_(pull) {}
  TORCH_ARG(double, pull);

 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, pull);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(pull);
  }
  double get_lr() const override { return pull_; }
  void set_lr(double lr) override { pull_ = lr; }
};
struct PullState : torch::optim::OptimizerCloneableParamState<PullState> {
  TORCH_ARG(torch::Tensor, anchor);
  TORCH_ARG(int64_t, visits) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, anchor);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, visits);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(anchor);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(visits);
  }
};
// Pulls parameters towards their initial values.
class Pull : public torch::optim::Optimizer {
 public:
  explicit Pull(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<PullOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (at::Tensor& parameter : group.params()) {
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!slot) {
          auto made = std::make_unique<PullState>();
          made->anchor(parameter.clone());
          slot = std::move(made);
        }
        auto& state = static_cast<PullState&>(*slot);
        state.visits(state.visits() + 1);
        parameter.lerp_(
            state.anchor(), static_cast<PullOptions&>(group.options()).pull());
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<PullState, PullOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<PullState, PullOptions>(archive, *this);
  }
};

// Names parameters by their size.
std::string name_by_size(const at::Tensor& parameter) {
  return format("p{}", parameter.numel());
}

std::vector<at::Tensor> parameters() {
  return {
      torch::full({3}, 1.0).requires_grad_(true),
      torch::full({5}, 2.0).requires_grad_(true)};
}

TEST(OptimizerStateOfAnyClass, ComesBackThroughItsOwnArchive) {
  auto values = parameters();
  Pull pull(values);
  pull.step();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& each : values) each.add_(8);
  }
  const OptimizerState state = read_optimizer_state(pull, name_by_size);
  EXPECT_EQ(state.algorithm, "archive");
  const OptimizerState again = optimizer_state_from(to_state_dict(state));
  // The second optimizer has the parameters in a different order.
  auto other_values = parameters();
  std::swap(other_values[0], other_values[1]);
  Pull other(other_values);
  write_optimizer_state(other, again, name_by_size);
  const torch::NoGradGuard no_grad;
  other_values[0].fill_(10);
  other_values[1].fill_(10);
  other.step();
  // Half of the way back to the initial values.
  EXPECT_TRUE(other_values[0].equal(torch::full({5}, 6.0)));
  EXPECT_TRUE(other_values[1].equal(torch::full({3}, 5.5)));
}

class Forgetful : public Pull {
 public:
  using Pull::Pull;
  void save(torch::serialize::OutputArchive&) const override {}
};

TEST(OptimizerStateOfAnyClass, ThatWritesNothingIsRefused) {
  Forgetful forgetful(parameters());
  forgetful.step();
  expect_error<ConfigError>(
      [&] { static_cast<void>(read_optimizer_state(forgetful, name_by_size)); },
      "its save() writes nothing");
}

TEST(OptimizerState, OfLbfgsIsRestored) {
  const auto loss = [](torch::optim::LBFGS& lbfgs, const at::Tensor& x) {
    return lbfgs
        .step([&] {
          lbfgs.zero_grad();
          const at::Tensor value =
              (x.pow(4).sum() + (x - 1).square().sum()).sum();
          value.backward();
          return value;
        })
        .item<double>();
  };
  const auto options =
      torch::optim::LBFGSOptions(0.3).max_iter(3).history_size(4);
  at::Tensor x = torch::full({4}, 3.0).requires_grad_(true);
  torch::optim::LBFGS lbfgs({x}, options);
  for (int i = 0; i < 3; ++i) loss(lbfgs, x);
  const OptimizerState state = optimizer_state_from(
      to_state_dict(read_optimizer_state(lbfgs, name_by_size)));
  at::Tensor y = x.detach().clone().requires_grad_(true);
  torch::optim::LBFGS other({y}, torch::optim::LBFGSOptions(0.9));
  // Copied, since the first optimizer goes on using its tensors.
  OptimizerState copy = state;
  for (auto& [name, values] : copy.parameters) {
    StateDict cloned;
    for (const auto& [key, value] : values.values()) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
        cloned.set(key, tensor->clone());
      } else if (const auto* list = std::get_if<StateDict>(&value)) {
        StateDict items;
        for (const auto& [index, item] : list->values()) {
          const auto* one = std::get_if<at::Tensor>(&item);
          items.set(index, one != nullptr ? one->clone() : item);
        }
        cloned.set(key, std::move(items));
      } else {
        cloned.set(key, value);
      }
    }
    values = std::move(cloned);
  }
  write_optimizer_state(other, copy, name_by_size);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(loss(other, y), loss(lbfgs, x));
  EXPECT_TRUE(x.equal(y));
}

// As parameters() lists the tensors of a module with tied weights.
TEST(OptimizerState, HasATensorOnceThatTheOptimizerHoldsTwice) {
  auto values = parameters();
  values.insert(values.begin() + 1, values[0]);
  torch::optim::SGD sgd(values, torch::optim::SGDOptions(0.1).momentum(0.9));
  (values[0].sum() + values[2].sum()).backward();
  sgd.step();
  const OptimizerState read = optimizer_state_from(
      to_state_dict(read_optimizer_state(sgd, name_by_size)));
  EXPECT_EQ(
      read.groups[0].parameters,
      (std::vector<std::string>{
          name_by_size(values[0]), name_by_size(values[2])}));
  torch::optim::SGD other(values, torch::optim::SGDOptions(0.3).momentum(0.9));
  EXPECT_TRUE(
      optimizer_complaints(other, read, name_by_size, [](const std::string&) {
        return false;
      }).empty());
  write_optimizer_state(other, read, name_by_size);
  EXPECT_EQ(other.state().size(), 2u);
}

TEST(OptimizerState, FollowsNamesIntoOtherGroupsAndSaysWhatIsMissing) {
  auto values = parameters();
  torch::optim::SGD sgd(values, torch::optim::SGDOptions(0.1).momentum(0.9));
  (values[0].sum() + values[1].sum()).backward();
  sgd.step();
  const OptimizerState state = read_optimizer_state(sgd, name_by_size);
  auto more = parameters();
  more.push_back(torch::ones({7}).requires_grad_(true));
  torch::optim::SGD other(more, torch::optim::SGDOptions(0.3));
  EXPECT_EQ(
      optimizer_complaints(
          other, state, name_by_size, [](const std::string&) { return false; }),
      std::vector<std::string>{"the state has no parameter p7"});
  EXPECT_TRUE(optimizer_complaints(
                  other,
                  state,
                  name_by_size,
                  [](const std::string& name) { return name == "p7"; })
                  .empty());
  write_optimizer_state(other, state, name_by_size);
  const auto& options = static_cast<const torch::optim::SGDOptions&>(
      other.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.1);
  EXPECT_EQ(options.momentum(), 0.9);
  EXPECT_EQ(other.state().size(), 2u);
}

}  // namespace optimizer_state_test
}  // namespace accelerate::detail
