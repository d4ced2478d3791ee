#include "format/tensors/box_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "format/checkpoint/checksums.h"
#include "format/tensors/verified_read.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace box_reader_test {

using testing::TemporaryDirectory;

constexpr std::uint64_t kSize = 2 * kChunkBytes + 12'345;

class BoxReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i + 8 <= kSize; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes_.data() + i, &word, sizeof word);
    }
    std::ofstream(path_, std::ios::binary) << bytes_;
  }

  // Takes the file out of the page cache, so that it is read directly.
  void make_cold() const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::fsync(file), 0);
    ASSERT_EQ(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(file);
  }

  // Bytes of the file as a tensor.
  StoredTensor slice(std::uint64_t offset, std::uint64_t size) {
    return {safetensors::Dtype::U8, {size}, {{file_, offset, {{0}, {size}}}}};
  }

  // A list of the boxes that are all of their tensors.
  static std::vector<BoxToRead> boxes_of(
      const std::vector<StoredTensor>& tensors,
      std::vector<std::vector<std::byte>>& found) {
    std::vector<BoxToRead> boxes;
    found.clear();
    for (const StoredTensor& tensor : tensors) {
      found.emplace_back(tensor.shape.front());
      boxes.push_back({&tensor, {{0}, tensor.shape}, found.back()});
    }
    return boxes;
  }

  void expect_bytes(std::span<const std::byte> found, std::uint64_t offset) {
    EXPECT_EQ(
        std::memcmp(found.data(), bytes_.data() + offset, found.size()), 0)
        << offset;
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "file";
  std::string bytes_ = std::string(kSize, '\0');
  std::shared_ptr<const InputFile> file_;
};

TEST_F(BoxReaderTest, ReadsListsInTheirOrderAndSaysWhenEachIsDone) {
  make_cold();
  file_ = std::make_shared<const InputFile>(path_);
  const std::vector<std::vector<StoredTensor>> wanted{
      {slice(0, 100), slice(4000, kChunkBytes)},
      {},
      {slice(kChunkBytes - 5, kChunkBytes + 1000)},
      {slice(kSize - 10, 10), slice(77, 2)}};
  std::vector<std::vector<std::vector<std::byte>>> found(wanted.size());
  std::vector<int> num_done(wanted.size(), 0);
  std::size_t next = 0;
  std::mutex mutex;
  BoxReader reader;
  reader.read_lists([&]() -> std::optional<BoxList> {
    if (next == wanted.size()) return std::nullopt;
    const std::size_t i = next++;
    return BoxList{
        boxes_of(wanted[i], found[i]), [&, i](std::exception_ptr failure) {
          const std::lock_guard lock(mutex);
          EXPECT_EQ(failure, nullptr);
          ++num_done[i];
        }};
  });
  EXPECT_EQ(num_done, (std::vector<int>{1, 1, 1, 1}));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (std::size_t j = 0; j < wanted[i].size(); ++j)
      expect_bytes(found[i][j], wanted[i][j].boxes.front().offset);
}

// Both boxes are one read, of which nothing has to be copied.
TEST_F(BoxReaderTest, ReadsNeighboursInFileAndMemory) {
  file_ = std::make_shared<const InputFile>(path_);
  for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{2432}}) {
    make_cold();
    const StoredTensor first = slice(begin, kChunkBytes);
    const StoredTensor second = slice(begin + kChunkBytes, 9000);
    std::vector<std::byte> found(kChunkBytes + 9000);
    const auto all = std::span(found);
    BoxReader().read(
        {{&second, {{0}, second.shape}, all.subspan(kChunkBytes)},
         {&first, {{0}, first.shape}, all.first(kChunkBytes)}});
    expect_bytes(all, begin);
  }
}

TEST_F(BoxReaderTest, GoesOnWithOtherListsWhenOneFails) {
  FileRecord record = record_of(path_);
  ++record.checksums.at(1);
  file_ = std::make_shared<const InputFile>(path_, record);
  const std::vector<std::vector<StoredTensor>> wanted{
      {slice(10, 100), slice(kChunkBytes, kChunkBytes)},
      {slice(20, kChunkBytes / 2)}};
  std::vector<std::vector<std::byte>> first, second;
  std::vector<std::exception_ptr> failures(2);
  std::size_t next = 0;
  // A box that is not inside its tensor is refused before anything is read.
  std::byte none{};
  const BoxToRead outside{&wanted[0][0], {{1000}, {1}}, {&none, 1}};
  std::exception_ptr refused;
  BoxReader().read_lists([&]() -> std::optional<BoxList> {
    switch (next++) {
      case 0:
        return BoxList{boxes_of(wanted[0], first), [&](std::exception_ptr e) {
                         failures[0] = e;
                       }};
      case 1:
        return BoxList{{outside}, [&](std::exception_ptr e) { refused = e; }};
      case 2:
        return BoxList{boxes_of(wanted[1], second), [&](std::exception_ptr e) {
                         failures[1] = e;
                       }};
      default:
        return std::nullopt;
    }
  });
  testing::expect_error<DamagedCheckpoint>(
      [&] { std::rethrow_exception(failures[0]); }, "is damaged");
  testing::expect_error<CheckpointError>(
      [&] { std::rethrow_exception(refused); }, "not inside it");
  EXPECT_EQ(failures[1], nullptr);
  expect_bytes(second.front(), 20);
}

}  // namespace box_reader_test
}  // namespace accelerate::detail
