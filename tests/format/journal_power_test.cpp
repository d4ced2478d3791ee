// Every state in which a power cut can leave the disk while a journal is
// written: what was durable is there, in order, and nothing else gets in its
// way.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/files.h"
#include "format/journal/journal_file.h"
#include "format/journal/journal_reader.h"
#include "format/journal/journal_writer.h"
#include "support/recorded_disk.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace journal_power_test {

namespace fs = std::filesystem;
using testing::RecordedDisk;
using testing::TemporaryDirectory;

// Writes only on request or when it is destroyed.
const JournalWriterOptions kPatient{.interval = std::chrono::hours(1)};

// A journal's file whose writes the disk records.
class RecordedFile final : public JournalFile {
 public:
  // Fails sync number `failing_sync`, counting from 1.
  RecordedFile(
      const fs::path& path,
      std::shared_ptr<RecordedDisk> disk,
      int failing_sync)
      : file_(open_journal_file(path, disk)),
        disk_(std::move(disk)),
        path_(path),
        num_syncs_left_(failing_sync) {}

  int write_at(std::uint64_t offset, std::string_view bytes) override {
    disk_->note_write(path_, offset, bytes);
    return file_->write_at(offset, bytes);
  }
  int sync() override {
    if (--num_syncs_left_ == 0) return EIO;
    disk_->sync_file(path_);
    return file_->sync();
  }
  int truncate(std::uint64_t size) override {
    disk_->note_truncate(path_, size);
    return file_->truncate(size);
  }

 private:
  std::unique_ptr<JournalFile> file_;
  std::shared_ptr<RecordedDisk> disk_;
  fs::path path_;
  int num_syncs_left_;
};

void log(JournalWriter& writer, int value) {
  const std::pair<std::string_view, double> loss{"loss", value};
  writer.log({&loss, 1}, value);
}

std::vector<double> losses_in(const fs::path& path) {
  std::vector<double> values;
  for (const JournalEntry& entry : JournalReader(path).read()) {
    if (const auto* found = std::get_if<JournalScalars>(&entry.content))
      for (const auto& each : found->scalars) values.push_back(each.value);
  }
  return values;
}

std::vector<double> count_to(int end) {
  std::vector<double> values;
  for (int i = 0; i < end; ++i) values.push_back(i);
  return values;
}

struct Durable {
  std::size_t num_operations;
  int num_values;
};

class Scenario {
 public:
  explicit Scenario(const fs::path& root)
      : root_(root), path_(root / "runs" / "one" / "journal") {}

  // Starts with what an earlier process left: `num_values`, then part of a
  // frame.
  void begin_with(int num_values, double part) {
    fs::create_directories(path_.parent_path());
    {
      JournalWriter writer(path_, "{}", kPatient);
      for (int i = 0; i < num_values; ++i) log(writer, i);
    }
    const auto whole = fs::file_size(path_);
    {
      JournalWriter writer(path_, "{}", kPatient);
      log(writer, 77);
    }
    const auto more = static_cast<double>(fs::file_size(path_) - whole);
    fs::resize_file(path_, whole + static_cast<std::uint64_t>(part * more));
    num_values_ = num_values;
  }

  // A process that logs in groups and makes each durable.
  void log_groups(const std::vector<int>& sizes, int failing_sync = 0) {
    disk_ = std::make_shared<RecordedDisk>(root_);
    durable_ = {{0, num_values_}};
    JournalWriter writer(
        std::make_unique<RecordedFile>(path_, disk_, failing_sync),
        path_,
        "{}",
        kPatient);
    for (const int size : sizes) {
      for (int i = 0; i < size; ++i) log(writer, num_values_++);
      if (writer.flush())
        durable_.push_back({disk_->num_operations(), num_values_});
    }
    log(writer, num_values_++);  // for the destructor
  }

  // Cuts the power after each operation; returns the number of states.
  std::size_t check_cuts() {
    const TemporaryDirectory scratch(TemporaryDirectory::memory());
    std::size_t num_states = 0;
    for (std::size_t n = 0; n <= disk_->num_operations(); ++n) {
      int num_durable = 0;
      for (const Durable& each : durable_) {
        if (each.num_operations <= n) num_durable = each.num_values;
      }
      if (n == disk_->num_operations()) num_durable = num_values_;
      num_states += disk_->for_each_state(
          n, scratch / "state", [&](const fs::path& root) {
            check(root / "runs" / "one" / "journal", num_durable, n);
          });
      if (::testing::Test::HasFatalFailure()) break;
    }
    return num_states;
  }

 private:
  void check(const fs::path& path, int num_durable, std::size_t cut) const {
    if (!fs::exists(path)) {
      ASSERT_EQ(num_durable, 0) << "no journal after operation " << cut;
      return;
    }
    const std::vector<double> found = losses_in(path);
    const int num_found = static_cast<int>(found.size());
    ASSERT_GE(num_found, num_durable) << cut;
    ASSERT_LE(num_found, num_values_) << cut;
    ASSERT_EQ(found, count_to(num_found)) << cut;
    // The next process continues after it.
    {
      JournalWriter writer(path, "{}", kPatient);
      log(writer, num_found);
    }
    JournalReader reader(path);
    ASSERT_EQ(losses_in(path), count_to(num_found + 1)) << cut;
    (void)reader.read();
    ASSERT_EQ(reader.num_damaged_bytes(), 0u) << cut;
    ASSERT_EQ(reader.end_of_frames(), fs::file_size(path)) << cut;
  }

  fs::path root_;
  fs::path path_;
  std::shared_ptr<RecordedDisk> disk_;
  std::vector<Durable> durable_;
  int num_values_ = 0;
};

// The journal's directories and name are new, too.
TEST(JournalPower, NoCutLosesWhatWasDurableOfANewJournal) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  Scenario scenario(directory.path());
  scenario.log_groups({1, 3, 200, 2, 1, 40});
  EXPECT_GT(scenario.check_cuts(), 100u);
}

TEST(JournalPower, NoCutLosesWhatEarlierProcessesWrote) {
  for (const double part : {0.0, 0.1, 0.5, 0.9}) {
    const TemporaryDirectory directory(TemporaryDirectory::memory());
    Scenario scenario(directory.path());
    scenario.begin_with(5, part);
    scenario.log_groups({2, 100, 1});
    EXPECT_GT(scenario.check_cuts(), 30u) << part;
  }
}

// Data that could not be synced is truncated and written again.
TEST(JournalPower, NoCutLosesWhatWasDurableWhenASyncFailed) {
  for (const int failing_sync : {1, 2, 4}) {
    const TemporaryDirectory directory(TemporaryDirectory::memory());
    Scenario scenario(directory.path());
    scenario.log_groups({2, 1, 50, 1, 3}, failing_sync);
    EXPECT_GT(scenario.check_cuts(), 100u) << failing_sync;
  }
}

}  // namespace journal_power_test
}  // namespace accelerate::detail
