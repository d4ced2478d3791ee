// Two programs that save under the same name at once.
#include <accelerate/error.h>

#include <fstream>

#include "format/checkpoint/commit.h"
#include "support/expect_error.h"
#include "support/recorded_disk.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace two_programs_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::make_unsynced_disk;
using testing::TemporaryDirectory;

Manifest manifest_of(const std::string& writer) {
  Manifest manifest;
  manifest.writer = writer;
  manifest.created = "2026-11-21T14:00:00Z";
  return manifest;
}

std::string writer_of(const fs::path& checkpoint) {
  return read_manifest(checkpoint).writer;
}

std::size_t num_entries(const fs::path& directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(directory)) {
    ++count;
  }
  return count;
}

TEST(TwoPrograms, DoNotReplaceANewCheckpointOfEachOther) {
  const TemporaryDirectory directory;
  const fs::path target = directory / "checkpoint_0";
  PendingCheckpoint one(make_unsynced_disk(), target);
  {
    PendingCheckpoint other(make_unsynced_disk(), target);
    other.commit(manifest_of("the other"));
  }
  expect_error<CheckpointError>(
      [&] { one.commit(manifest_of("one")); },
      "was written by another program");
  EXPECT_EQ(writer_of(target), "the other");
}

TEST(TwoPrograms, DoNotReplaceWhatTheOtherHasReplaced) {
  const TemporaryDirectory directory;
  const fs::path target = directory / "out";
  PendingCheckpoint(make_unsynced_disk(), target)
      .commit(manifest_of("the first"));
  {
    PendingCheckpoint one(make_unsynced_disk(), target);
    PendingCheckpoint(make_unsynced_disk(), target)
        .commit(manifest_of("the other"));
    expect_error<CheckpointError>(
        [&] { one.commit(manifest_of("one")); },
        "was written by another program");
  }
  EXPECT_EQ(writer_of(target), "the other");
  EXPECT_EQ(num_entries(directory.path()), 1u);
  // The next save sees the checkpoint and can replace it.
  PendingCheckpoint(make_unsynced_disk(), target)
      .commit(manifest_of("the next"));
  EXPECT_EQ(writer_of(target), "the next");
}

// A disk on which another program commits between the check of the name and the
// rename.
class Race final : public testing::RecordedDisk {
 public:
  Race(const fs::path& root, bool can_exchange)
      : RecordedDisk(root, can_exchange) {}

  std::function<void()> other_program;

  bool rename_to_unused(const fs::path& from, const fs::path& to) override {
    act();
    return RecordedDisk::rename_to_unused(from, to);
  }
  bool exchange(const fs::path& one, const fs::path& other) override {
    act();
    return RecordedDisk::exchange(one, other);
  }

 private:
  void act() {
    if (const auto acts = std::exchange(other_program, nullptr)) acts();
  }
};

TEST(TwoPrograms, LeaveTheFasterOnesCheckpointAlsoBetweenLookAndRename) {
  const TemporaryDirectory directory;
  const fs::path target = directory / "checkpoint_0";
  const auto disk = std::make_shared<Race>(directory.path(), true);
  {
    PendingCheckpoint one(disk, target);
    disk->other_program = [&] {
      PendingCheckpoint(make_unsynced_disk(), target)
          .commit(manifest_of("the other"));
    };
    expect_error<CheckpointError>(
        [&] { one.commit(manifest_of("one")); },
        "was written by another program");
  }
  EXPECT_EQ(writer_of(target), "the other");
  EXPECT_EQ(num_entries(directory.path()), 1u);
}

TEST(TwoPrograms, GiveBackACheckpointThatAnExchangeTookByMistake) {
  const TemporaryDirectory directory;
  const fs::path target = directory / "out";
  PendingCheckpoint(make_unsynced_disk(), target)
      .commit(manifest_of("the first"));
  const auto disk = std::make_shared<Race>(directory.path(), true);
  {
    PendingCheckpoint one(disk, target);
    disk->other_program = [&] {
      // In place, so that the recorded disk knows the directory.
      std::ofstream(target / "manifest.json")
          << manifest_text(manifest_of("the other"));
    };
    expect_error<CheckpointError>(
        [&] { one.commit(manifest_of("one")); },
        "was written by another program");
  }
  EXPECT_EQ(writer_of(target), "the other");
  EXPECT_EQ(num_entries(directory.path()), 1u);
}

}  // namespace two_programs_test
}  // namespace accelerate::detail
