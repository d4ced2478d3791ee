#include "base/files.h"

#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace accelerate::detail {
namespace files_test {

std::size_t count_entries(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(folder))
    ++count;
  return count;
}

TEST(FilesTest, ReplacesAFileWholeAndLeavesNothingBeside) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "a/b/state.json";
  replace_file(path, "first, and longer");
  replace_file(path, std::string("se\0cond", 7));
  EXPECT_EQ(read_file(path), std::string("se\0cond", 7));
  EXPECT_EQ(count_entries(path.parent_path()), 1u);
}

TEST(FilesTest, ReadsLargeAndEmptyFiles) {
  const testing::TemporaryFolder folder;
  const std::string large(1'000'003, 'x');
  replace_file(folder / "large", large);
  replace_file(folder / "empty", "");
  EXPECT_EQ(read_file(folder / "large"), large);
  EXPECT_EQ(read_file(folder / "empty"), "");
}

TEST(FilesTest, KeepsTheOldFileWhenTheNewOneCannotBePut) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "taken";
  std::filesystem::create_directory(path);
  testing::expect_error<Error>(
      [&] { replace_file(path, "x"); }, "cannot replace");
  EXPECT_TRUE(std::filesystem::is_directory(path));
  EXPECT_EQ(count_entries(folder.path()), 1u);
}

TEST(FilesTest, NamesThePathAndTheReason) {
  const testing::TemporaryFolder folder;
  testing::expect_error<Error>(
      [&] { read_file(folder / "missing.txt"); }, "missing.txt");
  testing::expect_error<Error>(
      [&] { MappedFile(folder / "missing.txt"); }, "No such file");
}

TEST(FilesTest, MapsAFileUntilTheLastOwnerGoes) {
  const testing::TemporaryFolder folder;
  replace_file(folder / "data", "abc");
  replace_file(folder / "empty", "");
  MappedFile first(folder / "data");
  MappedFile second(folder / "empty");
  EXPECT_TRUE(second.bytes().empty());
  second = std::move(first);
  ASSERT_EQ(second.bytes().size(), 3u);
  EXPECT_EQ(second.bytes()[2], std::byte{'c'});
}

}  // namespace files_test
}  // namespace accelerate::detail
