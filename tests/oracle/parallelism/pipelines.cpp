// Steps of pipelines, and models that are divided for inference.
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerator.h>
#include <accelerate/pipeline.h>
#include <accelerate/prepare_pippy.h>

#include "oracle/parallelism/parallelism.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle::topic_parallelism {

namespace pipelines_detail {

using torch::nn::Linear;
using torch::nn::LinearImpl;

constexpr std::int64_t kInputSeed = 40;
constexpr std::int64_t kTargetSeed = 50;
constexpr std::int64_t kPippyInputSeed = 45;

// Layer `index` of a model of linear layers, each followed by tanh.
Linear recorded_linear(std::int64_t in, std::int64_t out, int index) {
  Linear linear(in, out);
  const torch::NoGradGuard no_grad;
  linear->weight.copy_(values({out, in}, 1 + 2 * index, 0.5));
  linear->bias.copy_(values({out}, 2 + 2 * index, 0.25));
  return linear;
}

at::Tensor tanh_of(LinearImpl& linear, const at::Tensor& x) {
  return torch::tanh(linear.forward(x));
}

PipelineScheduleKind schedule_named(const std::string& name) {
  if (name == "ScheduleGPipe") return PipelineScheduleKind::gpipe;
  if (name == "Schedule1F1B") return PipelineScheduleKind::one_f_one_b;
  throw NotBuilt(name);
}

Json ask_for_outcome(const PippyModel& model, const at::Tensor& x, bool feeds) {
  const PipelineTensors output = feeds ? model(x) : model();
  Json outcome{{"split_points", model.hf_split_points()}, {"output", nullptr}};
  if (!output.empty()) outcome["output"] = write_tensor(output[0]);
  return outcome;
}

}  // namespace pipelines_detail

Json pipeline_step(const Json& input) {
  using namespace pipelines_detail;
  const int num_ranks = input.at("num_processes");
  const std::int64_t width = input.at("width");
  const std::vector<std::int64_t> shape{input.at("batch"), width};
  const bool sums = input.at("loss") == "sum";
  PipelineOptions options{
      .schedule = schedule_named(input.at("schedule")),
      .num_micro_batches = input.at("microbatches").get<int>(),
      .micro_batch_loss = input.at("scale_grads").get<bool>()
          ? MicroBatchLoss::mean
          : MicroBatchLoss::sum};
  for (int stage = 1; stage < num_ranks; ++stage)
    options.split_points.push_back("stage" + std::to_string(stage) + ".0");
  Json outcome;
  Json gradients(static_cast<std::size_t>(num_ranks), Json::array());
  testing::run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = num_ranks}, .world = world});
    PipelineLayers layers;
    for (int stage = 0; stage < num_ranks; ++stage) {
      layers.add(
          "stage" + std::to_string(stage) + ".0",
          recorded_linear(width, width, stage),
          &tanh_of);
    }
    const Pipeline pipeline(accelerator, layers, options);
    const PipelineResult result = pipeline.step(
        values(shape, kInputSeed),
        values(shape, kTargetSeed),
        [&](const at::Tensor& output, const at::Tensor& target) {
          const at::Tensor squares = (output - target).square();
          return sums ? squares.sum() : squares.mean();
        },
        {.return_outputs = true});
    const int rank = accelerator.process_index();
    Json own = Json::array();
    for (const auto& item : pipeline.model().named_parameters()) {
      const std::string& name = item.key();
      own.push_back(
          {name.substr(name.find('.') + 1), write_tensor(item.value().grad())});
    }
    gradients[static_cast<std::size_t>(rank)] = {rank, std::move(own)};
    if (!pipeline.has_last_stage()) return;
    outcome["output"] = write_tensor(result.outputs[0]);
    for (const at::Tensor& loss : result.losses)
      outcome["losses"].push_back(loss.item<double>());
  });
  outcome["gradients"] = std::move(gradients);
  return outcome;
}

Json divide_for_inference(const Json& input) {
  using namespace pipelines_detail;
  const int num_ranks = input.at("num_processes");
  const std::vector<std::int64_t> widths = input.at("widths");
  PreparePippyOptions options{
      .gather_output = input.at("gather_output").get<bool>()};
  if (input.at("split_points").is_array())
    input.at("split_points").get_to(options.split_points);
  if (!input.at("num_chunks").is_null())
    options.num_chunks = input.at("num_chunks").get<int>();
  const at::Tensor x = values({input.at("batch"), widths[0]}, kPippyInputSeed);
  std::vector<Json> ranks(static_cast<std::size_t>(num_ranks));
  testing::run_in_worlds(num_ranks, [&](const World& world) {
    Json& outcome = ranks[static_cast<std::size_t>(world.rank())];
    try {
      PipelineLayers layers;
      for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
        const auto index = static_cast<int>(i);
        layers.add(
            "layer" + std::to_string(i),
            recorded_linear(widths[i], widths[i + 1], index),
            &tanh_of);
      }
      const PippyModel model = prepare_pippy(world, layers, options);
      outcome = ask_for_outcome(model, x, world.rank() == 0);
    } catch (const std::exception& error) {
      outcome = {{"error", error.what()}};
    }
  });
  return {{"ranks", ranks}};
}

}  // namespace accelerate::oracle::topic_parallelism
