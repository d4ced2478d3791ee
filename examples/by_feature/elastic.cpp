// The plain loop that goes on when a rank ends, in the same processes on the
// other ranks, or with another number of ranks. Start it with
//   accelerate-cpp launch --num_processes 1:2 --redundancy neighbour PROGRAM
// and kill a rank; with --max_restarts 1 as well, it is replaced. With the
// argument "die" the last rank ends by itself.
#include "task.h"

#include <csignal>
#include <string>

int main(int argc, char** argv) {
  const bool dies = argc > 1 && std::string(argv[1]) == "die";
  const auto train = [&](accelerate::ElasticContext& context) {
    accelerate::AcceleratorOptions options;
    options.gradient_accumulation_steps =
        context.gradient_accumulation_steps(10);
    const accelerate::Accelerator accelerator(options);
    expect(
        10 * accelerator.num_processes() *
                accelerator.gradient_accumulation_steps() ==
            20,
        "a step must have 20 samples, whatever the number of ranks");
    torch::manual_seed(0);
    Net net;
    torch::optim::Adam adam(net->parameters(), 2e-2);
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        adam,
        accelerate::DataLoader(
            training_data(), {.batch_size = 10, .shuffle = true}));
    const bool has_state = context.resume(accelerator);
    accelerator.print(
        "generation " + std::to_string(context.generation()) +
        (has_state ? " goes on in epoch " + std::to_string(loader.epoch())
                   : std::string(" begins")));
    while (loader.epoch() < 20) {
      for (auto& [points, values] : loader) {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(torch::mse_loss(model(points), values));
        optimizer.step();
        optimizer.zero_grad();
        if (context.step_done(accelerator)) return;
      }
      const bool is_last = accelerator.world().is_last_process();
      if (dies && context.generation() == 1 && is_last && loader.epoch() == 10)
        std::raise(SIGKILL);
    }
    report(accelerator, net);
    accelerator.end_training();
  };
  accelerate::run_elastic(train, {.global_batch_size = 20});
}
