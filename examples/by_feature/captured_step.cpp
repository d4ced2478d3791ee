// Steps of a small net as reinforcement learning takes them: each draws its
// batch from a memory of samples on the device, so that the host only launches
// kernels. On a GPU, accelerator.capture() launches them as one graph; on a CPU
// and with several ranks the same loop runs plainly, and says why.
#include <chrono>
#include <cstdio>
#include <string>

#include "task.h"

namespace {

constexpr int kSteps = 1000;

/// Takes `kSteps` steps; returns the microseconds of one.
template <class Step>
double time_of(const Step& step) {
  const auto start = std::chrono::steady_clock::now();
  torch::Tensor loss;
  for (int i = 0; i < kSteps; ++i) loss = step();
  loss.item();  // waits for the device
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count() / kSteps;
}

}  // namespace

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  torch::optim::StepLR step_lr(adam, 500, 0.7);
  auto [model, optimizer, schedule] = accelerator.prepare(net, adam, step_lr);

  std::vector<std::int64_t> all(500);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int64_t>(i);
  const auto [points, values] = accelerate::send_to_device(
      training_data().get_batch(all), accelerator.device());

  const auto take_step = [&,
                          &model = model,
                          &optimizer = optimizer,
                          &schedule = schedule,
                          &points = points,
                          &values = values] {
    const torch::Tensor chosen = torch::randint(
        500, {64}, torch::dtype(torch::kLong).device(accelerator.device()));
    const torch::Tensor loss = torch::mse_loss(
        model(points.index_select(0, chosen)), values.index_select(0, chosen));
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    schedule.step();
    optimizer.zero_grad();
    return loss;
  };
  const auto captured = accelerator.capture(take_step);

  const double plain_time = time_of(take_step);
  const double captured_time = time_of(captured);
  char line[96];
  std::snprintf(
      line,
      sizeof line,
      "microseconds per step: plain %.0f, captured %.0f",
      plain_time,
      captured_time);
  accelerator.print(line);
  accelerator.print(
      captured.captured() ? std::string("the steps were replayed")
                          : "the steps ran plainly: " + captured.reason());
  const auto counts = captured.counts();
  expect(
      captured.captured() ? counts.replayed > kSteps / 2
                          : counts.plain == kSteps,
      "steps must be replayed after the first few, or all run plainly");
  report(accelerator, net);
  accelerator.end_training();
}
