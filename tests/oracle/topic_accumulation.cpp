#include <accelerate/accelerate.h>

#include "oracle/oracle.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace topic_accumulation {

/// One rank's observations.
struct Seen {
  Json loader;
  bool sync;
  double gradient;
  double weight;
};

class Rank {
 public:
  Rank(const Json& input, const WorldOptions& world)
      : accelerator_(
            {.gradient_accumulation_steps =
                 input.at("accumulation_steps").get<int>(),
             .gradient_accumulation =
                 {.sync_with_dataloader = input.at("sync_with_dataloader"),
                  .sync_each_batch = input.at("sync_each_batch"),
                  .divide_by_full_window = true},
             .world = world}),
        net_(torch::nn::LinearOptions(1, 1).bias(false)) {
    torch::NoGradGuard no_grad;
    net_->to(torch::kDouble);
    net_->weight.zero_();
    sgd_.emplace(net_->parameters(), 0.125);
    model_.emplace(accelerator_.prepare(net_));
    optimizer_.emplace(accelerator_.prepare(*sgd_));
  }

  auto loader(std::int64_t length) const {
    const std::int64_t count = length * accelerator_.num_processes();
    return accelerator_.prepare(DataLoader(TensorDataset{
        torch::arange(1, count + 1, torch::kDouble).view({-1, 1})}));
  }

  void micro_step(const Json& loader, const torch::Tensor& x) {
    const auto scope = accelerator_.accumulate(*model_);
    accelerator_.backward((*model_)(x).sum());
    const double gradient = net_->weight.grad().item<double>();
    optimizer_->step();
    optimizer_->zero_grad();
    seen_.push_back(
        {loader,
         accelerator_.sync_gradients(),
         gradient,
         net_->weight.item<double>()});
  }

  [[nodiscard]] int index() const { return accelerator_.process_index(); }
  [[nodiscard]] const std::vector<Seen>& seen() const { return seen_; }

 private:
  Accelerator accelerator_;
  torch::nn::Linear net_;
  std::optional<torch::optim::SGD> sgd_;
  std::optional<Model<torch::nn::LinearImpl>> model_;
  std::optional<Optimizer> optimizer_;
  std::vector<Seen> seen_;
};

void run_pattern(Rank& rank, const Json& input) {
  const auto lengths =
      input.at("loader_lengths").get<std::vector<std::int64_t>>();
  const std::string pattern = input.at("pattern");
  if (pattern == "no_loader") {
    for (const std::int64_t length : lengths) {
      for (std::int64_t i = 0; i < length; ++i) {
        rank.micro_step(
            nullptr,
            torch::full({1, 1}, double(i + 1 + rank.index()), torch::kDouble));
      }
    }
    return;
  }
  std::vector<decltype(rank.loader(1))> loaders;
  for (const std::int64_t length : lengths)
    loaders.push_back(rank.loader(length));
  const auto run_loader = [&](std::size_t index) {
    for (auto& [x] : loaders.at(index)) rank.micro_step(index, x);
  };
  if (pattern == "sequential") {
    for (std::size_t index = 0; index < loaders.size(); ++index)
      run_loader(index);
    return;
  }
  std::int64_t step = 0;
  for (auto& [x] : loaders.at(0)) {
    rank.micro_step(0, x);
    if (step++ != input.at("at")) continue;
    if (pattern == "break") break;
    run_loader(1);
  }
  if (pattern == "break") run_loader(1);
}

}  // namespace topic_accumulation

Json run_accumulation(const Json& input) {
  using namespace topic_accumulation;
  const int count = input.at("num_processes");
  std::vector<std::vector<Seen>> seen(static_cast<std::size_t>(count));
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    Rank rank(input, world);
    const int epochs = input.at("epochs");
    for (int epoch = 0; epoch < epochs; ++epoch) run_pattern(rank, input);
    seen[static_cast<std::size_t>(rank.index())] = rank.seen();
  });
  Json steps = Json::array();
  int optimizer_steps = 0;
  for (std::size_t i = 0; i < seen[0].size(); ++i) {
    Json gradients = Json::array(), weights = Json::array();
    for (const auto& of_rank : seen) {
      gradients.push_back(of_rank.at(i).gradient);
      weights.push_back(of_rank.at(i).weight);
    }
    optimizer_steps += seen[0][i].sync;
    steps.push_back(
        {{"loader", seen[0][i].loader},
         {"sync", seen[0][i].sync},
         {"gradients", gradients},
         {"weights", weights}});
  }
  return {
      {"micro_steps", std::move(steps)}, {"optimizer_steps", optimizer_steps}};
}

}  // namespace accelerate::oracle
