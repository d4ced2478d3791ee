// Bytes that are hashed while they are read.
#include <cstring>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "format/checkpoint/checksums.h"
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

  // A tensor of the bytes [begin, begin + size) of the file.
  static StoredTensor slice(
      const std::shared_ptr<const InputFile>& file,
      std::uint64_t begin,
      std::uint64_t size) {
    return {safetensors::Dtype::U8, {size}, {{file, begin, {{0}, {size}}}}};
  }

  void expect_equal(
      const std::vector<std::pair<std::uint64_t, std::uint64_t>>& slices) {
    const auto file = std::make_shared<const InputFile>(path_, record_);
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
    // Once hashed on the way, once as known.
    for (int pass = 0; pass < 2; ++pass) {
      read_boxes(boxes);
      for (std::size_t i = 0; i < slices.size(); ++i) {
        ASSERT_EQ(found[i], bytes_.substr(slices[i].first, slices[i].second))
            << slices[i].first << " " << slices[i].second;
        found[i].assign(found[i].size(), '\0');
      }
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
  // Equal and overlapping ones.
  expect_equal({{10, 500'000}, {10, 500'000}, {400'000, 300'000}, {11, 3}});
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> slices;
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
  // The first chunk has the header, so it is always read.
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

}  // namespace verified_read_test
}  // namespace accelerate::detail
