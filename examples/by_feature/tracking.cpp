// The plain loop, logged: to the run's journal, to TensorBoard and to a tracker
// defined by the program. When started again, it resumes from the newest
// checkpoint and continues the same journal, which has each step once. An
// argument is the epoch in which it stops after five batches, as if
// interrupted: they are logged but not in any checkpoint.
//
//   accelerate-cpp watch tracking_run/fit
//   accelerate-cpp replay tracking_run/fit --to mlflow
//   tensorboard --logdir tracking_run/by_feature
#include "task.h"

#include <fstream>

namespace {

/// Writes the losses, one per line.
class LossLines final : public accelerate::GeneralTracker {
 public:
  explicit LossLines(std::string path) : path_(std::move(path)) {}
  std::string name() const override { return "loss_lines"; }
  void start() override { file_.open(path_, std::ios::app); }
  void log(
      const accelerate::TrackedValues& values,
      const accelerate::LogTime& time,
      const accelerate::TrackedValues&) override {
    for (const auto& [name, value] : values) {
      if (name != "loss") continue;
      file_ << *time.step << ' ' << value.str() << '\n';
      last_step_ = *time.step;
    }
  }
  void flush() override { file_.flush(); }
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

 private:
  std::string path_;
  std::ofstream file_;
  std::int64_t last_step_ = 0;
};

/// Two gray images: the function, and the net's approximation.
torch::Tensor picture(const accelerate::Model<NetImpl>& model) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor line = torch::linspace(-2, 2, 32);
  const torch::Tensor y = line.repeat_interleave(32);
  const torch::Tensor x = line.repeat(32);
  const torch::Tensor wanted = torch::sin(x) + torch::cos(2 * y);
  const torch::Tensor found = model(torch::stack({x, y}, 1)).squeeze(1);
  return (torch::stack({wanted, found}).view({2, 32, 32, 1}) / 4 + 0.5)
      .clamp(0, 1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t last_epoch = argc > 1 ? std::stoul(argv[1]) : 20;
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = "tracking_run", .automatic_checkpoint_naming = true};
  options.run_name = "fit";
  const auto lines = std::make_shared<LossLines>("losses.txt");
  options.log_with = {"tensorboard", lines};
  accelerate::Accelerator accelerator(options);
  torch::manual_seed(0);
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  // Before anything is logged, since the checkpoint names the run.
  accelerator.resume();
  accelerator.init_trackers("by_feature", {{"lr", 2e-2}, {"batch_size", 20}});

  std::int64_t step = static_cast<std::int64_t>(loader.epoch()) *
      static_cast<std::int64_t>(loader.size());
  std::vector<double> losses_of_epochs;
  while (loader.epoch() < 20) {
    double sum = 0;
    std::int64_t num_batches = 0;
    const bool is_interrupted = loader.epoch() == last_epoch;
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      sum += loss.item<double>();
      ++num_batches;
      accelerator.log({{"loss", loss}, {"lr", 2e-2}}, ++step);
      if (is_interrupted && num_batches == 5) {
        accelerator.end_training();
        return 0;
      }
    }
    losses_of_epochs.push_back(sum / static_cast<double>(num_batches));
    accelerator.trackers().log_images("wanted and found", picture(model), step);
    accelerator.trackers().log_histogram("weights", net->hidden->weight, step);
    accelerator.save_state();
  }

  accelerator.trackers().log_figure(
      "losses",
      {.title = "mean loss per epoch",
       .x_label = "epoch",
       .y_label = "loss",
       .series = {{.y = torch::tensor(losses_of_epochs, torch::kDouble)}}},
      step);
  accelerate::TrackedTable corners;
  corners.columns = {"x", "y", "found"};
  for (const double x : {-2.0, 2.0}) {
    for (const double y : {-2.0, 2.0}) {
      const torch::NoGradGuard no_grad;
      const auto found = model(torch::tensor({{x, y}}, torch::kFloat));
      corners.rows.push_back({x, y, found.item<double>()});
    }
  }
  accelerator.trackers().log_table("corners", corners, step);
  accelerator.get_tracker("loss_lines")->flush();  // it has everything now
  expect(
      !accelerator.is_main_process() || lines->last_step() == step,
      "the program's own tracker must get every step");
  report(accelerator, net);
  accelerator.end_training();
}
