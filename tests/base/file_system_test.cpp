#include "base/files/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <accelerate/error.h>

#include "base/files/direct_writer.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace file_system_test {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Splits `text` into pieces of random sizes.
std::vector<Bytes> in_pieces(std::string_view text, std::mt19937& random) {
  std::vector<Bytes> pieces;
  while (!text.empty()) {
    const std::size_t most =
        std::vector<std::size_t>{3, 5000, 1U << 20U, text.size()}[random() % 4];
    const std::size_t size =
        std::min<std::size_t>(text.size(), random() % (most + 1));
    pieces.push_back(bytes_of(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return pieces;
}

TEST(OutputFile, HoldsWhatWasWrittenInPiecesOfAnySize) {
  const testing::TemporaryDirectory directory;
  const auto disk = make_file_system();
  std::mt19937 random(1);
  const std::size_t block = DirectWriter::kBlockBytes;
  for (const std::size_t size :
       {std::size_t{0},
        std::size_t{1},
        std::size_t{4096},
        (std::size_t{1} << 20U) - 1,
        std::size_t{1} << 20U,
        block,
        block + 1,
        3 * block + 4095,
        9 * block + 12345}) {
    const std::string text = random_bytes(size, 7) + "end";
    const fs::path path = directory / ("file" + std::to_string(size));
    const auto file = disk->create(path);
    std::string written = text;
    const auto pieces = in_pieces(written, random);
    file->write_at(0, pieces);
    // The writer has copied the data.
    written.assign(written.size(), 'x');
    file->finish();
    EXPECT_TRUE(read(path) == text) << size;
  }
}

TEST(OutputFile, TakesChunksFromSeveralThreadsInAnyOrder) {
  const testing::TemporaryDirectory directory;
  const auto disk = make_file_system();
  constexpr std::size_t kChunk = 3U << 20U, kChunks = 40;
  const std::string text = random_bytes(kChunk * kChunks - 777, 3);
  const auto one = disk->create(directory / "one");
  const auto other = disk->create(directory / "other");
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < kChunks; i += 8) {
        const std::size_t at = (kChunks - 1 - i) * kChunk;
        const Bytes piece = bytes_of(std::string_view(text).substr(at, kChunk));
        one->write_at(at, piece);
        other->write_at(at, piece);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  one->finish();
  other->finish();
  EXPECT_TRUE(read(directory / "one") == text);
  EXPECT_TRUE(read(directory / "other") == text);
}

TEST(OutputFile, ReportsFailuresWhenFinishedAtTheLatest) {
  const testing::TemporaryDirectory directory;
  const fs::path path = directory / "file";
  const auto run = [&] {
    // The system refuses writes beyond this file size.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20U << 20U, 20U << 20U};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto file = make_file_system()->create(path);
    const std::string text = random_bytes(24U << 20U, 5);
    try {
      for (int i = 0; i < 4; ++i) {
        file->write_at(i * text.size(), bytes_of(text));
      }
      file->finish();
    } catch (const Error& e) {
      const std::string expected =
          "cannot write " + path.string() + ": File too large";
      ::_exit(std::string(e.what()).find(expected) == std::string::npos);
    }
    ::_exit(2);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST(OutputFile, CanBeLeftUnfinished) {
  const testing::TemporaryDirectory directory;
  const std::string text = random_bytes(40U << 20U, 5);
  const auto disk = make_file_system();
  const auto num_descriptors = [] {
    return std::distance(
        fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = num_descriptors();
  disk->create(directory / "file")->write_at(0, bytes_of(text));
  EXPECT_EQ(num_descriptors(), before);
  EXPECT_LE(fs::file_size(directory / "file"), text.size());
}

class DirectWriting : public ::testing::TestWithParam<bool> {};

TEST_P(DirectWriting, WritesThroughThePageCacheIfRefused) {
  const testing::TemporaryDirectory directory;
  const std::string text = random_bytes(70U << 20U, 11);
  DirectWriter writer(GetParam());
  // Without a descriptor for direct writes, as if the file system did not
  // support them.
  for (const bool refuse : {false, true}) {
    const fs::path path = directory / (refuse ? "refused" : "direct");
    DirectWriter::File file;
    file.plain = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (!refuse) {
      file.direct = ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    }
    EXPECT_EQ(
        writer.write(
            file,
            0,
            text.size(),
            std::vector<Bytes>{bytes_of(text), bytes_of("more")}),
        0);
    EXPECT_EQ(writer.wait(file), 0);
    EXPECT_TRUE(read(path) == text);
    ::close(file.plain);
    if (file.direct >= 0) ::close(file.direct);
  }
}

TEST_P(DirectWriting, RemembersTheFirstError) {
  const std::string text = random_bytes(70U << 20U, 11);
  DirectWriter writer(GetParam());
  DirectWriter::File file;
  file.plain = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  file.direct = file.plain;
  static_cast<void>(
      writer.write(file, 0, text.size(), std::vector<Bytes>{bytes_of(text)}));
  EXPECT_EQ(writer.wait(file), ENOSPC);
  EXPECT_EQ(
      writer.write(file, 0, text.size(), std::vector<Bytes>{bytes_of(text)}),
      ENOSPC);
  ::close(file.plain);
}

INSTANTIATE_TEST_SUITE_P(
    Mechanism,
    DirectWriting,
    ::testing::Bool(),
    [](const auto& tested) { return tested.param ? "io_uring" : "threads"; });

}  // namespace file_system_test
}  // namespace accelerate::detail
