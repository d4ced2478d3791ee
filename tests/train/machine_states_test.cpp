// In-memory states of several machines, whose ranks are simulated.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "train/elastic/machine_states.h"

namespace accelerate {
namespace machine_states_test {

using detail::MachineStates;
using detail::MemoryState;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TemporaryDirectory;

namespace fs = std::filesystem;

/// Ranks per machine, and how they parallelize the model.
struct Machines {
  std::vector<int> sizes;
  ParallelOptions parallel = {};
  /// Names of the machines if they can change; each has its own memory.
  std::vector<int> names = {};
  /// Leaves optimizers out of checkpoints, but not out of in-memory states.
  bool leaves_out_optimizers = false;

  [[nodiscard]] ParallelOptions options() const {
    ParallelOptions all = parallel;
    if (leaves_out_optimizers)
      all.megatron_lm = {.no_load_optim = true, .no_save_optim = true};
    return all;
  }

  [[nodiscard]] int num_ranks() const {
    return std::accumulate(sizes.begin(), sizes.end(), 0);
  }
  [[nodiscard]] fs::path memory_of(int rank, const fs::path& memory) const {
    if (names.empty()) return memory;
    std::size_t machine = 0;
    for (int end = sizes[0]; rank >= end; end += sizes[machine]) ++machine;
    return memory.string() + "_" + std::to_string(names[machine]);
  }
  [[nodiscard]] WorldOptions place(WorldOptions world) const {
    int first = 0;
    for (const int size : sizes) {
      if (*world.rank < first + size) {
        world.local_rank = *world.rank - first;
        world.local_size = size;
        return world;
      }
      first += size;
    }
    return world;
  }
};

std::string name_of_state(int number) {
  return "generation_0_before_checkpoint_4_state_" + std::to_string(number);
}

/// A rank of a small training run, whose machines keep states below `memory`.
class Rank {
 public:
  Rank(
      const Machines& machines,
      const WorldOptions& world,
      const fs::path& memory,
      std::uint64_t seed)
      : accelerator_(
            {.parallel = machines.options(),
             .journal = false,
             .world = machines.place(world)}),
        net_(make_net(seed)),
        adamw_(net_->parameters(), 0.01),
        prepared_(accelerator_.prepare(net_, adamw_)),
        states_(
            accelerator_.world(),
            machines.memory_of(*world.rank, memory),
            !machines.names.empty()) {
    states_.make_directories();
    found_ = states_.survey();
  }

  void step(int number) { step_on(number + accelerator_.process_index()); }
  // The same step on all ranks, whatever their number.
  void common_step(int number) { step_on(number); }
  void step_on(int number) {
    auto& [model, optimizer] = prepared_;
    const torch::Tensor inputs = torch::arange(12).add(number).sin();
    accelerator_.backward(model(inputs.view({2, 6})).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  // Keeps a state; returns what all ranks agreed about its save and its copies,
  // or nothing if it could not even begin.
  std::vector<MachineStates::Progress> keep(int number) {
    std::vector<MachineStates::Progress> verdicts;
    if (!states_.begin(accelerator_, name_of_state(number))) return {};
    while (verdicts.size() < 2 &&
           (verdicts.empty() || verdicts.back() == MachineStates::done)) {
      const torch::Tensor most =
          torch::full({1}, std::int64_t{states_.progress()}, torch::kLong);
      accelerator_.world().group().all_reduce(most, ReduceOp::max);
      const auto agreed =
          static_cast<MachineStates::Progress>(most.item<std::int64_t>());
      states_.advance(agreed);
      if (agreed != MachineStates::busy) verdicts.push_back(agreed);
    }
    return verdicts;
  }
  std::map<std::string, torch::Tensor> values() {
    std::map<std::string, torch::Tensor> values;
    for (const auto& [name, tensor] :
         accelerator_.get_state_dict(std::get<0>(prepared_)))
      values.emplace(name, tensor.clone());
    return values;
  }
  [[nodiscard]] MachineStates& states() { return states_; }
  [[nodiscard]] const std::vector<MemoryState>& found() const { return found_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }

 private:
  static torch::nn::Sequential make_net(std::uint64_t seed) {
    torch::manual_seed(seed);
    return torch::nn::Sequential(
        torch::nn::Linear(6, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3));
  }

  Accelerator accelerator_;
  torch::nn::Sequential net_;
  torch::optim::AdamW adamw_;
  decltype(std::declval<Accelerator&>().prepare(
      std::declval<torch::nn::Sequential&>(),
      std::declval<torch::optim::AdamW&>())) prepared_;
  MachineStates states_;
  std::vector<MemoryState> found_;
};

/// Runs two steps, keeps a state and runs one more step on machines; remembers
/// the model after that.
class Kept {
 public:
  explicit Kept(Machines machines) : machines_(std::move(machines)) {
    run(1, [&](Rank& rank) {
      EXPECT_THAT(rank.found(), IsEmpty());
      EXPECT_EQ(rank.states().next_number(), 0);
      rank.step(0);
      rank.step(1);
      EXPECT_THAT(
          rank.keep(0),
          ::testing::ElementsAre(MachineStates::done, MachineStates::done));
      rank.step(2);
      const auto values = rank.values();
      if (rank.accelerator().is_main_process()) after_ = values;
    });
  }

  template <class Body>
  void run(std::uint64_t seed, const Body& body) {
    testing::run_on_ranks(
        machines_.num_ranks(), [&](const WorldOptions& world) {
          Rank rank(machines_, world, memory(), seed);
          body(rank);
          rank.accelerator().finish();
        });
  }
  // Loads the state on fresh ranks, and repeats the third step.
  void expect_goes_on() {
    run(2, [&](Rank& rank) {
      ASSERT_THAT(rank.found(), SizeIs(1));
      EXPECT_EQ(rank.found().front().number, 0);
      EXPECT_EQ(rank.found().front().next_checkpoint, 4);
      rank.states().load(
          rank.accelerator(), rank.found().front().path.string(), {});
      rank.states().settle();
      rank.step(2);
      const auto values = rank.values();
      if (!rank.accelerator().is_main_process()) return;
      ASSERT_EQ(values.size(), after_.size());
      for (const auto& [name, tensor] : values)
        EXPECT_TRUE(tensor.equal(after_.at(name))) << name;
    });
    for (std::size_t i = 0; i < machines_.sizes.size(); ++i) {
      EXPECT_TRUE(fs::exists(of(i) / "parts" / name_of_state(0))) << i;
      EXPECT_TRUE(fs::exists(of(i) / "copies" / name_of_state(0))) << i;
    }
  }
  [[nodiscard]] fs::path memory() const { return directory_ / "memory"; }
  // Returns the directory of a machine.
  [[nodiscard]] fs::path of(std::size_t machine) const {
    const std::string start = "machine_" + std::to_string(machine) + "_of_";
    for (const auto& entry : fs::directory_iterator(memory())) {
      if (entry.path().filename().string().starts_with(start))
        return entry.path();
    }
    return {};
  }

 private:
  TemporaryDirectory directory_;
  Machines machines_;
  std::map<std::string, torch::Tensor> after_;
};

std::vector<Machines> all_machines() {
  return {
      {{1, 1}},
      {{2, 2}, {.replicate = 2, .shard = 2}},
      {{2, 1}, {.shard = 3}},
      {{1, 1, 2}, {.shard = 4}},
      {{3, 1}, {.replicate = 2, .shard = 2}}};
}

TEST(MachineStates, GiveAMachineBackWhatItHasLost) {
  for (const Machines& machines : all_machines()) {
    for (std::size_t lost = 0; lost < machines.sizes.size(); ++lost) {
      Kept kept(machines);
      fs::remove_all(kept.of(lost));
      kept.expect_goes_on();
    }
  }
}

TEST(MachineStates, KeepOptimizersWhateverCheckpointsLeaveOut) {
  Kept kept({.sizes = {1, 1}, .leaves_out_optimizers = true});
  kept.expect_goes_on();
}

TEST(MachineStates, NeedNoCopiesIfNothingIsLost) {
  Kept kept({{2, 1}, {.shard = 3}});
  for (const std::size_t machine : {0, 1})
    fs::remove_all(kept.of(machine) / "copies");
  kept.expect_goes_on();
}

TEST(MachineStates, SayWhatNobodyHolds) {
  Kept kept({{1, 1, 1}, {.shard = 3}});
  fs::remove_all(kept.of(1));
  fs::remove_all(kept.of(2));
  kept.run(2, [&](Rank& rank) {
    EXPECT_THAT(rank.found(), IsEmpty());
    EXPECT_EQ(
        rank.states().lost(),
        "state 0 in memory cannot be used: no machine holds machine 1's part "
        "of it");
    EXPECT_EQ(rank.states().next_number(), 1);
    rank.states().settle();
  });
  EXPECT_FALSE(fs::exists(kept.of(0) / "parts" / name_of_state(0)));
  EXPECT_FALSE(fs::exists(kept.of(0) / "copies" / name_of_state(0)));
}

// Machine 1 was lost while its part of state 1 was being sent to machine 0.
TEST(MachineStates, GoBackToTheStateBeforeOneThatIsNotComplete) {
  Kept kept({{1, 2}, {.shard = 3}});
  const fs::path newer = kept.of(0) / "parts" / name_of_state(1);
  fs::copy(
      kept.of(0) / "parts" / name_of_state(0),
      newer,
      fs::copy_options::recursive);
  const fs::path torn =
      kept.of(0) / "copies" / ("." + name_of_state(1) + ".moving");
  fs::create_directory(torn);
  std::ofstream(torn / "manifest.json") << "{";
  fs::remove_all(kept.of(1));
  kept.expect_goes_on();
  EXPECT_FALSE(fs::exists(newer));
  EXPECT_FALSE(fs::exists(torn));
  kept.run(3, [&](Rank& rank) { EXPECT_EQ(rank.states().next_number(), 1); });
}

TEST(MachineStates, KeepOnlyTheNewestCompleteOne) {
  Kept kept({{2, 1}, {.shard = 3}});
  kept.run(2, [&](Rank& rank) {
    EXPECT_THAT(
        rank.keep(1),
        ::testing::ElementsAre(MachineStates::done, MachineStates::done));
  });
  for (const std::size_t machine : {0, 1}) {
    for (const char* kind : {"parts", "copies"}) {
      const fs::path directory = kept.of(machine) / kind;
      EXPECT_TRUE(fs::exists(directory / name_of_state(1)));
      EXPECT_FALSE(fs::exists(directory / name_of_state(0)));
    }
  }
}

// This happens when memory is full.
TEST(MachineStates, StayAsTheyAreWhenTheNextOneCannotBeKept) {
  for (const char* kind : {"parts", "copies"}) {
    Kept kept({{2, 1}, {.shard = 3}});
    kept.run(2, [&](Rank& rank) {
      const fs::path place = kept.of(1) / kind;
      const fs::path aside = kept.memory() / "aside";
      const bool breaks = rank.accelerator().process_index() == 2;
      if (breaks) {
        fs::rename(place, aside);
        std::ofstream(place) << "not a directory";
      }
      rank.accelerator().wait_for_everyone();
      if (kind == std::string("copies")) {
        EXPECT_THAT(
            rank.keep(1),
            ::testing::ElementsAre(MachineStates::done, MachineStates::failed));
      } else {
        EXPECT_THAT(rank.keep(1), IsEmpty());
      }
      if (breaks) {
        fs::remove(place);
        fs::rename(aside, place);
      }
    });
    kept.expect_goes_on();
  }
}

using Values = std::map<std::string, torch::Tensor>;

void run(
    const Machines& machines,
    const fs::path& memory,
    std::uint64_t seed,
    const std::function<void(Rank&)>& body) {
  testing::run_on_ranks(machines.num_ranks(), [&](const WorldOptions& world) {
    Rank rank(machines, world, memory, seed);
    body(rank);
    rank.accelerator().finish();
  });
}

/// Keeps a state on some machines and loads it on others.
class Moved {
 public:
  Moved(const Machines& before, bool is_whole) {
    run(before, memory(), 1, [&](Rank& rank) {
      rank.common_step(0);
      rank.common_step(1);
      if (is_whole) {
        rank.states().keep_whole(rank.accelerator(), name_of_state(0));
      } else {
        EXPECT_THAT(
            rank.keep(0),
            ::testing::ElementsAre(MachineStates::done, MachineStates::done));
      }
      rank.common_step(2);
      const auto values = rank.values();
      if (rank.accelerator().is_main_process()) after_ = values;
    });
  }
  void lose(int machine) const { fs::remove_all(memory_of(machine)); }
  [[nodiscard]] fs::path memory_of(int machine) const {
    return memory().string() + "_" + std::to_string(machine);
  }
  [[nodiscard]] fs::path memory() const { return directory_ / "memory"; }
  // Loads the state on fresh ranks, and repeats the third step.
  void expect_goes_on(const Machines& after) const {
    run(after, memory(), 2, [&](Rank& rank) {
      ASSERT_THAT(rank.found(), SizeIs(1)) << rank.states().lost();
      rank.states().load(
          rank.accelerator(), rank.found().front().path.string(), {});
      rank.states().settle();
      EXPECT_EQ(rank.states().next_number(), 1);
      rank.common_step(2);
      const Values values = rank.values();
      if (!rank.accelerator().is_main_process()) return;
      ASSERT_EQ(values.size(), after_.size());
      for (const auto& [name, tensor] : values) {
        EXPECT_TRUE(tensor.allclose(after_.at(name), 1e-5, 1e-6))
            << name << tensor << after_.at(name);
      }
    });
  }

 private:
  TemporaryDirectory directory_;
  Values after_;
};

Machines machines_of(
    const std::vector<int>& names,
    int size,
    ParallelOptions parallel = {}) {
  return {std::vector<int>(names.size(), size), parallel, names};
}

TEST(MachineStates, AreMadeWholeForOtherMachines) {
  const auto sharded = [](int degree) {
    return ParallelOptions{.shard = degree};
  };
  // Machine 1 is lost; machine 3 is new and takes the place of another.
  struct Change {
    Machines before, after;
  };
  for (const Change& change :
       {Change{machines_of({0, 1}, 1), machines_of({0}, 1)},
        Change{machines_of({0, 1, 2}, 1), machines_of({0, 2, 3}, 1)},
        Change{
            machines_of({0, 1, 2}, 1, sharded(3)),
            machines_of({0, 2, 3}, 1, sharded(3))},
        Change{
            machines_of({0, 1}, 2, sharded(4)),
            machines_of({0}, 2, sharded(2))},
        Change{
            machines_of({0, 1, 2}, 2, {.replicate = 3, .shard = 2}),
            machines_of({0, 2, 3, 4}, 2, {.replicate = 2, .shard = 4})}}) {
    const Moved moved(change.before, /*is_whole=*/false);
    moved.lose(1);
    moved.expect_goes_on(change.after);
  }
}

// Including neighbours that leave together.
TEST(MachineStates, KeepAWholeOneBeforeMachinesLeave) {
  for (const auto& parallel :
       {ParallelOptions{}, ParallelOptions{.shard = 3}}) {
    const Moved moved(machines_of({0, 1, 2}, 1, parallel), /*is_whole=*/true);
    moved.lose(1);
    moved.lose(2);
    moved.expect_goes_on(machines_of({0}, 1));
    // The state stays on all machines until the next one is complete.
    moved.lose(0);
  }
  const Moved moved(machines_of({0}, 1), /*is_whole=*/true);
  moved.expect_goes_on(machines_of({0, 1}, 1));
  moved.lose(0);
  moved.expect_goes_on(machines_of({1, 2}, 1, {.shard = 2}));
}

TEST(MachineStates, OfOtherMachinesGoWhenTheNextOneIsComplete) {
  const Moved moved(machines_of({0, 1}, 1), /*is_whole=*/false);
  const Machines after = machines_of({1, 2}, 1);
  run(after, moved.memory(), 2, [&](Rank& rank) {
    ASSERT_THAT(rank.found(), SizeIs(1));
    rank.states().load(rank.accelerator(), name_of_state(0), {});
    rank.states().settle();
    rank.accelerator().wait_for_everyone();
    EXPECT_TRUE(fs::exists(moved.memory_of(2) / "whole" / name_of_state(0)));
    EXPECT_THAT(
        rank.keep(1),
        ::testing::ElementsAre(MachineStates::done, MachineStates::done));
  });
  for (const int machine : {1, 2}) {
    EXPECT_FALSE(
        fs::exists(moved.memory_of(machine) / "whole" / name_of_state(0)));
  }
  EXPECT_FALSE(fs::exists(
      moved.memory_of(1) / "machine_1_of_2x1/parts" / name_of_state(0)));
  EXPECT_TRUE(fs::exists(
      moved.memory_of(1) / "machine_0_of_2x1/parts" / name_of_state(1)));
}

TEST(MachineStates, CannotBeMadeWholeFromAPartAlone) {
  const Moved moved(machines_of({0, 1, 2}, 1), /*is_whole=*/false);
  moved.lose(1);
  moved.lose(2);
  run(machines_of({0, 3}, 1), moved.memory(), 2, [&](Rank& rank) {
    EXPECT_THAT(rank.found(), IsEmpty());
    EXPECT_EQ(rank.states().next_number(), 0);
  });
}

}  // namespace machine_states_test
}  // namespace accelerate
