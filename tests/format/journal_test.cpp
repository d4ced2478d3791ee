#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "format/journal/journal_decoder.h"
#include "format/journal/journal_frame.h"
#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "format/journal/journal_writer.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace journal_test {

using testing::expect_error;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;
using Entries = std::vector<JournalEntry>;
using Scalar = JournalScalars::Scalar;
using Pair = std::pair<std::string_view, double>;

// Writes only on request or when it is destroyed.
const JournalWriterOptions kPatient{.interval = std::chrono::hours(1)};

JournalEntry scalars(
    std::optional<std::int64_t> step,
    std::vector<Scalar> values) {
  return {2.5, step, JournalScalars{std::move(values)}};
}

void log(JournalWriter& writer, std::int64_t step, double value) {
  const Pair loss{"loss", value};
  writer.log({&loss, 1}, step);
}

// The values of "loss" in a journal.
std::vector<double> losses(const Entries& entries) {
  std::vector<double> values;
  for (const JournalEntry& entry : entries) {
    if (const auto* found = std::get_if<JournalScalars>(&entry.content))
      for (const Scalar& each : found->scalars) values.push_back(each.value);
  }
  return values;
}

std::vector<double> losses_in(const fs::path& path) {
  return losses(JournalReader(path).read());
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// All entries of a payload.
std::vector<JournalEntry> read_journal_payload(std::string_view payload) {
  std::vector<JournalEntry> entries;
  JournalDecoder decoder(payload);
  while (decoder.next()) entries.push_back(decoder.entry());
  return entries;
}

TEST(JournalFrame, KeepsEveryKindOfEntry) {
  const Entries entries{
      scalars(3, {{"loss", 0.25}, {"", -0.0}}),
      scalars(std::nullopt, {}),
      scalars(
          std::numeric_limits<std::int64_t>::min(),
          {{"loss", std::numeric_limits<double>::infinity()}}),
      {1,
       7,
       JournalEvent{"image", "sample", "image/png", std::string(3, '\0')}},
      {0, std::nullopt, JournalSession{"{}"}},
      {-1, std::numeric_limits<std::int64_t>::max(), JournalRewind{}}};
  JournalEncoder encoder;
  for (const JournalEntry& entry : entries) encoder.add(entry);
  EXPECT_EQ(encoder.num_entries(), entries.size());
  const std::string frame = encoder.take_frame(41);
  EXPECT_EQ(encoder.num_bytes(), 0u);
  const auto header = JournalHeader::read(frame);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->sequence, 41u);
  const std::string payload = frame.substr(kJournalHeaderBytes);
  EXPECT_TRUE(header->describes(payload));
  EXPECT_EQ(read_journal_payload(payload), entries);
}

TEST(JournalFrame, RefusesAnyPayloadWithoutACrash) {
  EXPECT_TRUE(rc::check([](const std::string& bytes) {
    try {
      (void)read_journal_payload(bytes);
    } catch (const Error&) {
    }
  }));
  expect_error<Error>(
      [] {
        (void)read_journal_payload(std::string("X") + std::string(9, '\0'));
      },
      "which a later version wrote");
}

TEST(Journal, IsContinuedByLaterProcesses) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "run" / "journal";
  for (int process = 0; process < 3; ++process) {
    JournalWriter writer(path, std::to_string(process), kPatient);
    for (int i = 0; i < 4; ++i) log(writer, i, 10 * process + i);
    if (process == 1) {
      EXPECT_TRUE(writer.flush());
      log(writer, 4, 14);
    }
  }
  JournalReader reader(path);
  const Entries entries = reader.read();
  EXPECT_EQ(
      losses(entries),
      (std::vector<double>{0, 1, 2, 3, 10, 11, 12, 13, 14, 20, 21, 22, 23}));
  std::string sessions;
  for (const JournalEntry& entry : entries) {
    if (const auto* session = std::get_if<JournalSession>(&entry.content))
      sessions += session->description;
  }
  EXPECT_EQ(sessions, "012");
  EXPECT_EQ(reader.next_sequence(), 4u);
  EXPECT_EQ(reader.num_damaged_bytes(), 0u);
}

TEST(Journal, CanBeReadWhileItIsWritten) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  JournalWriter writer(path, "{}", kPatient);
  ASSERT_TRUE(writer.flush());
  JournalReader reader(path);
  EXPECT_EQ(reader.read().size(), 1u);
  log(writer, 0, 1);
  EXPECT_EQ(reader.read(), Entries());
  ASSERT_TRUE(writer.flush());
  EXPECT_EQ(losses(reader.read()), (std::vector<double>{1}));
  EXPECT_EQ(reader.read(), Entries());
}

// Frames smaller and larger than the blocks in which a file is read, and of
// about their size.
TEST(Journal, IsReadWholeWhateverTheSizesOfItsFrames) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  const std::size_t sizes[] = {
      1, 5000, 1 << 20, 10, (1 << 20) - 60, 3 << 20, 7};
  Entries expected;
  std::ofstream file(path, std::ios::binary);
  JournalEncoder encoder;
  for (const std::size_t size : sizes) {
    const char letter = static_cast<char>('a' + expected.size());
    expected.push_back(
        {1,
         std::nullopt,
         JournalEvent{"text", "", "", std::string(size, letter)}});
    encoder.add(expected.back());
    file << encoder.take_frame(expected.size());
  }
  file.close();
  JournalReader reader(path);
  EXPECT_TRUE(reader.read() == expected);
  EXPECT_EQ(reader.end_of_frames(), fs::file_size(path));
  EXPECT_EQ(reader.num_damaged_bytes(), 0u);
}

TEST(Journal, SaysWhereTheBodiesOfItsEventsAre) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  {
    JournalWriter writer(path, "{}", kPatient);
    log(writer, 0, 1);
    writer.add({"image", "first", "image/png", "one"}, 0);
    ASSERT_TRUE(writer.flush());
    writer.add({"image", "second", "image/png", "another"}, 1);
  }
  JournalReader reader(path);
  std::vector<std::string> bodies;
  reader.read([&](JournalDecoder& entries, std::uint64_t payload) {
    while (entries.next()) {
      if (entries.kind() != JournalDecoder::Kind::event) continue;
      bodies.push_back(reader.read_bytes(
          payload + entries.body_offset(), entries.event().body.size()));
    }
  });
  EXPECT_EQ(bodies, (std::vector<std::string>{"one", "another"}));
  EXPECT_EQ(reader.read_bytes(reader.end_of_frames() - 3, 9), "her");
}

TEST(Journal, GoesOnAfterAFrameThatWasRefused) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  {
    JournalWriter writer(path, "{}", kPatient);
    for (int i = 0; i < 3; ++i) {
      log(writer, i, i);
      ASSERT_TRUE(writer.flush());
    }
  }
  JournalReader reader(path);
  int num_frames = 0;
  const auto refuse_second = [&](JournalDecoder&, std::uint64_t) {
    if (++num_frames == 2) throw Error("[test] refused");
  };
  expect_error<Error>([&] { reader.read(refuse_second); }, "refused");
  EXPECT_EQ(losses(reader.read()), (std::vector<double>{2}));
}

// A power cut can end the file anywhere.
TEST(Journal, LosesOnlyTheFrameThatWasCut) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  std::vector<std::size_t> ends;
  {
    JournalWriter writer(path, "{}", kPatient);
    for (int i = 0; i < 3; ++i) {
      log(writer, i, i);
      ASSERT_TRUE(writer.flush());
      ends.push_back(fs::file_size(path));
    }
  }
  const std::string whole = read_file(path);
  ASSERT_EQ(whole.size(), ends.back());
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    write(path, whole.substr(0, size));
    std::vector<double> expected;
    for (std::size_t i = 0; i < ends.size() && ends[i] <= size; ++i)
      expected.push_back(static_cast<double>(i));
    ASSERT_EQ(losses_in(path), expected) << size;
    {
      JournalWriter writer(path, "{}", kPatient);
      log(writer, 9, 9);
    }
    expected.push_back(9);
    ASSERT_EQ(losses_in(path), expected) << size;
  }
}

TEST(Journal, LosesOnlyTheFrameThatWasDamaged) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  std::vector<std::size_t> ends{0};
  {
    JournalWriter writer(path, "{}", kPatient);
    for (int i = 0; i < 4; ++i) {
      log(writer, i, i);
      ASSERT_TRUE(writer.flush());
      ends.push_back(fs::file_size(path));
    }
  }
  const std::string whole = read_file(path);
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += 3) {
    std::string damaged = whole;
    damaged[bit / 8] =
        static_cast<char>(damaged[bit / 8] ^ static_cast<char>(1U << bit % 8));
    write(path, damaged);
    std::vector<double> expected;
    for (std::size_t i = 0; i < 4; ++i) {
      if (bit / 8 < ends[i] || bit / 8 >= ends[i + 1])
        expected.push_back(static_cast<double>(i));
    }
    JournalReader reader(path);
    ASSERT_EQ(losses(reader.read()), expected) << bit;
    // Damage at the end looks the same as a frame that is still being written.
    const bool is_last = bit / 8 >= ends[3];
    ASSERT_EQ(reader.num_damaged_bytes() > 0, !is_last) << bit;
  }
}

TEST(Journal, HasOneWriter) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  const JournalWriter writer(path, "{}", kPatient);
  expect_error<Error>(
      [&] { JournalWriter(path, "{}", kPatient); },
      "another process is writing");
  expect_error<Error>(
      [&] { JournalWriter(path / "journal", "{}", kPatient); },
      "cannot be opened");
}

TEST(Journal, TakesEntriesOfSeveralThreads) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "journal";
  {
    // Small enough that frames are written while other threads log.
    JournalWriter writer(path, "{}", {.early_bytes = 4096});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&writer, thread] {
        for (int i = 0; i < 5000; ++i) log(writer, i, 5000 * thread + i);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::vector<double> found = losses_in(path);
  std::sort(found.begin(), found.end());
  ASSERT_EQ(found.size(), 20000u);
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_EQ(found[i], static_cast<double>(i));
}

// A disk of limited size.
struct Disk {
  std::string bytes;
  std::size_t room = 0;
  int sync_problem = 0;
  std::size_t largest_write = 0;
};

class DiskFile final : public JournalFile {
 public:
  explicit DiskFile(Disk& disk) : disk_(disk) {}

  int write_at(std::uint64_t offset, std::string_view bytes) override {
    disk_.largest_write = std::max(disk_.largest_write, bytes.size());
    disk_.bytes.resize(static_cast<std::size_t>(offset));
    disk_.bytes += bytes.substr(0, disk_.room - std::min(disk_.room, offset));
    return disk_.bytes.size() < offset + bytes.size() ? ENOSPC : 0;
  }
  int sync() override { return disk_.sync_problem; }
  int truncate(std::uint64_t size) override {
    disk_.bytes.resize(
        std::min(disk_.bytes.size(), static_cast<std::size_t>(size)));
    return 0;
  }

 private:
  Disk& disk_;
};

class FullDisk : public ::testing::Test {
 protected:
  std::vector<double> losses_on_disk() {
    const TemporaryDirectory directory;
    const fs::path path = directory.path() / "journal";
    write(path, disk_.bytes);
    JournalReader reader(path);
    entries_ = reader.read();
    EXPECT_EQ(reader.end_of_frames(), disk_.bytes.size());
    return losses(entries_);
  }
  std::unique_ptr<JournalWriter> writer(std::size_t most_waiting_bytes) {
    return std::make_unique<JournalWriter>(
        std::make_unique<DiskFile>(disk_),
        0,
        0,
        JournalWriterOptions{
            .interval = std::chrono::hours(1),
            .most_waiting_bytes = most_waiting_bytes,
            .report = [this](const std::string& line) {
              lines_.push_back(line);
            }});
  }

  Disk disk_;
  Entries entries_;
  std::vector<std::string> lines_;
};

TEST_F(FullDisk, KeepsEntriesUntilThereIsRoom) {
  const auto journal = writer(1 << 20);
  disk_.room = 1000;
  log(*journal, 0, 0);
  EXPECT_TRUE(journal->flush());
  disk_.room = disk_.bytes.size() + 40;
  for (int i = 1; i < 4; ++i) {
    log(*journal, i, i);
    EXPECT_FALSE(journal->flush());
  }
  EXPECT_EQ(losses_on_disk(), (std::vector<double>{0}));
  EXPECT_THAT(
      lines_,
      ::testing::ElementsAre(::testing::StartsWith(
          "the journal cannot be written: No space left on device")));
  disk_.room = 10000;
  EXPECT_TRUE(journal->flush());
  EXPECT_EQ(losses_on_disk(), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_.back(), "the journal can be written again");
}

TEST_F(FullDisk, CountsWhatDoesNotFitIntoMemory) {
  const auto journal = writer(1000);
  log(*journal, 0, 0);
  EXPECT_FALSE(journal->flush());
  for (int i = 1; i < 1000; ++i) log(*journal, i, i);
  disk_.room = 100000;
  EXPECT_TRUE(journal->flush());
  log(*journal, 1000, 1000);
  EXPECT_TRUE(journal->flush());
  const std::vector<double> found = losses_on_disk();
  const std::size_t lost = 1001 - found.size();
  EXPECT_GT(lost, 900u);
  EXPECT_EQ(found.back(), 1000);
  EXPECT_THAT(
      entries_,
      ::testing::Contains(::testing::Field(
          &JournalEntry::content,
          ::testing::VariantWith<JournalEvent>(::testing::Field(
              &JournalEvent::body,
              std::to_string(lost) +
                  " entries were lost while the journal could not be "
                  "written")))));
}

TEST_F(FullDisk, SaysAtTheEndHowMuchIsLost) {
  auto journal = writer(1000);
  disk_.room = 100;
  log(*journal, 0, 0);
  EXPECT_TRUE(journal->flush());
  disk_.room = disk_.bytes.size();
  for (int i = 1; i < 300; ++i) {
    log(*journal, i, i);
    if (i == 1) {
      EXPECT_FALSE(journal->flush());
    }
  }
  journal.reset();
  EXPECT_EQ(losses_on_disk(), (std::vector<double>{0}));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(
      lines_.back(),
      "299 of the 300 entries that this process logged are not in the journal, "
      "since it could not be written");
}

// Otherwise memory would grow without bound if the disk is slower than the
// loop.
TEST_F(FullDisk, IsWaitedForWhenItIsSlowerThanWhatIsLogged) {
  disk_.room = 1 << 20;
  auto journal = writer(1000);
  std::vector<double> expected;
  for (int i = 0; i < 1000; ++i) {
    log(*journal, i, i);
    expected.push_back(i);
  }
  journal.reset();
  EXPECT_EQ(losses_on_disk(), expected);
  EXPECT_GT(disk_.largest_write, 500u);
  EXPECT_LE(disk_.largest_write, 1000u + kJournalHeaderBytes);
}

TEST_F(FullDisk, WritesAgainWhatCouldNotBeSynced) {
  const auto journal = writer(1 << 20);
  disk_.room = 1000;
  disk_.sync_problem = EIO;
  log(*journal, 0, 5);
  EXPECT_FALSE(journal->flush());
  EXPECT_EQ(disk_.bytes, "");
  disk_.sync_problem = 0;
  EXPECT_TRUE(journal->flush());
  EXPECT_EQ(losses_on_disk(), (std::vector<double>{5}));
}

JournalEntry session() { return {0, std::nullopt, JournalSession{"{}"}}; }

std::vector<std::pair<std::int64_t, double>> points_of(
    const Entries& entries,
    const std::string& name) {
  RunHistory history;
  history.add(entries);
  std::vector<std::pair<std::int64_t, double>> points;
  for (const auto& point : history.series().at(name))
    points.emplace_back(point.step, point.value);
  return points;
}

using Points = std::vector<std::pair<std::int64_t, double>>;

TEST(RunHistory, ReplacesStepsThatALaterProcessRepeats) {
  const Entries entries{
      session(),
      scalars(0, {{"loss", 0}}),
      scalars(1, {{"loss", 1}}),
      scalars(2, {{"loss", 2}}),
      session(),
      scalars(1, {{"loss", 10}}),
      scalars(3, {{"loss", 30}})};
  EXPECT_EQ(points_of(entries, "loss"), (Points{{0, 0}, {1, 10}, {3, 30}}));
}

TEST(RunHistory, DropsAllThatFollowsAStepToWhichTheRunReturns) {
  RunHistory history;
  history.add(
      {session(),
       scalars(1, {{"loss", 1}}),
       scalars(2, {{"loss", 2}, {"other", 3}}),
       {0, 2, JournalEvent{"text", "note", "text/plain", "late"}},
       {0, 1, JournalEvent{"text", "note", "text/plain", "early"}},
       {0, std::nullopt, JournalEvent{"config", "", "application/json", "{}"}},
       session(),
       {0, 1, JournalRewind{}}});
  EXPECT_EQ(history.series().at("loss").size(), 1u);
  EXPECT_EQ(history.series().at("other").size(), 0u);
  EXPECT_EQ(history.events().size(), 2u);
  EXPECT_EQ(history.last_event("text", "note")->event.body, "early");
  EXPECT_EQ(history.last_event("config")->event.body, "{}");
  EXPECT_EQ(history.last_event("image"), nullptr);
  EXPECT_EQ(history.sessions().size(), 2u);
}

// Entries of a run at given times; its first process starts at 0.
class TimedRun {
 public:
  TimedRun& begins(double time) {
    history_.add({{time, std::nullopt, JournalSession{"{}"}}});
    return *this;
  }
  TimedRun& loss(double time, std::int64_t step) {
    history_.add({{time, step, JournalScalars{{{"loss", 1}}}}});
    return *this;
  }
  TimedRun& samples(double time) {
    history_.add({{time, std::nullopt, system_event({{"cpu_percent", time}})}});
    history_.add({{time, std::nullopt, ranks_event({{0, 1, 2, 3}})}});
    history_.add({{time, std::nullopt, warning_event("hot")}});
    return *this;
  }
  TimedRun& rewinds(double time, std::int64_t step) {
    history_.add({{time, step, JournalRewind{}}});
    return *this;
  }
  [[nodiscard]] std::vector<double> times_of(std::string_view kind) const {
    std::vector<double> times;
    for (const auto& each : history_.events())
      if (each.event.kind == kind) times.push_back(each.time);
    return times;
  }
  [[nodiscard]] const RunHistory& history() const { return history_; }

 private:
  RunHistory history_;
};

using Times = std::vector<double>;
using LostTimes = std::vector<RunHistory::LostTime>;

TEST(RunHistory, DropsSamplesOfTheTimeThatWasLost) {
  TimedRun run;
  run.begins(0).loss(1, 1).samples(1.5).loss(2, 2).samples(2.5).loss(3, 3);
  run.samples(3.5).begins(10).samples(10.5).rewinds(11, 1).loss(12, 2);
  EXPECT_EQ(run.history().lost_times(), (LostTimes{{2, 10}}));
  EXPECT_EQ(run.times_of("system"), (Times{1.5, 10.5}));
  EXPECT_EQ(run.times_of("ranks"), (Times{1.5, 10.5}));
  // Warnings stay, because they can say why a process ended.
  EXPECT_EQ(run.times_of("warning"), (Times{1.5, 2.5, 3.5, 10.5}));
}

TEST(RunHistory, DropsSamplesOfStepsThatALaterProcessRepeats) {
  TimedRun run;
  run.begins(0).loss(1, 1).samples(1.5).loss(2, 2).samples(2.5);
  run.begins(10).samples(10.5).loss(11, 2).samples(11.5).loss(12, 3);
  EXPECT_EQ(run.history().lost_times(), (LostTimes{{2, 10}}));
  EXPECT_EQ(run.times_of("system"), (Times{1.5, 10.5, 11.5}));
}

TEST(RunHistory, DropsSamplesSinceAStepToWhichAProcessItselfReturns) {
  TimedRun run;
  run.begins(0).loss(1, 1).samples(1.5).loss(2, 2).samples(2.5);
  run.rewinds(3, 1).samples(3.5).loss(4, 2).samples(4.5);
  EXPECT_EQ(run.history().lost_times(), (LostTimes{{2, 3}}));
  EXPECT_EQ(run.times_of("ranks"), (Times{1.5, 3.5, 4.5}));
}

TEST(RunHistory, KeepsSamplesWhereNothingIsRepeated) {
  TimedRun run;
  run.begins(0).loss(1, 1).samples(1.5).begins(10).rewinds(10.5, 1);
  run.samples(11).loss(12, 2);
  EXPECT_EQ(run.history().lost_times(), LostTimes());
  EXPECT_EQ(run.times_of("system"), (Times{1.5, 11}));
}

// Readers that copy nothing must build the same history.
TEST(RunHistory, IsTheSameFromFrames) {
  EXPECT_TRUE(rc::check([] {
    RunHistory copied, decoded;
    for (const int num_entries :
         *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 6))) {
      Entries entries;
      for (int i = 0; i < num_entries; ++i) {
        const auto step = *rc::gen::inRange<std::int64_t>(0, 5);
        switch (*rc::gen::inRange(0, 6)) {
          case 0:
            entries.push_back(session());
            break;
          case 1:
            entries.push_back({2, step, JournalRewind{}});
            break;
          default:
            entries.push_back(scalars(
                step,
                {{*rc::gen::element<std::string>("a", "b"), 1.0 * i},
                 {"c", 2}}));
        }
      }
      copied.add(entries);
      JournalEncoder encoder;
      for (const JournalEntry& entry : entries) encoder.add(entry);
      const std::string frame = encoder.take_frame(0);
      JournalDecoder decoder(
          std::string_view(frame).substr(kJournalHeaderBytes));
      decoded.begin_frame();
      while (decoder.next()) {
        if (decoder.kind() == JournalDecoder::Kind::scalars)
          decoded.add_scalars(decoder);
        else
          decoded.add(decoder.entry());
      }
    }
    decoded.settle();
    RC_ASSERT(copied.series() == decoded.series());
    RC_ASSERT(copied.lost_times() == decoded.lost_times());
    RC_ASSERT(copied.sessions().size() == decoded.sessions().size());
  }));
}

TEST(RunHistory, OrdersTheStepsOfOneProcess) {
  const Entries entries{
      session(),
      scalars(5, {{"loss", 5}}),
      scalars(2, {{"loss", 2}}),
      scalars(5, {{"loss", 6}}),
      scalars(std::nullopt, {{"loss", 7}})};
  EXPECT_EQ(points_of(entries, "loss"), (Points{{2, 2}, {5, 6}, {6, 7}}));
}

TEST(RunHistory, EndsAtTheLastStepThatThereIs) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  const Entries entries{
      session(),
      scalars(kLast, {{"loss", 1}}),
      scalars(std::nullopt, {{"loss", 2}}),
      scalars(std::numeric_limits<std::int64_t>::min(), {{"loss", 3}})};
  EXPECT_EQ(
      points_of(entries, "loss"),
      (Points{{std::numeric_limits<std::int64_t>::min(), 3}, {kLast, 2}}));
}

}  // namespace journal_test
}  // namespace accelerate::detail
