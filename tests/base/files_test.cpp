#include "base/files/files.h"

#include <sys/stat.h>

#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace files_test {

std::size_t count_entries(const std::filesystem::path& directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(directory))
    ++count;
  return count;
}

TEST(FilesTest, ReplacesAFileCompletelyAndLeavesNoTemporaryFile) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "a/b/state.json";
  replace_file(path, "first, and longer");
  replace_file(path, std::string("se\0cond", 7));
  EXPECT_EQ(read_file(path), std::string("se\0cond", 7));
  EXPECT_EQ(count_entries(path.parent_path()), 1u);
}

TEST(FilesTest, ReadsLargeAndEmptyFiles) {
  const testing::TemporaryDirectory directory;
  const std::string large(1'000'003, 'x');
  replace_file(directory / "large", large);
  replace_file(directory / "empty", "");
  EXPECT_EQ(read_file(directory / "large"), large);
  EXPECT_EQ(read_file(directory / "empty"), "");
}

TEST(FilesTest, KeepsTheOldFileIfReplacingFails) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "taken";
  std::filesystem::create_directory(path);
  testing::expect_error<Error>(
      [&] { replace_file(path, "x"); }, "cannot replace");
  EXPECT_TRUE(std::filesystem::is_directory(path));
  EXPECT_EQ(count_entries(directory.path()), 1u);
}

TEST(FilesTest, PassesTheModeOn) {
  namespace fs = std::filesystem;
  const testing::TemporaryDirectory directory;
  const auto path = directory / "secret";
  replace_file(path, "old");
  for (const fs::perms mode :
       {fs::perms::owner_read | fs::perms::owner_write,
        fs::perms::owner_all | fs::perms::group_read |
            fs::perms::others_write}) {
    fs::permissions(path, mode);
    replace_file(path, "new");
    EXPECT_EQ(fs::status(path).permissions(), mode);
  }
  EXPECT_EQ(read_file(path), "new");
}

TEST(FilesTest, WritesThroughLinks) {
  namespace fs = std::filesystem;
  const testing::TemporaryDirectory directory;
  fs::create_directory(directory / "store");
  replace_file(directory / "store/real", "old");
  fs::create_symlink("store/real", directory / "near");
  fs::create_symlink(directory / "near", directory / "far");
  replace_file(directory / "far", "new");
  EXPECT_TRUE(fs::is_symlink(directory / "far"));
  EXPECT_TRUE(fs::is_symlink(directory / "near"));
  EXPECT_EQ(read_file(directory / "store/real"), "new");
  EXPECT_EQ(count_entries(directory / "store"), 1u);
  // A link to a file that does not exist yet.
  fs::create_symlink("store/later", directory / "dangling");
  replace_file(directory / "dangling", "first");
  EXPECT_EQ(read_file(directory / "store/later"), "first");
  // Links that lead nowhere.
  fs::create_symlink("b", directory / "a");
  fs::create_symlink("a", directory / "b");
  testing::expect_error<Error>(
      [&] { replace_file(directory / "a", "x"); }, "cannot follow link");
}

TEST(FilesTest, ReplacesNothingButFiles) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  testing::expect_error<Error>(
      [&] { replace_file(path, "x"); }, "cannot replace");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST(FilesTest, NamesThePathAndTheReason) {
  const testing::TemporaryDirectory directory;
  testing::expect_error<Error>(
      [&] { read_file(directory / "missing.txt"); }, "missing.txt");
  testing::expect_error<Error>(
      [&] { MappedFile(directory / "missing.txt"); }, "No such file");
}

TEST(FilesTest, MapsAFileUntilTheLastOwnerGoes) {
  const testing::TemporaryDirectory directory;
  replace_file(directory / "data", "abc");
  replace_file(directory / "empty", "");
  MappedFile first(directory / "data");
  MappedFile second(directory / "empty");
  EXPECT_TRUE(second.bytes().empty());
  second = std::move(first);
  ASSERT_EQ(second.bytes().size(), 3u);
  EXPECT_EQ(second.bytes()[2], std::byte{'c'});
}

TEST(StaysBelowDirectory, RefusesNamesThatLeadElsewhere) {
  for (const char* name : {"a", "a/b", "a ..b", "..a/b..", "...", ".hidden"})
    EXPECT_TRUE(stays_below_directory(name)) << name;
  for (const char* name :
       {"",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "./a",
        "..",
        "../a",
        "a/../b",
        "a/.."})
    EXPECT_FALSE(stays_below_directory(name)) << name;
}

}  // namespace files_test
}  // namespace accelerate::detail
