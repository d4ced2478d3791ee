#include "train/elastic/directory_moves.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/world.h>

#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace directory_moves_test {

using detail::DirectoryMove;
using detail::move_directories;
using ::testing::HasSubstr;
using testing::run_in_worlds;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> files_below(const fs::path& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      files.push_back(entry.path().lexically_relative(directory).string());
  }
  return files;
}

// Returns the stream of a directory with one file: the size of the list, the
// list, and the bytes.
at::Tensor stream_of(const std::string& name, const std::string& contents) {
  const std::string list = std::to_string(contents.size()) + " " + name + "\n";
  const std::uint64_t size = list.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += list + contents;
  const at::Tensor stream =
      at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(stream.mutable_data_ptr(), bytes.data(), bytes.size());
  return stream;
}

TEST(DirectoryMoves, KeepNamesAndContents) {
  const TemporaryDirectory directory;
  fs::create_directories(directory / "source/deep/er");
  std::ofstream(directory / "source/a ..b") << "spaces and dots";
  std::ofstream(directory / "source/deep/er/empty");
  run_in_worlds(3, [&](const World& world) {
    EXPECT_EQ(
        move_directories(
            world.group(),
            {DirectoryMove{2, 0, directory / "source", directory / "target"}}),
        "");
  });
  EXPECT_THAT(
      files_below(directory / "target"),
      UnorderedElementsAre("a ..b", "deep/er/empty"));
  EXPECT_EQ(read(directory / "target/a ..b"), "spaces and dots");
}

TEST(DirectoryMoves, RefuseNamesThatLeadOutOfTheDirectory) {
  for (const std::string& name :
       {std::string("../outside"),
        std::string("deep/../../outside"),
        std::string("./../outside"),
        std::string("deep/"),
        std::string(),
        fs::absolute("outside").string()}) {
    SCOPED_TRACE(name);
    const TemporaryDirectory directory;
    const std::string sent =
        name.starts_with('/') ? (directory / "outside").string() : name;
    run_in_worlds(2, [&](const World& world) {
      const Group& group = world.group();
      if (world.rank() == 0) {
        EXPECT_THAT(
            move_directories(
                group,
                {DirectoryMove{
                    1, 0, directory / "source", directory / "target"}}),
            HasSubstr("which is not inside"));
        return;
      }
      const at::Tensor rounds = at::ones({1}, at::kLong);
      group.all_reduce(rounds, ReduceOp::max);
      const std::vector<at::Tensor> parts{
          stream_of(sent, "stolen"), at::empty({0}, at::kByte)};
      static_cast<void>(group.all_to_all(parts));
    });
    EXPECT_TRUE(fs::is_empty(directory.path()));
  }
}

}  // namespace directory_moves_test
}  // namespace accelerate
