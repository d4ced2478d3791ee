#include "trackers/files/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
      {"append",
       [&] {
         detail::GrowingFiles files;
         files.append(place, "new");
         files.flush();
       }},
      {"copy into", [&] {
         fs::create_directory(directory / "other");
         fs::copy_file(
             directory / "source",
             directory / "other/place",
             fs::copy_options::overwrite_existing);
         detail::copy_into(directory / "other/place", directory.path());
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

// Directories are copied with what they have, and never through a link where
// the copy goes.
TEST(RunFiles, AreCopiedToRealDirectories) {
  const testing::TemporaryDirectory directory;
  const fs::path source = directory / "source", copies = source / "copies";
  fs::create_directories(source / "sub/empty");
  std::ofstream(source / "sub/a") << "a";
  std::ofstream(directory / "b") << "b";
  fs::create_symlink(directory / "b", source / "b");
  fs::create_directory_symlink(source / "sub", source / "linked");
  detail::copy_into(source, directory / "target");
  // Into itself.
  detail::copy_into(fs::path(source.string() + "/"), copies);
  for (const fs::path& copy :
       {directory / "target/source", copies / "source"}) {
    EXPECT_EQ(detail::read_file(copy / "sub/a"), "a");
    EXPECT_EQ(detail::read_file(copy / "linked/a"), "a");
    EXPECT_EQ(detail::read_file(copy / "b"), "b");
    EXPECT_FALSE(fs::is_symlink(copy / "b"));
    EXPECT_FALSE(fs::is_symlink(copy / "linked"));
    EXPECT_TRUE(fs::is_directory(copy / "sub/empty"));
  }
  const fs::path elsewhere = directory / "elsewhere";
  fs::create_directory(elsewhere);
  for (const char* const place : {"source", "source/sub", "source/sub/a"}) {
    const testing::TemporaryDirectory target;
    fs::create_directories((target / place).parent_path());
    fs::create_symlink(elsewhere, target / place);
    expect_error<Error>(
        [&] { detail::copy_into(source, target.path()); }, "File exists");
    EXPECT_TRUE(fs::is_empty(elsewhere)) << place;
  }
}

TEST(RunFiles, ThatCannotBeWrittenLeaveTheOthersAlone) {
  const testing::TemporaryDirectory directory;
  const fs::path refused = directory / "a", fine = directory / "b";
  fs::create_directory(refused);
  std::ofstream(directory / "file") << "";
  detail::GrowingFiles files;
  const std::string line(99'999, 'x');
  for (int i = 0; i < 30; ++i) {
    files.append(refused, line + "\n");
    files.append(directory / "file/below", "1\n");
    files.append(fine, "1\n");
  }
  expect_error<Error>([&] { files.flush(); }, refused.string());
  EXPECT_EQ(fs::file_size(fine), 60U);
  fs::remove(refused);
  fs::remove(directory / "file");
  files.flush();
  EXPECT_EQ(fs::file_size(directory / "file/below"), 60U);
  // As many whole lines as have a MiB, whatever was added.
  EXPECT_EQ(fs::file_size(refused), 1'000'000U);
  EXPECT_FALSE(files.has(refused));
}

// Two of a process's trackers may write one database.
TEST(RunFiles, ThatAreDatabasesKeepTheirLocksWhenOpenedAgain) {
  const testing::TemporaryDirectory directory;
  const fs::path place = directory / "runs.db";
  detail::Database first(place);
  first.run("CREATE TABLE t (x)");
  detail::DatabaseTransaction writes(first);
  const detail::Database second(place);
  // Another process asks who has locks on the file.
  const pid_t child = ::fork();
  if (child == 0) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    const int file = ::open(place.c_str(), O_RDWR);
    const bool is_locked =
        ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    ::_exit(is_locked ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
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
