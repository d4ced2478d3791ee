// Experts in the stages of a pipeline: trained as in one process, with every
// other axis; and a rank that fails while tokens are in flight.
#include <mutex>

#include <gmock/gmock.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/expert_net.h"

namespace accelerate {
namespace expert_pipeline_test {

using testing::expect_error;
using testing::expect_like;
using testing::ExpertBlockImpl;
using testing::ExpertGrid;
using testing::ExpertNet;
using testing::ExpertNetOptions;
using testing::ExpertOutcome;
using testing::ExpertRun;
using testing::run_on_ranks;
using torch::Tensor;

namespace F = torch::nn::functional;

constexpr int kMicroBatches = 2;
constexpr double kTolerance = 3e-5;

PipelineLayers layers_of(const ExpertNet& net) {
  PipelineLayers layers;
  layers.add("embed", net->embed)
      .add_each<ExpertBlockImpl>("blocks", *net->blocks)
      .add("head", net->head);
  return layers;
}

// The rows that this rank reads in several micro-steps of train_expert_net(),
// one after another; each micro-step is a micro-batch.
struct Batch {
  Tensor inputs;
  Tensor labels;
};

Batch batch_of(const Mesh& mesh, int step) {
  const std::int64_t share = testing::kNetSamples / mesh.batch_count();
  const std::int64_t positions =
      testing::kNetPositions / mesh.degree(Axis::context);
  std::vector<Tensor> parts;
  for (int i = 0; i < kMicroBatches; ++i) {
    const auto numbers = torch::arange(
        testing::kNetSamples * testing::kNetPositions *
        (testing::kNetInputs + 1));
    parts.push_back(
        torch::sin(numbers * 1.7 + 11 * (step * kMicroBatches + i))
            .view(
                {testing::kNetSamples,
                 testing::kNetPositions,
                 testing::kNetInputs + 1})
            .narrow(0, mesh.batch_rank() * share, share)
            .narrow(1, mesh.coordinate(Axis::context) * positions, positions));
  }
  const Tensor rows = torch::cat(parts);
  return {
      rows.narrow(2, 0, testing::kNetInputs),
      ((rows.select(2, testing::kNetInputs) + 1) * 2.49).to(torch::kLong)};
}

struct StagedRun {
  ExpertRun run = {};
  int stages = 2;
  std::string schedule = "1F1B";
};

ExpertOutcome train_in_stages(const StagedRun& staged) {
  const ExpertRun& run = staged.run;
  ExpertOutcome outcome;
  std::mutex mutex;
  run_on_ranks(
      run.grid.num_ranks() * staged.stages, [&](const WorldOptions& world) {
        AcceleratorOptions options = testing::accelerator_options(run, world);
        options.parallel.pipeline = staged.stages;
        const Accelerator accelerator(options);
        const ExpertNet net(run.net);
        const Pipeline pipeline(
            accelerator,
            layers_of(net),
            {.schedule = parse_pipeline_schedule(staged.schedule),
             .num_micro_batches = kMicroBatches});
        torch::optim::SGD sgd(
            pipeline.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
        auto optimizer = accelerator.prepare(sgd);
        ExpertOutcome own;
        for (int step = 0; step < run.steps; ++step) {
          optimizer.zero_grad();
          const Batch batch = batch_of(accelerator.mesh(), step);
          pipeline.step(
              batch.inputs,
              batch.labels,
              [](const Tensor& logits, const Tensor& labels) {
                return F::cross_entropy(logits.flatten(0, 1), labels.flatten());
              });
          own.norms.push_back(accelerator.clip_grad_norm_(pipeline.model(), 0.5)
                                  .item<double>());
          optimizer.step();
        }
        for (const auto& [name, tensor] : accelerator.get_state_dict(
                 pipeline.model(), {.rank0_only = false}))
          own.weights[name] = tensor.detach().clone();
        const std::lock_guard lock(mutex);
        if (accelerator.is_main_process()) outcome = std::move(own);
      });
  return outcome;
}

// Does not compare losses: train_expert_net() adds the experts' losses to them.
void expect_like_one_process(const std::vector<StagedRun>& cases) {
  for (const StagedRun& staged : cases) {
    SCOPED_TRACE(
        std::to_string(staged.stages) + " stages, " + staged.run.grid.name() +
        ", " + staged.schedule);
    ExpertRun alone = staged.run;
    alone.grid = {};
    alone.window = kMicroBatches;
    ExpertOutcome expected = testing::outcome_of(alone);
    expected.losses.clear();
    expect_like(expected, train_in_stages(staged), kTolerance);
  }
}

TEST(ExpertPipeline, IsThatOfOneProcess) {
  for (const char* const schedule : {"GPipe", "1F1B", "ZBH1"}) {
    expect_like_one_process(
        {{.stages = 2, .schedule = schedule},
         {.run = {.grid = {.replicate = 2, .expert = 2}},
          .stages = 2,
          .schedule = schedule},
         {.run = {.grid = {.shard = 2, .expert = 2}},
          .stages = 2,
          .schedule = schedule}});
  }
}

TEST(ExpertPipeline, RecomputesAndTakesModules) {
  expect_like_one_process(
      {{.run =
            {.grid = {.replicate = 2, .expert = 2},
             .net = {.by_modules = true},
             .recomputes = true}},
       // The first stage has no experts, and the last stage only the head.
       {.run = {.grid = {.replicate = 2, .expert = 2}}, .stages = 4}});
}

TEST(ExpertPipeline, CombinesWithEveryAxis) {
  expect_like_one_process(
      {{.run =
            {.grid = {.replicate = 2, .expert = 2, .tensor = 2}, .steps = 2}},
       {.run = {.grid = {.shard = 2, .expert = 2, .context = 2}, .steps = 2}},
       {.run = {
            .grid = {.shard = 2, .expert = 2, .context = 2, .tensor = 2},
            .steps = 2}}});
}

// All six axes.
TEST(ExpertPipeline, CombinesAllAxesOn32Ranks) {
  if (!testing::ranks_connect_as_threads())
    GTEST_SKIP() << "32 ranks over sockets take a minute";
  expect_like_one_process({{.run = {.grid = {2, 2, 4, 2, 2}, .steps = 2}}});
}

// An expert that throws on one rank while the other waits for its results.
TEST(ExpertFaults, NameTheRankThatIsGone) {
  struct Failing : torch::nn::Module {
    explicit Failing(bool fails) : is_failing(fails) {}
    Tensor forward(const Tensor& x) {
      if (is_failing) throw std::runtime_error("this expert fails");
      return linear(x);
    }
    torch::nn::Linear linear =
        register_module("linear", torch::nn::Linear(4, 4));
    bool is_failing;
  };
  std::string seen;
  expect_error<std::runtime_error>(
      [&] {
        run_on_ranks(2, [&](const WorldOptions& world) {
          const bool fails = world.rank == 1;
          const Accelerator accelerator(
              {.parallel = {.replicate = 2, .expert = 2}, .world = world});
          ExpertLayer layer(ExpertLayerOptions{
              .hidden_size = 4,
              .num_experts = 2,
              .make_expert = [fails](std::int64_t) {
                return torch::nn::AnyModule(std::make_shared<Failing>(fails));
              }});
          const auto model = accelerator.prepare(layer);
          try {
            static_cast<void>(model(torch::ones({6, 4})));
          } catch (const DistributedError& error) {
            seen = error.what();
          }
        });
      },
      "this expert fails");
  EXPECT_THAT(
      seen,
      ::testing::AllOf(
          ::testing::HasSubstr("exchanging the tokens of"),
          ::testing::HasSubstr("rank 1")));
}

}  // namespace expert_pipeline_test
}  // namespace accelerate
