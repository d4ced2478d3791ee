// Every state in which a crash during a save can leave the disk, and a fault at
// every file system call of a save.
#include <cerrno>
#include <set>

#include <accelerate/error.h>

#include "checkpoint/load/checkpoint_reader.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/save/checkpoint_writer.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"
#include "support/recorded_disk.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace crash_states_test {

namespace fs = std::filesystem;
using detail::CheckpointContents;
using detail::FileSystem;
using detail::Layout;
using detail::SaveJob;
using detail::StoreGroup;
using testing::FailingDisk;
using testing::make_unsynced_disk;
using testing::RecordedDisk;
using testing::TemporaryDirectory;

at::Tensor weight(int number) {
  return at::arange(24, at::kFloat).reshape({4, 6}) + 100 * number;
}

// "weight" is sharded, two rows per rank; "bias" is replicated.
CheckpointContents contents_of(int number, int rank, int num_ranks) {
  CheckpointContents contents;
  detail::Section model{"model", {}, {}};
  Layout rows = Layout::unsharded({4, 6});
  if (num_ranks == 2) {
    rows.offset = {2 * rank, 0};
    rows.extent = {2, 6};
    rows.split_axes = {Axis::shard};
  }
  const at::Tensor mine =
      num_ranks == 2 ? weight(number).narrow(0, 2 * rank, 2) : weight(number);
  model.entries.push_back({"weight", mine, rows, true});
  model.entries.push_back(
      {"bias",
       at::full({3}, number, at::kLong),
       Layout::unsharded({3}),
       rank == 0});
  contents.sections.push_back(std::move(model));
  contents.state.set("number", std::int64_t{number});
  contents.rank_state.set("number", std::int64_t{number});
  return contents;
}

// Saves to checkpoint_<number> as save_state() does, keeping `limit`
// checkpoints.
void save(
    const std::shared_ptr<FileSystem>& disk,
    const fs::path& base,
    int number,
    int limit,
    const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  for (int i = 0; i < world.size(); ++i) ranks[static_cast<std::size_t>(i)] = i;
  const std::string name = "checkpoint_" + std::to_string(number);
  const auto plan =
      detail::plan_retention(detail::list_checkpoints(base), name, limit);
  ASSERT_TRUE(plan);
  std::vector<fs::path> deleted;
  for (const std::string& old : plan->deleted) deleted.push_back(base / old);
  StoreGroup group(world, "saves of " + std::to_string(number), ranks);
  detail::CheckpointWriter writer(
      SaveJob{
          contents_of(number, world.rank(), world.size()),
          base / name,
          number,
          world.rank(),
          world.size(),
          std::move(deleted),
          disk,
          Logger([](const LogRecord&) {}, LogLevel::off)},
      group);
  writer.write();
}

void save(
    const std::shared_ptr<FileSystem>& disk,
    const fs::path& base,
    int number,
    int limit) {
  save(disk, base, number, limit, World({.rank = 0, .size = 1}));
}

// Returns the number of the newest checkpoint after comparing its contents, or
// -1 if there is none.
int load_newest(const fs::path& base) {
  if (fs::is_directory(base)) {
    detail::restore_put_aside(*make_unsynced_disk(), base);
  }
  const auto entries = detail::list_checkpoints(base);
  const auto* const newest = detail::newest_of(entries);
  if (newest == nullptr) return -1;
  const int number = static_cast<int>(*newest->number);
  const detail::CheckpointReader checkpoint(base / newest->name);
  checkpoint.verify();
  const at::Tensor found = at::empty({4, 6});
  const at::Tensor bias = at::empty({3}, at::kLong);
  detail::read_into(
      checkpoint.tensors("model"),
      {{"weight", found, Layout::unsharded({4, 6})},
       {"bias", bias, Layout::unsharded({3})}});
  EXPECT_TRUE(found.equal(weight(number))) << number;
  EXPECT_TRUE(bias.equal(at::full({3}, number, at::kLong))) << number;
  EXPECT_EQ(
      checkpoint.state("state.safetensors").get<std::int64_t>("number"),
      number);
  return number;
}

std::size_t num_hidden(const fs::path& base) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(base)) {
    count += entry.path().filename().string().starts_with('.');
  }
  return count;
}

struct Scenario {
  const char* name;
  int num_before;
  int number;
  int limit;
  int num_ranks;
  bool can_exchange;
};

class CrashStates : public ::testing::TestWithParam<Scenario> {};

TEST_P(CrashStates, AlwaysLeaveTheNewestLoadable) {
  const Scenario scenario = GetParam();
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path root = directory / "disk";
  const fs::path base = root / "checkpoints";
  fs::create_directories(root);
  for (int i = 0; i < scenario.num_before; ++i) {
    save(make_unsynced_disk(), base, i, 10);
  }
  auto disk = std::make_shared<RecordedDisk>(root, scenario.can_exchange);
  testing::run_in_worlds(scenario.num_ranks, [&](const World& world) {
    save(disk, base, scenario.number, scenario.limit, world);
  });
  ASSERT_EQ(
      load_newest(base), std::max(scenario.number, scenario.num_before - 1));

  std::size_t num_states = 0;
  std::set<int> seen;
  for (std::size_t i = 0; i <= disk->num_operations(); ++i) {
    num_states += disk->for_each_state(
        i, directory / "state", [&](const fs::path& state) {
          const int newest = load_newest(state / "checkpoints");
          seen.insert(newest);
          ASSERT_GE(newest, scenario.num_before - 1) << "after " << i;
          if (i == disk->num_operations()) {
            ASSERT_EQ(
                newest, std::max(scenario.number, scenario.num_before - 1));
          }
          // Saving still works after the crash.
          if (num_states % 16 == 0) {
            save(
                make_unsynced_disk(),
                state / "checkpoints",
                100,
                scenario.limit);
            ASSERT_EQ(load_newest(state / "checkpoints"), 100);
            ASSERT_EQ(num_hidden(state / "checkpoints"), 0u);
          }
        });
    if (HasFatalFailure()) return;
  }
  RecordProperty("states", static_cast<int>(num_states));
  std::cout << scenario.name << ": " << disk->num_operations()
            << " operations, " << num_states << " states\n";
  EXPECT_GT(num_states, 500u);
  EXPECT_GT(seen.size(), scenario.number >= scenario.num_before ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Saves,
    CrashStates,
    ::testing::Values(
        Scenario{"first", 0, 0, 3, 1, true},
        Scenario{"keep_one", 1, 1, 1, 1, true},
        Scenario{"keep_three", 4, 4, 3, 1, true},
        Scenario{"replace", 3, 0, 3, 1, true},
        Scenario{"replace_without_exchange", 3, 0, 3, 1, false},
        Scenario{"two_ranks", 1, 1, 1, 2, true},
        Scenario{"two_ranks_replace", 2, 0, 2, 2, false}),
    [](const auto& tested) { return tested.param.name; });

class Faults : public ::testing::TestWithParam<int> {};

TEST_P(Faults, AtAnyCallLeaveTheOldCheckpointAndAClearError) {
  for (const bool goes_on : {false, true}) {
    for (const int limit : {1, 3}) {
      for (std::size_t call = 0;; ++call) {
        const TemporaryDirectory directory(TemporaryDirectory::memory());
        const fs::path base = directory / "checkpoints";
        save(make_unsynced_disk(), base, 0, limit);
        const auto disk =
            std::make_shared<FailingDisk>(call, GetParam(), goes_on);
        bool has_thrown = false;
        try {
          save(disk, base, 1, limit);
        } catch (const Error& error) {
          has_thrown = true;
          EXPECT_NE(
              std::string(error.what()).find(std::strerror(GetParam())),
              std::string::npos)
              << error.what();
        }
        const int newest = load_newest(base);
        EXPECT_GE(newest, 0) << call;
        if (!has_thrown) {
          EXPECT_EQ(newest, 1) << call;
        }
        save(make_unsynced_disk(), base, 2, limit);
        EXPECT_EQ(load_newest(base), 2) << call;
        EXPECT_EQ(num_hidden(base), 0u) << call;
        if (!disk->has_failed()) break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Disk,
    Faults,
    ::testing::Values(ENOSPC, EIO, EROFS),
    [](const auto& tested) {
      return std::string(::strerrorname_np(tested.param));
    });

}  // namespace crash_states_test
}  // namespace accelerate
