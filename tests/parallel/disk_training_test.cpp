// Models whose shards, gradients and optimizer state lie in files.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/adapters.h>

#include "gate/disk/disk_tensors.h"
#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace disk_training_test {

using testing::expect_error;
using testing::has_memory;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kLayers = 4;
constexpr int kWidth = 48;

struct NetImpl : nn::Module {
  explicit NetImpl(torch::ScalarType dtype = torch::kFloat) {
    for (int i = 0; i < kLayers; ++i)
      layers->push_back(nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(
          (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
              .view(parameter.sizes()));
    }
    to(dtype);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<nn::Linear>()->forward(h));
    return h;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

// What lies in files.
struct Kept {
  bool optimizer = true;
  bool parameters = true;
};

struct DiskRun {
  int num_ranks = 1;
  int zero_stage = 3;
  Precision precision = Precision::no;
  bool master_weights = false;
  int accumulation = 1;
  int replicate = 1;
  double max_norm = 0;
  std::string optimizer = "AdamW";
  int num_steps = 3;
  /// Elements of a buffer; few, so that nothing stays in memory by chance.
  int buffer_size = 3000;
  bool overlaps = true;
  /// Elements of parameters that stay in memory.
  std::int64_t max_in_cpu = 0;
  bool steps_in_backward = false;
  bool clips = true;
  /// Elements of parameters that are read ahead.
  std::int64_t elements_ahead = 0;
};

ParallelOptions parallel_of(
    const DiskRun& run,
    const Kept* kept,
    const std::string& directory) {
  DeepSpeedOptions deepspeed{.zero_stage = run.zero_stage};
  if (kept != nullptr) {
    const std::string overlaps = run.overlaps ? "true" : "false";
    deepspeed.hf_ds_config =
        R"({"zero_optimization": {"stage": )" + std::to_string(run.zero_stage);
    if (kept->optimizer)
      deepspeed.hf_ds_config +=
          R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" +
          directory + R"(", "buffer_count": 4, "pipeline_read": )" + overlaps +
          R"(, "pipeline_write": )" + overlaps + "}";
    if (kept->parameters)
      deepspeed.hf_ds_config +=
          R"(, "offload_param": {"device": "nvme", "nvme_path": ")" +
          directory + R"(", "buffer_count": 4, "buffer_size": )" +
          std::to_string(run.buffer_size) + R"(, "max_in_cpu": )" +
          std::to_string(run.max_in_cpu) +
          R"(}, "stage3_prefetch_bucket_size": )" +
          std::to_string(run.elements_ahead);
    deepspeed.hf_ds_config +=
        R"(}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": )" +
        std::string(run.clips ? "1.0" : "0.0") + "}";
    deepspeed.zero_stage = std::nullopt;
    deepspeed.step_in_backward = run.steps_in_backward;
  }
  ParallelOptions options{.deepspeed = deepspeed};
  if (run.replicate > 1) options.replicate = run.replicate;
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name,
    const std::vector<Tensor>& parameters) {
  if (name == "AdamW") {
    return std::make_unique<optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01));
  }
  if (name == "Adam with amsgrad") {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(0.01).amsgrad(true));
  }
  if (name == "Adagrad") {
    return std::make_unique<optim::Adagrad>(
        parameters, torch::optim::AdagradOptions(0.01));
  }
  if (name == "RMSprop") {
    return std::make_unique<torch::optim::RMSprop>(
        parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5));
  }
  return std::make_unique<optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

using Weights = std::map<std::string, Tensor>;

Tensor rows(const Accelerator& accelerator, int step) {
  const Tensor all =
      torch::sin(torch::arange(40 * 12 * kWidth).view({-1, 12, kWidth}));
  const int size = 12 / accelerator.num_processes();
  return all[step].narrow(0, accelerator.process_index() * size, size);
}

using Visit = std::function<void(
    const Accelerator&,
    const Model<NetImpl>&,
    const Optimizer&,
    const Net&)>;

// Trains, and returns all weights as fp32 numbers.
Weights train(
    const DiskRun& run,
    const Kept* kept,
    const Visit& at_end = nullptr,
    const Visit& at_begin = nullptr) {
  const TemporaryDirectory directory;
  Weights end;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options{
        .mixed_precision = run.precision,
        .gradient_accumulation_steps = run.accumulation,
        .parallel = parallel_of(run, kept, directory.path().string()),
        .world = world};
    options.master_weights = run.master_weights;
    Accelerator accelerator(options);
    Net net(run.master_weights ? torch::kBFloat16 : torch::kFloat);
    const auto inner = make_optimizer(run.optimizer, net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, *inner);
    if (at_begin) at_begin(accelerator, model, optimizer, net);
    for (int step = 0; step < run.num_steps * run.accumulation; ++step) {
      const auto micro_step = accelerator.accumulate();
      Tensor x = rows(accelerator, step);
      if (run.master_weights) x = x.to(torch::kBFloat16);
      accelerator.backward(model(x).to(torch::kFloat).pow(2).mean());
      if (run.max_norm > 0 && accelerator.sync_gradients())
        static_cast<void>(accelerator.clip_grad_norm_(model, run.max_norm));
      optimizer.step();
      optimizer.zero_grad();
    }
    if (at_end) at_end(accelerator, model, optimizer, net);
    const auto scope = model.full_parameters();
    if (accelerator.process_index() != 0) return;
    const torch::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters())
      end[item.key()] = item.value().detach().to(torch::kFloat).clone();
  });
  return end;
}

void expect_equal(
    const Weights& found,
    const Weights& expected,
    const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(found.at(name), tensor))
        << what << ": " << name << " differs by "
        << (found.at(name) - tensor).abs().max().item<double>();
}

std::vector<std::pair<std::string, Kept>> all_kept(int stage) {
  std::vector<std::pair<std::string, Kept>> all{{"optimizer", {true, false}}};
  if (stage == 3) {
    all.push_back({"parameters", {false, true}});
    all.push_back({"both", {true, true}});
  }
  return all;
}

// Without files, one rank has no shards, and autocasts in 16 bits. With all
// parameters in memory, it has shards that are not in files.
Weights in_memory(DiskRun run) {
  if (run.num_ranks > 1 ||
      (run.precision == Precision::no && !run.master_weights))
    return train(run, nullptr);
  const Kept nothing{.optimizer = false, .parameters = true};
  run.zero_stage = 3;
  run.max_in_cpu = 1'000'000;
  return train(run, &nothing);
}

void expect_weights_of_memory(const DiskRun& run) {
  const Weights memory = in_memory(run);
  for (const auto& [name, kept] : all_kept(run.zero_stage)) {
    expect_equal(
        train(run, &kept),
        memory,
        name + " of " + std::to_string(run.num_ranks) + " ranks in stage " +
            std::to_string(run.zero_stage) + ", precision " +
            std::string(name_of(run.precision)) + ", window " +
            std::to_string(run.accumulation));
  }
}

// Tries every fifth case where other transports than the default one connect
// the ranks.
class TriedCases {
 public:
  bool is_next_tried() {
    return num_cases_++ % 5 == 0 || testing::ranks_connect_by_default();
  }

 private:
  int num_cases_ = 0;
};

TEST(DiskTraining, EndsWithTheWeightsOfMemoryInEveryBit) {
  TriedCases cases;
  for (const Precision precision :
       {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool accumulates_and_clips : {false, true}) {
      for (const int num_ranks : {1, 2, 3}) {
        if (!cases.is_next_tried()) continue;
        expect_weights_of_memory(
            {.num_ranks = num_ranks,
             .precision = precision,
             .accumulation = accumulates_and_clips ? 2 : 1,
             .max_norm = accumulates_and_clips ? 0.01 : 0});
      }
    }
    for (const int zero_stage : {1, 2}) {
      if (!cases.is_next_tried()) continue;
      expect_weights_of_memory(
          {.num_ranks = 2,
           .zero_stage = zero_stage,
           .precision = precision,
           .accumulation = zero_stage,
           .max_norm = 0.01});
    }
  }
}

TEST(DiskTraining, StepsInBackwardWithTheSameWeights) {
  TriedCases cases;
  for (const auto& [name, kept] : all_kept(3)) {
    if (!kept.optimizer) continue;
    for (const int num_ranks : {1, 2, 3}) {
      for (const int accumulation : {1, 2}) {
        if (!cases.is_next_tried()) continue;
        const DiskRun run{
            .num_ranks = num_ranks,
            .precision = num_ranks == 2 ? Precision::bf16 : Precision::no,
            .accumulation = accumulation,
            .clips = false};
        DiskRun at_once = run;
        at_once.steps_in_backward = true;
        const auto has_stepped = [](const Accelerator& accelerator,
                                    const Model<NetImpl>& model,
                                    const Optimizer& optimizer,
                                    const Net&) {
          accelerator.backward(model(rows(accelerator, 0)).sum());
          for (const auto& group : optimizer.param_groups()) {
            for (const Tensor& parameter : group.params())
              EXPECT_FALSE(parameter.grad().defined());
          }
          optimizer.step();
        };
        const auto is_stepped_on = [](const Accelerator& accelerator,
                                      const Model<NetImpl>& model,
                                      const Optimizer& optimizer,
                                      const Net&) {
          accelerator.backward(model(rows(accelerator, 0)).sum());
          optimizer.step();
        };
        expect_equal(
            train(at_once, &kept, has_stepped),
            train(run, &kept, is_stepped_on),
            name + " of " + std::to_string(num_ranks) + " ranks");
      }
    }
  }
  const Kept optimizer_only{.optimizer = true, .parameters = false};
  for (const int zero_stage : {1, 2}) {
    const DiskRun run{
        .num_ranks = 2,
        .zero_stage = zero_stage,
        .accumulation = zero_stage,
        .clips = false};
    DiskRun at_once = run;
    at_once.steps_in_backward = true;
    expect_equal(
        train(at_once, &optimizer_only),
        train(run, &optimizer_only),
        "stage " + std::to_string(zero_stage));
  }
}

TEST(DiskTraining, RefusesWhatNeedsGradientsAfterTheyWereUsed) {
  const Kept kept;
  const auto with = [&](DiskRun run, const Visit& visit) {
    run.steps_in_backward = true;
    run.clips = false;
    static_cast<void>(train(run, &kept, visit));
  };
  const Visit nothing = nullptr;
  expect_error<ConfigError>(
      [&] { with({.max_norm = 1.0}, nothing); },
      "gradients cannot be clipped or scaled where step_in_backward is true");
  expect_error<ConfigError>(
      [&] { with({.precision = Precision::fp16}, nothing); },
      "use bf16 instead of fp16");
  expect_error<ConfigError>(
      [&] { with({.num_ranks = 4, .replicate = 2}, nothing); },
      "replicate must be 1 where step_in_backward is true, but is 2");
  const Visit twice = [](const Accelerator& accelerator,
                         const Model<NetImpl>& model,
                         const Optimizer&,
                         const Net&) {
    accelerator.backward(model(rows(accelerator, 0)).sum());
    accelerator.backward(model(rows(accelerator, 1)).sum());
  };
  expect_error<ConfigError>(
      [&] { with({.num_ranks = 2}, twice); },
      "but a second one followed before optimizer.step()");
}

TEST(DiskTraining, TakesAnyOptimizerOfLibTorch) {
  for (const char* const optimizer :
       {"SGD", "Adam with amsgrad", "Adagrad", "RMSprop"}) {
    DiskRun run{.num_ranks = 2, .optimizer = optimizer};
    const Weights memory = train(run, nullptr);
    const Kept kept;
    expect_equal(train(run, &kept), memory, optimizer);
    run.elements_ahead = 1'000'000;
    expect_equal(train(run, &kept), memory, optimizer);
    run.overlaps = false;
    expect_equal(train(run, &kept), memory, optimizer);
  }
}

TEST(DiskTraining, KeepsMastersOfSixteenBits) {
  for (const int num_ranks : {1, 2}) {
    const DiskRun run{.num_ranks = num_ranks, .master_weights = true};
    const Weights memory = in_memory(run);
    for (const auto& [name, kept] : all_kept(3))
      expect_equal(train(run, &kept), memory, name);
  }
}

TEST(DiskTraining, AveragesOverReplicasOfShards) {
  const DiskRun run{.num_ranks = 4, .replicate = 2, .max_norm = 0.01};
  const Weights memory = train(run, nullptr);
  for (const auto& [name, kept] : all_kept(3))
    expect_equal(train(run, &kept), memory, name);
}

TEST(DiskTraining, HasNothingInMemoryBetweenUses) {
  const Kept kept;
  train(
      {.num_ranks = 2},
      &kept,
      [](const Accelerator&,
         const Model<NetImpl>&,
         const Optimizer& optimizer,
         const Net&) {
        for (const auto& group : optimizer.param_groups()) {
          for (const Tensor& parameter : group.params()) {
            EXPECT_FALSE(has_memory(parameter));
            const auto& state =
                static_cast<const torch::optim::AdamWParamState&>(
                    *optimizer.inner().state().at(
                        parameter.unsafeGetTensorImpl()));
            EXPECT_FALSE(has_memory(state.exp_avg()));
            EXPECT_FALSE(has_memory(state.exp_avg_sq()));
          }
        }
      });
}

TEST(DiskTraining, LeavesNoFileBehind) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Kept kept;
    const Accelerator accelerator(
        {.parallel = parallel_of({}, &kept, directory.path().string()),
         .world = world});
    Net net;
    optim::AdamW inner(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    accelerator.backward(model(rows(accelerator, 0)).pow(2).mean());
    optimizer.step();
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  });
}

TEST(DiskTraining, ResumesBitForBitOnAnyNumberOfRanks) {
  for (const bool was_on_disk : {true, false}) {
    for (const bool is_on_disk : {true, false}) {
      const Kept kept;
      const TemporaryDirectory saved;
      const DiskRun before{.num_ranks = 2, .max_norm = 0.01, .num_steps = 2};
      static_cast<void>(train(
          before,
          was_on_disk ? &kept : nullptr,
          [&](const Accelerator& accelerator,
              const Model<NetImpl>&,
              const Optimizer&,
              const Net&) { accelerator.save_state(saved.path() / "state"); }));
      const auto load = [&](const Accelerator& accelerator,
                            const Model<NetImpl>&,
                            const Optimizer&,
                            const Net&) {
        accelerator.load_state(saved.path() / "state");
      };
      for (const int num_ranks : {1, 2, 3}) {
        const DiskRun after{.num_ranks = num_ranks, .num_steps = 2};
        const Weights memory = train(after, nullptr, nullptr, load);
        expect_equal(
            train(after, is_on_disk ? &kept : nullptr, nullptr, load),
            memory,
            std::to_string(num_ranks));
      }
    }
  }
}

// Layers of frozen weights and trained adapters beside them.
Weights train_adapters(const Kept* kept, int num_ranks, bool is_quantized) {
  const TemporaryDirectory directory;
  Weights end;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = parallel_of({}, kept, directory.path().string()),
         .world = world});
    Net net;
    std::optional<QuantizedModel> quantized;
    if (is_quantized)
      quantized.emplace(load_and_quantize_model(
          *net,
          {.load_in_4bit = true,
           .bnb_4bit_quant_type = "nf4",
           .skip_modules = std::vector<std::string>()}));
    add_adapters(net, {.rank = 4, .target_modules = "all-linear"});
    std::vector<Tensor> trained;
    for (const Tensor& parameter : net->parameters()) {
      if (!parameter.requires_grad()) continue;
      trained.push_back(parameter);
      // Ranks are threads, which share the random generator.
      const torch::NoGradGuard no_grad;
      parameter.copy_(torch::arange(parameter.numel())
                          .mul(0.7)
                          .sin()
                          .mul(0.3)
                          .view(parameter.sizes()));
    }
    optim::AdamW inner(trained, torch::optim::AdamWOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, inner);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(rows(accelerator, step)).pow(2).mean());
      static_cast<void>(accelerator.clip_grad_norm_(model, 0.01));
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto scope = model.full_parameters();
    if (accelerator.process_index() != 0) return;
    for (const auto& item : net->named_parameters()) {
      if (item.value().requires_grad())
        end[item.key()] = item.value().detach().clone();
    }
  });
  return end;
}

TEST(DiskTraining, TrainsAdaptersOfFrozenAndOfQuantisedWeights) {
  for (const int num_ranks : {1, 2}) {
    const Weights memory = train_adapters(nullptr, num_ranks, false);
    ASSERT_EQ(memory.size(), 2U * kLayers);
    for (const auto& [name, kept] : all_kept(3))
      expect_equal(train_adapters(&kept, num_ranks, false), memory, name);
  }
  const Weights memory = train_adapters(nullptr, 1, true);
  for (const auto& [name, kept] : all_kept(3))
    expect_equal(train_adapters(&kept, 1, true), memory, name + ", nf4");
}

// As train(), with two models that one optimizer steps on, of which the first
// has a frozen layer.
Weights train_two(const Kept* kept) {
  const TemporaryDirectory directory;
  Weights end;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = parallel_of({}, kept, directory.path().string()),
         .world = world});
    Net one, other;
    for (Tensor& parameter : one->layers[1]->parameters())
      parameter.requires_grad_(false);
    std::vector<Tensor> parameters;
    for (const Net& net : {one, other}) {
      for (const Tensor& parameter : net->parameters()) {
        if (parameter.requires_grad()) parameters.push_back(parameter);
      }
    }
    // A parameter of no model.
    parameters.push_back(torch::ones({3}).requires_grad_(true));
    optim::AdamW inner(parameters, torch::optim::AdamWOptions(0.01));
    auto [first, second, optimizer] = accelerator.prepare(one, other, inner);
    for (int step = 0; step < 3; ++step) {
      const Tensor factor = parameters.back().sum();
      accelerator.backward(
          (second(first(rows(accelerator, step))) * factor).pow(2).mean());
      accelerator.clip_grad_value_(first, 0.01);
      optimizer.step();
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      // Reads everything, and forgets the graph.
      const torch::NoGradGuard no_grad;
      static_cast<void>(second(first(rows(accelerator, step))));
    }
    for (const auto& [name, model] :
         {std::pair("one.", first), std::pair("two.", second)}) {
      for (const auto& [key, tensor] : accelerator.get_state_dict(model))
        end[name + key] = tensor.detach().clone();
    }
    if (accelerator.process_index() == 0)
      end["factor"] = parameters.back().detach().clone();
  });
  return end;
}

TEST(DiskTraining, TakesSeveralModelsAndFrozenLayers) {
  const Weights memory = train_two(nullptr);
  for (const auto& [name, kept] : all_kept(3))
    expect_equal(train_two(&kept), memory, name);
}

TEST(DiskTraining, GoesOnAfterMemoryWasFreed) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Kept kept;
    Accelerator accelerator(
        {.parallel = parallel_of({}, &kept, directory.path().string()),
         .world = world});
    Weights first;
    for (int round = 0; round < 2; ++round) {
      Net net;
      optim::AdamW inner(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, inner);
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(model(rows(accelerator, step)).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      Weights weights;
      for (const auto& [key, tensor] :
           accelerator.get_state_dict(model, {.rank0_only = false}))
        weights[key] = tensor.detach().clone();
      if (round == 0) {
        first = weights;
      } else {
        expect_equal(weights, first, "again");
      }
      accelerator.free_memory();
    }
  });
}

TEST(DiskTraining, SavesAndLoadsWeightsOfModels) {
  const TemporaryDirectory saved;
  const Kept kept;
  const Weights trained = train(
      {.num_ranks = 2},
      &kept,
      [&](const Accelerator& accelerator,
          const Model<NetImpl>& model,
          const Optimizer&,
          const Net&) { accelerator.save_model(model, saved.path()); });
  const Weights loaded = train(
      {.num_ranks = 3, .num_steps = 0},
      &kept,
      nullptr,
      [&](const Accelerator& accelerator,
          const Model<NetImpl>& model,
          const Optimizer&,
          const Net&) { accelerator.load_model(model, saved.path()); });
  expect_equal(loaded, trained, "loaded");
}

TEST(DiskTraining, ComposesWithTensorParallelism) {
  const auto train_split = [](const Kept* kept) {
    const TemporaryDirectory directory;
    Weights end;
    run_on_ranks(2, [&](const WorldOptions& world) {
      ParallelOptions parallel =
          parallel_of({}, kept, directory.path().string());
      parallel.tensor = 2;
      const ColwiseParallel gathered{.output_layouts = Replicate{}};
      parallel.parallelize_plan = ParallelizePlan{{"layers.*", gathered}};
      const Accelerator accelerator({.parallel = parallel, .world = world});
      Net net;
      optim::AdamW inner(net->parameters(), torch::optim::AdamWOptions(0.01));
      auto [model, optimizer] = accelerator.prepare(net, inner);
      for (int step = 0; step < 3; ++step) {
        const Tensor x =
            torch::sin(torch::arange(12 * kWidth) + step).view({12, kWidth});
        accelerator.backward(model(x).pow(2).mean());
        static_cast<void>(accelerator.clip_grad_norm_(model, 0.01));
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const auto& [key, tensor] : accelerator.get_state_dict(model))
        end[key] = tensor.detach().clone();
    });
    return end;
  };
  const Weights memory = train_split(nullptr);
  for (const auto& [name, kept] : all_kept(3))
    expect_equal(train_split(&kept), memory, name);
}

TEST(DiskTraining, TakesEmptyModelsThatRanksSplit) {
  const TemporaryDirectory saved;
  {
    const Net net;
    save_model(*net, saved.path());
  }
  for (const int tensor : {1, 2}) {
    const auto trained = [&](const Kept* kept, bool is_empty) {
      const TemporaryDirectory directory;
      Weights end;
      run_on_ranks(2, [&](const WorldOptions& world) {
        ParallelOptions parallel =
            parallel_of({}, kept, directory.path().string());
        parallel.tensor = tensor;
        if (tensor > 1) {
          const ColwiseParallel gathered{.output_layouts = Replicate{}};
          parallel.parallelize_plan = ParallelizePlan{{"layers.*", gathered}};
        }
        const Accelerator accelerator({.parallel = parallel, .world = world});
        Net net = is_empty ? init_empty_weights([] { return Net(); }) : Net();
        optim::AdamW inner(net->parameters(), torch::optim::AdamWOptions(0.01));
        auto [model, optimizer] = accelerator.prepare(net, inner);
        accelerator.load_model(model, saved.path());
        accelerator.backward(
            model(torch::sin(torch::arange(12 * kWidth)).view({12, kWidth}))
                .pow(2)
                .mean());
        optimizer.step();
        for (const auto& [key, value] : accelerator.get_state_dict(model))
          end[key] = value.detach().clone();
      });
      return end;
    };
    const Kept kept;
    expect_equal(
        trained(&kept, true), trained(nullptr, false), std::to_string(tensor));
  }
}

struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  [[nodiscard]] double get_lr() const override { return 0.1; }
  void set_lr(double) override {}
};
struct OwnOptimizer : torch::optim::Optimizer, optim::Elementwise {
  explicit OwnOptimizer(std::vector<Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  Tensor step(LossClosure) override { return {}; }
};

TEST(DiskTraining, RefusesAnOptimizerThatMayNotStepInParts) {
  const TemporaryDirectory directory;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Kept kept;
    const Accelerator accelerator(
        {.parallel = parallel_of({}, &kept, directory.path().string()),
         .world = world});
    Net net;
    const auto optimizer = std::make_shared<OwnOptimizer>(net->parameters());
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, optimizer); },
        "[parallel] an optimizer of shards in files must be SGD, Adam, AdamW, "
        "Adagrad or RMSprop, but is of another class");
  });
}

TEST(DiskTraining, LeavesOptimizersOfOtherModelsAlone) {
  const TemporaryDirectory directory;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Kept kept;
    const Accelerator accelerator(
        {.parallel = parallel_of({}, &kept, directory.path().string()),
         .world = world});
    Net net;
    optim::AdamW adamw(net->parameters());
    const auto own = std::make_shared<OwnOptimizer>(
        std::vector<Tensor>{torch::ones({3}).requires_grad_(true)});
    auto [model, optimizer, other] = accelerator.prepare(net, adamw, own);
    accelerator.backward(model(rows(accelerator, 0)).pow(2).mean());
    optimizer.step();
    other.step();
  });
}

TEST(DiskTraining, NamesADirectoryThatIsMissing) {
  run_on_ranks(1, [](const WorldOptions& world) {
    expect_error<ConfigError>(
        [&] {
          const Kept kept;
          const Accelerator accelerator(
              {.parallel = parallel_of({}, &kept, "/nowhere/at/all"),
               .world = world});
          Net net;
          accelerator.prepare(net);
        },
        "/nowhere/at/all, where shards are kept, must be a directory, but");
  });
}

}  // namespace disk_training_test
}  // namespace accelerate
