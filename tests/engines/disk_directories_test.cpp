#include "engines/disk_directories.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/in_memory.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace disk_directories_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Temporary directories may be in memory.
DiskRequest in(const std::string& directory, const std::string& other = {}) {
  return {
      .keeps_optimizer_state = true,
      .keeps_parameters = true,
      .directory = directory,
      .parameter_directory = other,
      .may_be_in_memory = true};
}

TEST(DiskDirectories, MayBeAnyThatCanBeWritten) {
  const testing::TemporaryDirectory one, other;
  EXPECT_THAT(directory_complaints(in(one.path(), other.path())), IsEmpty());
}

TEST(DiskDirectories, AreRefusedIfTheyAreMissing) {
  const testing::TemporaryDirectory directory;
  const std::string missing = directory / "a", file = directory / "b";
  std::ofstream(file) << "x";
  EXPECT_THAT(
      directory_complaints(in(missing, file)),
      ElementsAre(
          "[files] " + missing +
              ", where shards are kept, must be a directory, but does not "
              "exist; create it",
          "[files] " + file +
              ", where shards are kept, must be a directory, but is not one"));
}

TEST(DiskDirectories, AreRefusedIfTheyCannotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const testing::TemporaryDirectory directory;
  const std::string closed = directory / "closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_read);
  EXPECT_THAT(
      directory_complaints(in(closed)),
      ElementsAre(
          "[files] " + closed +
          ", where shards are kept, must be writable, but is not"));
}

TEST(DiskDirectories, AreRefusedInMemory) {
  if (!is_in_memory("/dev/shm")) GTEST_SKIP() << "no tmpfs at /dev/shm";
  DiskRequest request = in("/dev/shm");
  EXPECT_THAT(directory_complaints(request), IsEmpty());
  request.may_be_in_memory = false;
  EXPECT_THAT(
      directory_complaints(request),
      ElementsAre(
          "[files] /dev/shm, where shards are kept, must be on a disk, but is "
          "in memory (tmpfs), where files save nothing; name another, or set "
          "offload_directory_in_memory to true"));
}

}  // namespace disk_directories_test
}  // namespace accelerate::detail
