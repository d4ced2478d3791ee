#include "trackers/files/run_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "trackers/files/database.h"

namespace accelerate {
namespace {
namespace run_files_test {

namespace fs = std::filesystem;
using testing::expect_error;

// Files that trackers write by name, where somebody else has put something.
TEST(RunFiles, AreNotWrittenThroughLinks) {
  const testing::TemporaryDirectory directory;
  const fs::path place = directory / "place", victim = directory / "victim";
  std::ofstream(directory / "source") << "new";
  const std::vector<std::pair<std::string, std::function<void()>>> writers{
      {"write", [&] { detail::write_run_file(place, "new"); }},
      {"copy", [&] { detail::copy_run_file(directory / "source", place); }},
      {"append", [&] {
         detail::GrowingFiles files;
         files.append(place, "new");
         files.flush();
       }}};
  for (const auto& [name, write] : writers) {
    SCOPED_TRACE(name);
    std::ofstream(victim) << "mine";
    fs::create_symlink(victim, place);
    EXPECT_THROW(write(), Error);
    EXPECT_EQ(detail::read_file(victim), "mine");
    fs::remove(place);
    ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
    EXPECT_THROW(write(), Error);
    fs::remove(place);
    write();
    EXPECT_EQ(detail::read_file(place), "new");
    fs::remove(place);
  }
}

TEST(RunFiles, ThatAreDatabasesAreNoPipes) {
  const testing::TemporaryDirectory directory;
  const fs::path place = directory / "runs.db";
  ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
  expect_error<Error>(
      [&] { detail::Database database(place); },
      "must be a regular file, but is a pipe");
}

}  // namespace run_files_test
}  // namespace
}  // namespace accelerate
