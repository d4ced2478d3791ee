#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

namespace accelerate::testing {

struct ResumableNetImpl : torch::nn::Module {
  ResumableNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::dropout(norm(first(x)), 0.25, is_training()));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(ResumableNet);

/// An object that a user registers.
struct StepCounter {
  std::int64_t count = 0;
  double ratio = 0;
  std::string name;
  [[nodiscard]] StateDict state_dict() const {
    return {{"count", count}, {"ratio", ratio}, {"name", name}};
  }
  void load_state_dict(const StateDict& state) {
    count = state.get<std::int64_t>("count");
    ratio = state.get<double>("ratio");
    name = state.get<std::string>("name");
  }
};

/// A short training run in which every object has state.
template <class Optimizer, class Options>
class ResumableTraining {
 public:
  ResumableTraining(
      AcceleratorOptions options,
      const Options& optimizer_options,
      std::uint64_t seed)
      : accelerator_([&] {
          // Seeds before anything is created, with the same seed on every rank.
          torch::manual_seed(seed);
          return std::move(options);
        }()),
        net_(),
        optimizer_(net_->parameters(), optimizer_options),
        schedule_(optimizer_, {.step_size = 3, .gamma = 0.5}),
        prepared_(accelerator_.prepare(
            net_,
            optimizer_,
            schedule_,
            DataLoader(
                TensorDataset(
                    torch::arange(96, torch::kFloat).reshape({24, 4}) / 50,
                    torch::arange(24) % 2),
                {.batch_size = 2, .shuffle = true}))) {
    accelerator_.register_for_checkpointing(counter_);
  }

  const Accelerator& accelerator() const { return accelerator_; }
  StepCounter& counter() { return counter_; }
  ResumableNet& net() { return net_; }
  auto& loader() { return std::get<3>(prepared_); }

  /// Runs `steps` steps and returns the losses. The loader keeps its position.
  std::vector<double> run(
      int steps,
      int save_after = 0,
      const std::function<void()>& save = nullptr) {
    auto& [model, optimizer, schedule, loader] = prepared_;
    std::vector<double> losses;
    while (steps > 0) {
      for (auto& [x, y] : loader) {
        const auto micro_step = accelerator_.accumulate(model);
        const at::Tensor loss =
            torch::nn::functional::cross_entropy(model(x), y);
        accelerator_.backward(loss);
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        losses.push_back(loss.item<double>());
        ++counter_.count;
        counter_.ratio += losses.back();
        counter_.name += "x";
        if (static_cast<int>(losses.size()) == save_after) save();
        if (--steps == 0) break;
      }
    }
    return losses;
  }

 private:
  Accelerator accelerator_;
  ResumableNet net_;
  Optimizer optimizer_;
  optim::StepLR schedule_;
  decltype(accelerator_.prepare(
      net_,
      optimizer_,
      schedule_,
      std::declval<DataLoader<TensorDataset<2>>>())) prepared_;
  StepCounter counter_;
};

/// Options for numbered checkpoints below `directory`.
inline AcceleratorOptions automatic_checkpoints(
    const WorldOptions& world,
    const std::filesystem::path& directory,
    std::optional<int> limit = std::nullopt) {
  AcceleratorOptions options;
  options.world = world;
  options.project_configuration = {
      .project_dir = directory.string(),
      .automatic_checkpoint_naming = true,
      .total_limit = limit};
  return options;
}

/// Returns copies of parameters and buffers.
inline std::vector<at::Tensor> values_of(ResumableNet& net) {
  std::vector<at::Tensor> values;
  for (const auto& each : net->parameters()) values.push_back(each.clone());
  for (const auto& each : net->buffers()) values.push_back(each.clone());
  return values;
}

inline bool equal(
    const std::vector<at::Tensor>& a,
    const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

/// Disables dropout: ranks are threads that share the CPU generator, so what
/// each draws would depend on their order.
inline void without_dropout(ResumableNet& net) { net->eval(); }

/// Changes a byte near the end of a file.
inline void flip_a_byte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-3, std::ios::end);
  const int before = file.get();
  file.seekp(-3, std::ios::end);
  file.put(static_cast<char>(before ^ 0x11));
}

using AdamTraining = ResumableTraining<optim::Adam, torch::optim::AdamOptions>;
inline const torch::optim::AdamOptions kAdam(0.05);
inline const WorldOptions kAlone{.rank = 0, .size = 1};

}  // namespace accelerate::testing
