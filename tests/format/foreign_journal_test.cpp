// Files that are called "journal": which of them a run may continue, and what
// it may cut off.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "format/journal/journal_frame.h"
#include "format/journal/journal_reader.h"
#include "format/journal/journal_writer.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace foreign_journal_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

std::string frame(std::uint64_t sequence, double value) {
  JournalEncoder encoder;
  encoder.add({0, 1, JournalScalars{{{"loss", value}}}});
  return encoder.take_frame(sequence);
}

class AFileCalledJournal : public ::testing::Test {
 protected:
  void write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // A process that logs one value.
  void go_on() {
    lines_.clear();
    JournalWriter writer(
        path_, "{}", {.report = [this](const std::string& line) {
          lines_.push_back(line);
        }});
    const std::pair<std::string_view, double> loss{"loss", 7};
    writer.log({&loss, 1}, 9);
  }
  std::vector<double> losses() {
    std::vector<double> values;
    for (const JournalEntry& entry : JournalReader(path_).read()) {
      if (const auto* found = std::get_if<JournalScalars>(&entry.content))
        for (const auto& each : found->scalars) values.push_back(each.value);
    }
    return values;
  }

  TemporaryDirectory directory_{TemporaryDirectory::memory()};
  fs::path path_ = directory_ / "journal";
  std::vector<std::string> lines_;
};

TEST_F(AFileCalledJournal, IsLeftAloneIfItIsNone) {
  std::string other_version = frame(0, 1);
  other_version[3] = '2';
  const std::string zeros_and_more = std::string(100, '\0') + "x";
  const std::pair<std::string, const char*> table[] = {
      {"diary\n", "is not a journal, and is left as it is"},
      {"ACJ1 is where the book begins that I write", "is not a journal"},
      {std::string(4096, 'x'), "is not a journal"},
      {zeros_and_more, "is not a journal"},
      {other_version, "a later version wrote it"},
      {other_version.substr(0, 4), "a later version wrote it"},
      {frame(0, 1) + other_version, "a later version wrote it"}};
  for (const auto& [bytes, phrase] : table) {
    SCOPED_TRACE(bytes.substr(0, 10));
    write(bytes);
    expect_error<Error>([&] { go_on(); }, phrase);
    EXPECT_EQ(read_file(path_), bytes);
  }
}

TEST_F(AFileCalledJournal, MayBeTheTornBeginningOfOne) {
  const std::string whole = frame(0, 1);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    go_on();
    EXPECT_THAT(losses(), ElementsAre(7)) << size;
    EXPECT_THAT(lines_, IsEmpty());
    EXPECT_EQ(JournalReader(path_).size(), fs::file_size(path_));
  }
  // The file system had extended the file, but written nothing.
  write(std::string(100, '\0'));
  go_on();
  EXPECT_THAT(losses(), ElementsAre(7));
}

TEST_F(AFileCalledJournal, MustBeARegularFile) {
  const fs::path victim = directory_ / "victim";
  std::ofstream(victim) << "mine";
  fs::create_symlink(victim, path_);
  expect_error<Error>(
      [&] { go_on(); }, "must be a regular file, but is a symbolic link");
  EXPECT_EQ(read_file(victim), "mine");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_error<Error>(
      [&] { go_on(); }, "must be a regular file, but is a pipe");
  expect_error<Error>(
      [&] { losses(); }, "must be a regular file, but is a pipe");
  fs::remove(path_);
  fs::create_directory(path_);
  expect_error<Error>(
      [&] { go_on(); }, "must be a regular file, but is a directory");
  expect_error<Error>(
      [&] { losses(); }, "must be a regular file, but is a directory");
}

// Nothing but a torn frame is ever cut off.
TEST_F(AFileCalledJournal, KeepsWhatFollowsItsFrames) {
  write(frame(0, 1) + "a note\n");
  go_on();
  EXPECT_THAT(losses(), ElementsAre(1, 7));
  EXPECT_THAT(
      lines_,
      ElementsAre(
          StartsWith("the last 7 bytes of the journal " + path_.string())));
  EXPECT_THAT(read_file(path_), HasSubstr("a note\n"));
  go_on();
  EXPECT_THAT(losses(), ElementsAre(1, 7, 7));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(AFileCalledJournal, LosesNothingWhateverFollowsItsFrames) {
  EXPECT_TRUE(rc::check([this] {
    std::string bytes;
    const auto num_frames = *rc::gen::inRange<std::uint64_t>(0, 3);
    for (std::uint64_t i = 0; i < num_frames; ++i) bytes += frame(i, 1);
    const std::string next = frame(num_frames, 1);
    const std::string torn =
        next.substr(0, *rc::gen::inRange<std::size_t>(0, next.size()));
    const auto junk = *rc::gen::arbitrary<std::string>();
    write(bytes + torn + junk);
    bool is_refused = false;
    try {
      go_on();
    } catch (const Error&) {
      is_refused = true;
    }
    const std::string now = read_file(path_);
    RC_ASSERT(now.starts_with(bytes));
    const bool is_torn_only = junk.find_first_not_of('\0') == junk.npos ||
        (torn + junk).starts_with(next.substr(0, 4));
    if (is_refused) {
      RC_ASSERT(now == bytes + torn + junk);
      RC_ASSERT(!junk.empty());
    } else if (!is_torn_only && torn.size() < 4) {
      RC_ASSERT(now.starts_with(bytes + torn + junk));
    }
    if (is_refused) return;
    std::vector<double> expected(num_frames, 1);
    expected.push_back(7);
    RC_ASSERT(losses() == expected);
  }));
}

}  // namespace foreign_journal_test
}  // namespace accelerate::detail
