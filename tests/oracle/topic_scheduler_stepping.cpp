#include "oracle/schedules.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

Json run_scheduler_stepping(const Json& input) {
  const int count = input.at("num_processes");
  std::vector<Json> found(static_cast<std::size_t>(count));
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    // fp16 enables the scaler; with autocast off nothing is computed in fp16.
    const bool split = input.at("split_batches");
    Accelerator accelerator(
        {.mixed_precision = Precision::fp16,
         .autocast = {.enabled = false},
         .grad_scaler = {.init_scale = 1, .growth_interval = 1 << 30},
         .gradient_accumulation_steps =
             input.at("accumulation_steps").get<int>(),
         .gradient_accumulation =
             {.sync_with_dataloader = input.at("sync_with_dataloader")},
         .scheduler =
             {.step_with_optimizer = input.at("step_scheduler_with_optimizer"),
              .step_with_processes = !split},
         .world = world});
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), input.at("lr").get<double>());
    const auto schedule = make_schedule(input.at("schedule"));
    schedule->bind(sgd);
    const std::int64_t length = input.at("batches_per_rank");
    const std::int64_t per_rank = split ? count : 1;
    auto [model, optimizer, scheduler, loader] = accelerator.prepare(
        net,
        sgd,
        *schedule,
        DataLoader(
            TensorDataset{torch::ones({length * count, 1})},
            {.batch_size = per_rank, .split_batches = split}));
    const auto overflow_at = input.at("overflow_at").get<std::vector<int>>();
    Json lrs = Json::array(), syncs = Json::array(), skipped = Json::array();
    int micro_step = 0;
    const int epochs = input.at("epochs");
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (auto& [x] : loader) {
        const auto scope = accelerator.accumulate(model);
        torch::Tensor loss = model(x).sum();
        if (std::count(overflow_at.begin(), overflow_at.end(), micro_step++) >
            0) {
          loss = loss * INFINITY;
        }
        accelerator.backward(loss);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        lrs.push_back(sgd.param_groups()[0].options().get_lr());
        syncs.push_back(accelerator.sync_gradients());
        skipped.push_back(accelerator.optimizer_step_was_skipped());
      }
    }
    found[static_cast<std::size_t>(accelerator.process_index())] = {
        {"lrs", lrs}, {"sync_gradients", syncs}, {"step_was_skipped", skipped}};
  });
  for (const Json& of_rank : found) {
    if (of_rank != found[0]) throw std::logic_error("ranks differ");
  }
  return found[0];
}

}  // namespace accelerate::oracle
