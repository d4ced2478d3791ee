// Reads from cold and cached files, hashed along the way.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "format/checkpoint/checksums.h"
#include "format/tensors/box_reader.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/verified_read.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace verified_read_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryDirectory;

// Two full chunks and a short one.
constexpr std::uint64_t kSize = 2 * kChunkBytes + 100'003;

class VerifiedRead : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(1);
    bytes_.resize(kSize);
    for (std::uint64_t i = 0; i + 8 <= kSize; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes_.data() + i, &word, sizeof word);
    }
    std::ofstream(path_, std::ios::binary) << bytes_;
    record_ = record_of(path_);
  }

  void flip(std::uint64_t offset) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(bytes_[offset] ^ 1));
  }

  // A tensor over the bytes [begin, begin + size) of the file.
  static StoredTensor slice(
      const std::shared_ptr<const InputFile>& file,
      std::uint64_t begin,
      std::uint64_t size) {
    return {safetensors::Dtype::U8, {size}, {{file, begin, {{0}, {size}}}}};
  }

  // Evicts the file from the page cache, so that it is read directly.
  void make_cold() const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::fsync(file), 0);
    ASSERT_EQ(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(file);
  }

  using Slices = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  // Reads slices twice: in the second pass, the chunks of a file with a record
  // are known to be as written.
  void expect_equal(
      const Slices& slices,
      const std::shared_ptr<const InputFile>& file) {
    std::vector<StoredTensor> tensors;
    std::vector<std::string> found;
    std::vector<BoxToRead> boxes;
    for (const auto& [begin, size] : slices) {
      tensors.push_back(slice(file, begin, size));
      found.emplace_back(size, '\0');
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
      boxes.push_back(
          {&tensors[i],
           {{0}, {slices[i].second}},
           std::as_writable_bytes(std::span(found[i]))});
    }
    for (int pass = 0; pass < 2; ++pass) {
      read_boxes(boxes);
      for (std::size_t i = 0; i < slices.size(); ++i) {
        ASSERT_EQ(found[i], bytes_.substr(slices[i].first, slices[i].second))
            << slices[i].first << " " << slices[i].second;
        found[i].assign(found[i].size(), '\0');
      }
    }
  }

  void expect_equal(const Slices& slices) {
    for (const bool is_checked : {true, false}) {
      const auto record =
          is_checked ? std::optional<FileRecord>(record_) : std::nullopt;
      make_cold();
      expect_equal(slices, std::make_shared<const InputFile>(path_, record));
      make_cold();
      const auto shared = std::make_shared<const InputFile>(path_, record);
      shared->set_shared();
      expect_equal(slices, shared);
      // The pages are cached now.
      expect_equal(slices, std::make_shared<const InputFile>(path_, record));
    }
  }

  TemporaryDirectory directory_;
  fs::path path_ = directory_ / "file";
  std::string bytes_;
  FileRecord record_;
};

TEST_F(VerifiedRead, GivesTheSameBytesWhateverTheSlices) {
  expect_equal({{0, kSize}});
  expect_equal({{kChunkBytes - 1, 2}, {kChunkBytes + 5, 0}, {kSize - 1, 1}});
  // Equal and overlapping slices.
  expect_equal({{10, 500'000}, {10, 500'000}, {400'000, 300'000}, {11, 3}});
  std::mt19937_64 random(2);
  for (int round = 0; round < 4; ++round) {
    Slices slices;
    for (int i = 0; i < 30; ++i) {
      const std::uint64_t begin = random() % kSize;
      const std::uint64_t most = round % 2 == 0 ? 1000 : 3'000'000;
      slices.emplace_back(
          begin, std::min<std::uint64_t>(random() % most, kSize - begin));
    }
    expect_equal(slices);
  }
}

TEST_F(VerifiedRead, FindsADamagedByteAnywhereInTheChunksThatItReads) {
  // The first chunk holds the header, so it is always read.
  for (const std::uint64_t offset :
       {std::uint64_t{0}, kChunkBytes - 1, 2 * kChunkBytes, kSize - 1}) {
    flip(offset);
    const auto file = std::make_shared<const InputFile>(path_, record_);
    const StoredTensor tensor = slice(file, 2 * kChunkBytes + 50, 10);
    std::vector<std::byte> out(10);
    expect_error<CheckpointError>(
        [&] { read_boxes({{&tensor, {{0}, {10}}, out}}); },
        "the contents of file have changed between bytes");
    std::ofstream(path_, std::ios::binary) << bytes_;
  }
  // The second chunk is not read.
  flip(kChunkBytes + 3);
  const auto file = std::make_shared<const InputFile>(path_, record_);
  const StoredTensor tensor = slice(file, 2 * kChunkBytes + 50, 10);
  std::vector<std::byte> out(10);
  read_boxes({{&tensor, {{0}, {10}}, out}});
  EXPECT_EQ(
      std::memcmp(out.data(), bytes_.data() + 2 * kChunkBytes + 50, 10), 0);
}

TEST_F(VerifiedRead, ChecksSlicesThatAreCopiedRowByRow) {
  const std::uint64_t rows = kSize / 1000;
  const safetensors::Box all{{0, 0}, {rows, 1000}};
  const safetensors::Box column{{0, 3}, {rows, 2}};
  std::vector<std::byte> out(rows * 2);
  const auto read = [&] {
    const auto file = std::make_shared<const InputFile>(path_, record_);
    const StoredTensor tensor{
        safetensors::Dtype::U8, {rows, 1000}, {{file, 0, all}}};
    read_boxes({{&tensor, column, out}});
  };
  read();
  for (std::uint64_t i = 0; i < rows; ++i) {
    ASSERT_EQ(
        std::memcmp(out.data() + 2 * i, bytes_.data() + 1000 * i + 3, 2), 0);
  }
  flip(kChunkBytes + 8);
  expect_error<CheckpointError>(read, "the contents of file have changed");
}

TEST_F(VerifiedRead, FindsADamagedByteOfAColdFile) {
  flip(2 * kChunkBytes - 9);
  make_cold();
  const auto file = std::make_shared<const InputFile>(path_, record_);
  const StoredTensor tensor = slice(file, kChunkBytes + 4096, 3'000'000);
  std::vector<std::byte> out(3'000'000);
  expect_error<CheckpointError>(
      [&] { read_boxes({{&tensor, {{0}, {out.size()}}, out}}); },
      "the contents of file have changed between bytes 16777216 and 33554432");
}

TEST_F(VerifiedRead, SaysThatAColdFileIsTooShort) {
  fs::resize_file(path_, kSize - 10);
  for (const bool is_checked : {true, false}) {
    make_cold();
    const auto file = std::make_shared<const InputFile>(
        path_, is_checked ? std::optional<FileRecord>(record_) : std::nullopt);
    const StoredTensor tensor = slice(file, 10, kSize - 10);
    std::vector<std::byte> out(kSize - 10);
    expect_error<CheckpointError>(
        [&] { read_boxes({{&tensor, {{0}, {out.size()}}, out}}); },
        "file is shorter than it should be");
  }
}

TEST_F(VerifiedRead, LeavesAColdFileOutOfThePageCacheUnlessOthersReadItToo) {
  std::vector<std::byte> out(kSize);
  for (const bool is_shared : {false, true}) {
    make_cold();
    const auto file = std::make_shared<const InputFile>(path_);
    if (file->direct().direct < 0) GTEST_SKIP() << "no direct reads here";
    if (file->is_cached(kChunkBytes, kSize)) {
      GTEST_SKIP() << "the file system keeps its pages";
    }
    if (is_shared) file->set_shared();
    const StoredTensor tensor = slice(file, 0, kSize);
    read_boxes({{&tensor, {{0}, {kSize}}, out}});
    EXPECT_EQ(std::memcmp(out.data(), bytes_.data(), kSize), 0);
    EXPECT_EQ(file->is_cached(0, kSize), is_shared);
  }
}

// Short ranges next to long ones are read directly with them, because the page
// cache would read ahead data that is not needed.
TEST_F(VerifiedRead, LeavesAColdFileOutOfThePageCacheIfARangeIsShort) {
  make_cold();
  const auto file = std::make_shared<const InputFile>(path_);
  if (file->direct().direct < 0) GTEST_SKIP() << "no direct reads here";
  if (file->is_cached(kChunkBytes, kSize))
    GTEST_SKIP() << "the file system keeps its pages";
  // The last 100 bytes of a chunk, all of the next, and 8 KiB of the third.
  const std::uint64_t begin = kChunkBytes - 100;
  const std::uint64_t size = kChunkBytes + 100 + 8192;
  std::vector<std::byte> out(size);
  BoxReader reader;
  for (int i = 0; i < 2; ++i) {
    const StoredTensor tensor = slice(file, begin, size);
    std::fill(out.begin(), out.end(), std::byte{0});
    reader.read({{&tensor, {{0}, {size}}, out}});
    EXPECT_EQ(std::memcmp(out.data(), bytes_.data() + begin, size), 0);
    EXPECT_FALSE(file->is_cached(begin, begin + size));
    EXPECT_FALSE(file->is_cached(begin + size - 8192, begin + size));
    reader.clear();
  }
}

}  // namespace verified_read_test
}  // namespace accelerate::detail
