#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "config/user_variables.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/program_cache.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::program_cache_test {

using detail::ProgramCache;
using ::testing::HasSubstr;

/// A cache in a directory of its own, with a compiler that counts.
class Programs : public ::testing::Test {
 protected:
  std::string get(const std::string& key, const std::string& made = "binary") {
    return cache().get(key, [&] {
      ++num_made_;
      return made;
    });
  }
  [[nodiscard]] ProgramCache cache() const { return ProgramCache(directory()); }
  [[nodiscard]] std::filesystem::path directory() const {
    return temporary_.path() / "accelerate_cpp" / "kernels";
  }
  void overwrite(const std::string& key, const std::string& contents) {
    std::ofstream(cache().path_of(key), std::ios::binary) << contents;
  }

  TemporaryDirectory temporary_;
  int num_made_ = 0;
};

TEST_F(Programs, AreMadeOnceAndComeBackAsTheyWere) {
  const std::string binary("\0\n\xff binary \0", 11);
  EXPECT_EQ(get("a", binary), binary);
  EXPECT_EQ(get("a", "other"), binary);
  EXPECT_EQ(num_made_, 1);
}

TEST_F(Programs, AreMadeAnewForAnotherKey) {
  const detail::KernelProgram program{"float8_amax", {"VALUE=Float32"}};
  const std::string key = detail::program_key(program, 90, "13.0");
  EXPECT_THAT(
      key,
      ::testing::MatchesRegex("float8_amax \\(VALUE=Float32\\) capability 90 "
                              "nvrtc 13\\.0 source [0-9a-f]{16}"));
  get(key);
  get(detail::program_key(program, 100, "13.0"));
  get(detail::program_key(program, 90, "13.1"));
  get(detail::program_key({"float8_amax", {"VALUE=Float16"}}, 90, "13.0"));
  get(detail::program_key({"float8_tile", {"VALUE=Float32"}}, 90, "13.0"));
  EXPECT_EQ(num_made_, 5);
  get(key);
  EXPECT_EQ(num_made_, 5);
}

TEST_F(Programs, AreMadeAnewIfAnyByteOfTheirFileIsWrongOrMissing) {
  get("key", "binary");
  const std::string whole = detail::read_file(cache().path_of("key"));
  int expected = 1;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    overwrite("key", damaged);
    EXPECT_EQ(get("key", "again"), "again") << "byte " << i;
    EXPECT_EQ(num_made_, ++expected);
    overwrite("key", whole.substr(0, i));
    EXPECT_EQ(get("key", "again"), "again") << i << " bytes";
    EXPECT_EQ(num_made_, ++expected);
    // The damaged file was replaced.
    EXPECT_EQ(get("key", "unused"), "again");
  }
}

TEST_F(Programs, AreNotReadUnderAnotherKeyOfTheSameHash) {
  get("one");
  std::filesystem::copy_file(cache().path_of("one"), cache().path_of("two"));
  EXPECT_EQ(get("two", "other"), "other");
}

TEST_F(Programs, AreWholeWhileSeveralProcessesWriteThem) {
  const std::string big(1 << 16, 'x');
  std::vector<pid_t> children;
  for (int child = 0; child < 2; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      bool is_right = true;
      for (int i = 0; i < 40; ++i) {
        if (i % 2 == child) ::unlink(cache().path_of("key").c_str());
        is_right = is_right && get("key", big) == big;
      }
      ::_exit(is_right ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  // Nothing is left beside it.
  get("key", big);
  std::size_t num_files = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(directory()))
    ++num_files;
  EXPECT_EQ(num_files, 1U);
}

TEST_F(Programs, AreNotKeptWhereOthersMayWrite) {
  EXPECT_EQ(cache().problem(), "");
  struct stat status {};
  ASSERT_EQ(::stat(directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  get("key");
  ::chmod(directory().c_str(), 0770);
  EXPECT_THAT(
      cache().problem(),
      HasSubstr(
          "must be writable by its user only, but others may write to it"));
  EXPECT_EQ(get("key", "own"), "own");
  ::chmod(directory().c_str(), 0700);
  EXPECT_EQ(get("key", "unused"), "binary");
  ::chmod(cache().path_of("key").c_str(), 0666);
  EXPECT_EQ(get("key", "own"), "own");
}

TEST_F(Programs, AreOnlyMadeWhereThereCanBeNoDirectory) {
  std::ofstream(temporary_.path() / "accelerate_cpp") << "a file";
  EXPECT_NE(cache().problem(), "");
  EXPECT_EQ(get("key"), "binary");
  EXPECT_EQ(get("key", "again"), "again");
  std::filesystem::remove(temporary_.path() / "accelerate_cpp");
  // A symbolic link may lead to a directory of somebody else.
  std::filesystem::create_directories(temporary_.path() / "elsewhere");
  std::filesystem::create_directories(directory().parent_path());
  std::filesystem::create_symlink(temporary_.path() / "elsewhere", directory());
  EXPECT_THAT(cache().problem(), HasSubstr("must be a directory, but is not"));
}

TEST(CacheDirectory, IsWhereTheEnvironmentSays) {
  using detail::cache_directory;
  detail::Environment environment;
  EXPECT_EQ(cache_directory(environment), std::nullopt);
  environment.set("HOME", "/home/a");
  EXPECT_EQ(*cache_directory(environment), "/home/a/.cache/accelerate_cpp");
  environment.set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(*cache_directory(environment), "/home/a/.cache/accelerate_cpp");
  environment.set("XDG_CACHE_HOME", "/c");
  EXPECT_EQ(*cache_directory(environment), "/c/accelerate_cpp");
}

}  // namespace accelerate::testing::program_cache_test
