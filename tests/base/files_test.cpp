#include "base/files/files.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/files/in_memory.h"
#include "base/files/mappable_file.h"
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

// The last mount at a path hides those before it.
TEST(FilesTest, KnowsFileSystemsInMemory) {
  std::map<std::string, std::string> types;
  std::ifstream mounts("/proc/self/mounts");
  for (std::string device, path, type, rest;
       mounts >> device >> path >> type && std::getline(mounts, rest);) {
    types.insert_or_assign(path, type);
  }
  for (const std::string path : {"/", "/proc", "/dev/shm", "/tmp", "/run"}) {
    const auto found = types.find(path);
    if (found == types.end()) continue;
    EXPECT_EQ(
        is_in_memory(path),
        found->second == "tmpfs" || found->second == "ramfs")
        << path;
  }
  EXPECT_FALSE(is_in_memory("/proc/self"));
  EXPECT_FALSE(is_in_memory("/no/such/directory"));
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

// Something at a path that is not a regular file, and what messages call it.
using NotAFile = std::pair<std::filesystem::path, std::string>;

std::vector<NotAFile> make_all_but_files(
    const testing::TemporaryDirectory& directory) {
  const auto pipe = directory / "pipe";
  EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto link = directory / "link";
  std::filesystem::create_symlink("pipe", link);
  const auto socket = directory / "socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket.c_str(), sizeof(address.sun_path) - 1);
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(
      ::bind(
          server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  ::close(server);
  return {
      {directory.path(), "a directory"},
      {pipe, "a pipe"},
      {link, "a pipe"},
      {socket, "a socket"},
      {"/dev/zero", "a device"},
      {"/dev/null", "a device"}};
}

TEST(FilesTest, ReadsNothingButRegularFiles) {
  const testing::TemporaryDirectory directory;
  const std::vector<std::function<void(const std::filesystem::path&)>> readers{
      [](const auto& path) { read_file(path); },
      [](const auto& path) { MappedFile{path}; },
      [](const auto& path) { open_regular_file(path, O_RDONLY); },
      [](const auto& path) { open_regular_file(path, O_WRONLY); },
      [](const auto& path) { open_regular_file(path, O_RDWR | O_CREAT); }};
  for (const auto& [path, kind] : make_all_but_files(directory)) {
    for (const auto& read : readers) {
      testing::expect_error<Error>(
          [&, &file = path] { read(file); },
          "[files] \"" + path.string() + "\" must be a regular file, but is " +
              kind);
    }
  }
}

TEST(FilesTest, OpensFilesAsOpenDoes) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "made";
  testing::expect_error<Error>(
      [&] { open_regular_file(path, O_RDWR); }, "No such file");
  const int made = open_regular_file(path, O_RDWR | O_CREAT);
  EXPECT_EQ(::write(made, "text", 4), 4);
  EXPECT_EQ(::fcntl(made, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(made, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ::close(made);
  EXPECT_EQ(read_file(path), "text");
  std::filesystem::create_symlink("made", directory / "link");
  EXPECT_EQ(read_file(directory / "link"), "text");
  testing::expect_error<Error>(
      [&] { open_regular_file(directory / "link", O_RDONLY | O_NOFOLLOW); },
      "must be a regular file, but is a symbolic link");
}

TEST(FilesTest, WaitsForTheHolderOfALease) {
  const testing::TemporaryDirectory directory;
  replace_file(directory / "leased", "text");
  const int file = open_regular_file(directory / "leased", O_RDONLY);
  {
    const MappableFile mappable(file);
    if (mappable.protect() == 0) GTEST_SKIP() << "no leases here";
    const int other = open_regular_file(directory / "leased", O_RDWR);
    EXPECT_GE(other, 0);
    ::close(other);
  }
  ::close(file);
}

TEST(FilesTest, ReadsAtMostAsMuchAsAsked) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "text";
  replace_file(path, std::string(2048, 'x'));
  EXPECT_EQ(read_file(path, 2048).size(), 2048u);
  testing::expect_error<Error>(
      [&] { read_file(path, 2047); },
      "must have at most 2.0 KB, but has 2.0 KB");
  // A sparse file is refused by its size, before it is read.
  std::filesystem::resize_file(path, 20ULL << 30U);
  testing::expect_error<Error>(
      [&] { read_file(path); }, "must have at most 1.0 GB, but has 20.0 GB");
  // Files of the kernel have a size of 0.
  EXPECT_FALSE(read_file("/proc/self/status").empty());
  testing::expect_error<Error>(
      [&] { read_file("/proc/self/status", 10); },
      "must have at most 10 bytes");
}

TEST(FilesTest, ReadsPipesOfACommandLine) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_EQ(::write(ends[1], "host slots=2", 12), 12);
  ::close(ends[1]);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(read_file_or_pipe(path), "host slots=2");
  ::close(ends[0]);
  const testing::TemporaryDirectory directory;
  replace_file(directory / "text", "abc");
  EXPECT_EQ(read_file_or_pipe(directory / "text"), "abc");
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
