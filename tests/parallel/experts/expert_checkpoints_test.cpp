// Experts are saved on any grid and loaded on any other.
#include <accelerate/accelerate.h>

#include "support/expert_net.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace expert_checkpoints_test {

using testing::expect_like;
using testing::ExpertGrid;
using testing::ExpertNet;
using testing::ExpertNetOptions;
using testing::ExpertOutcome;
using testing::ExpertRun;
using testing::named;
using testing::run_expert_net;
using testing::TemporaryDirectory;
using testing::train_expert_net;
using testing::Weights;

const ExpertGrid kGrids[] = {
    {},
    {.replicate = 2, .expert = 2},
    {.shard = 4, .expert = 2},
    {.replicate = 2, .shard = 2, .expert = 4},
    {.shard = 2, .expert = 2, .tensor = 2},
    {.replicate = 3, .expert = 3}};

constexpr int kBefore = 3, kAfter = 2;

template <class Accel, class Net>
Weights weights_of(const Accel& accelerator, const Net& model) {
  return named(accelerator.get_state_dict(model, {.rank0_only = false}));
}

ExpertRun run_on_grid(const ExpertGrid& grid, bool by_modules) {
  return {
      .grid = grid,
      .net = {.num_experts = 5, .by_modules = by_modules},
      .adam = true};
}

TEST(ExpertCheckpoints, ResumeOnAnyOtherGrid) {
  for (const bool by_modules : {false, true}) {
    for (const ExpertGrid& from : kGrids) {
      const TemporaryDirectory directory;
      ExpertOutcome expected;
      Weights saved;
      run_expert_net(
          run_on_grid(from, by_modules),
          [&](const auto& accelerator, auto& model, auto& optimizer) {
            ExpertOutcome own;
            train_expert_net(accelerator, model, optimizer, 0, kBefore, own);
            accelerator.save_state(directory / "state");
            accelerator.save_model(model, directory / "model");
            const Weights mine = weights_of(accelerator, model);
            own = {};
            train_expert_net(
                accelerator, model, optimizer, kBefore, kBefore + kAfter, own);
            own.weights = weights_of(accelerator, model);
            if (!accelerator.is_main_process()) return;
            saved = mine;
            expected = own;
          });
      // save_model() writes the model that one process would have.
      ExpertNet plain(run_on_grid({}, by_modules).net);
      load_model(*plain, directory / "model");
      const Weights loaded = named(get_state_dict(*plain));
      ASSERT_EQ(loaded.size(), saved.size());
      for (const auto& [name, weight] : saved)
        EXPECT_TRUE(torch::equal(loaded.at(name), weight)) << name;
      for (const ExpertGrid& to : kGrids) {
        // All ways to and from one grid, and from each grid to itself.
        const bool is_tried = from.name() == kGrids[2].name() ||
            to.name() == kGrids[2].name() || from.name() == to.name();
        if (!is_tried) continue;
        SCOPED_TRACE(from.name() + " to " + to.name());
        ExpertOutcome found;
        run_expert_net(
            run_on_grid(to, by_modules),
            [&](const auto& accelerator, auto& model, auto& optimizer) {
              ExpertOutcome own;
              // Changes the values before they are loaded.
              train_expert_net(accelerator, model, optimizer, 7, 8, own);
              accelerator.load_state(directory / "state");
              for (const auto& [name, weight] : weights_of(accelerator, model))
                EXPECT_TRUE(torch::equal(weight, saved.at(name))) << name;
              own = {};
              train_expert_net(
                  accelerator,
                  model,
                  optimizer,
                  kBefore,
                  kBefore + kAfter,
                  own);
              own.weights = weights_of(accelerator, model);
              if (accelerator.is_main_process()) found = own;
            });
        expect_like(expected, found, 3e-4);
      }
    }
  }
}

TEST(ExpertCheckpoints, LoadModelsOnAnyGrid) {
  for (const bool by_modules : {false, true}) {
    const TemporaryDirectory directory;
    ExpertNet plain(run_on_grid({}, by_modules).net);
    {
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : plain->parameters()) parameter.mul_(1.5);
    }
    save_model(*plain, directory.path());
    const Weights expected = named(get_state_dict(*plain));
    for (const ExpertGrid& grid : kGrids) {
      SCOPED_TRACE(grid.name());
      run_expert_net(
          run_on_grid(grid, by_modules),
          [&](const auto& accelerator, auto& model, auto&) {
            accelerator.load_model(model, directory.path());
            for (const auto& [name, weight] : weights_of(accelerator, model))
              EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name;
          });
    }
  }
}

}  // namespace expert_checkpoints_test
}  // namespace accelerate
