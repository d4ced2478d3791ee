// The plain loop, profiled: the operators of three steps in a trace per rank,
// then where the time of all steps goes.
// `accelerate-cpp trace merge profiler_traces -o all.json` merges the traces.
#include "task.h"

namespace {

void train(
    const accelerate::Accelerator& accelerator,
    accelerate::Profile& profile,
    const accelerate::Model<NetImpl>& model,
    const accelerate::Optimizer& optimizer,
    auto& loader,
    int num_epochs) {
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
      profile.step();
    }
  }
}

}  // namespace

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));

  auto operators = accelerator.profile(
      {.schedule_option =
           accelerate::ProfileSchedule{
               .wait = 1, .warmup = 1, .active = 3, .repeat = 1},
       .with_flops = true,
       .output_trace_dir = "profiler_traces"});
  train(accelerator, operators, model, optimizer, loader, 1);
  operators.stop();
  std::int64_t num_products = 0;
  for (const auto& row : operators.key_averages()) {
    if (row.name == "aten::addmm") {
      num_products = row.count;
      accelerator.print(
          std::to_string(row.count) + " products, " +
          std::to_string(row.flops) + " operations");
    }
  }

  // Without recording operators, a profile can run all the time.
  auto times = accelerator.profile(
      {.activities = std::vector<accelerate::ProfilerActivity>{}});
  train(accelerator, times, model, optimizer, loader, 19);
  times.stop();
  const auto rows = times.gather_step_times();
  accelerator.print(accelerate::step_times_table(rows));
  accelerator.print(
      std::to_string(rows[0].num_steps) + " steps of each of " +
      std::to_string(rows.size()) + " ranks");
  expect(num_products == 2 * 3, "three steps of two layers must be recorded");
  expect(
      static_cast<int>(rows.size()) == accelerator.num_processes() &&
          rows[0].num_steps == 19 * loader.size(),
      "every step of every rank must be timed");
  report(accelerator, net);
  accelerator.end_training();
}
