#include "base/files/direct_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/files/io_ring.h"
#include "base/files/page_cache.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace direct_reader_test {

using testing::TemporaryDirectory;

constexpr std::uint64_t kSize = 3 * DirectReader::kPieceBytes + 5'001;

std::string random_bytes(std::size_t size) {
  std::mt19937_64 random(7);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Memory that starts `shift` bytes past a multiple of 4096.
class Memory {
 public:
  Memory(std::size_t size, std::size_t shift) : bytes_(size + shift + 4096) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    begin_ = bytes_.data() + (4096 - address % 4096) % 4096 + shift;
  }
  [[nodiscard]] std::byte* begin() const { return begin_; }

 private:
  std::vector<std::byte> bytes_;
  std::byte* begin_;
};

class DirectReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path_, std::ios::binary) << bytes_;
    file_.plain = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    file_.direct = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    // Without direct reads in the file system, all reads use the page cache.
    if (file_.direct < 0) {
      file_.direct = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    }
    ASSERT_GE(file_.plain, 0);
  }
  void TearDown() override {
    ::close(file_.plain);
    ::close(file_.direct);
  }

  // Reads [begin, end) and returns the result and the bytes.
  std::pair<int, std::string> read(
      DirectReader& reader,
      std::uint64_t begin,
      std::uint64_t end,
      const DirectReader::Place& place = nullptr) {
    std::string found;
    std::uint64_t next = begin;
    const int result = reader.read(
        file_,
        begin,
        end,
        place,
        [&](std::uint64_t offset, std::span<const std::byte> piece) {
          EXPECT_EQ(offset, next);
          next += piece.size();
          found.append(
              reinterpret_cast<const char*>(piece.data()), piece.size());
        });
    return {result, found};
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "file";
  std::string bytes_ = random_bytes(kSize);
  DirectReader::File file_;
};

TEST_F(DirectReaderTest, GivesTheSameBytesForAnyOffsetSizeAndAlignment) {
  DirectReader ring;
  DirectReader calls(/*may_use_io_uring=*/false);
  EXPECT_TRUE(rc::check([&] {
    const auto begin = *rc::gen::inRange<std::uint64_t>(0, kSize + 1);
    const auto end = *rc::gen::inRange<std::uint64_t>(begin, kSize + 1);
    const auto shift = *rc::gen::element<std::size_t>(0, 1, 8, 64, 512, 4095);
    const bool has_place = *rc::gen::arbitrary<bool>();
    DirectReader& reader = *rc::gen::arbitrary<bool>() ? ring : calls;
    const Memory memory(kSize, shift);
    // Bytes from `first` on are read in place.
    const auto first = *rc::gen::inRange<std::uint64_t>(begin, end + 1);
    const auto place = [&](std::uint64_t offset, std::size_t) -> std::byte* {
      return offset >= first ? memory.begin() + (offset - first) : nullptr;
    };
    const auto [result, found] = read(
        reader, begin, end, has_place ? DirectReader::Place(place) : nullptr);
    RC_ASSERT(result == 0);
    RC_ASSERT(found == bytes_.substr(begin, end - begin));
  }));
}

TEST_F(DirectReaderTest, ReadsCompleteBlocksIntoTheirPlace) {
  DirectReader reader;
  const Memory memory(kSize, 0);
  using Bytes = std::pair<std::uint64_t, std::size_t>;
  std::vector<Bytes> in_place, copied;
  const int result = reader.read(
      file_,
      100,
      kSize,
      [&](std::uint64_t offset, std::size_t) {
        return memory.begin() + offset;
      },
      [&](std::uint64_t offset, std::span<const std::byte> piece) {
        const bool is_in_place = piece.data() == memory.begin() + offset;
        (is_in_place ? in_place : copied).emplace_back(offset, piece.size());
      });
  EXPECT_EQ(result, 0);
  // The range begins and ends inside of blocks.
  constexpr std::size_t kPiece = DirectReader::kPieceBytes;
  EXPECT_EQ(
      in_place,
      (std::vector<Bytes>{
          {4096, kPiece - 4096},
          {kPiece, kPiece},
          {2 * kPiece, kPiece},
          {3 * kPiece, 4096}}));
  EXPECT_EQ(
      copied, (std::vector<Bytes>{{100, 3996}, {3 * kPiece + 4096, 905}}));
  EXPECT_EQ(
      std::memcmp(memory.begin() + 4096, bytes_.data() + 4096, 3 * kPiece), 0);
}

TEST_F(DirectReaderTest, RequestsTheNextRangeWhileTheLastOneIsInFlight) {
  for (const bool may_use_io_uring : {true, false}) {
    DirectReader reader(may_use_io_uring);
    // The second range lies behind the end of the file, which ends no other.
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted{
        {100, 5000}, {2 * kSize, 3 * kSize}, {700, 700}, {4096, kSize}};
    std::vector<std::string> found(wanted.size());
    std::vector<int> results(wanted.size(), 77);
    std::vector<std::size_t> ended;
    std::size_t next = 0;
    std::size_t most_open = 0;
    reader.read([&]() -> std::optional<DirectReader::Range> {
      if (next == wanted.size()) return std::nullopt;
      const std::size_t i = next++;
      most_open = std::max(most_open, next - ended.size());
      return DirectReader::Range{
          &file_,
          wanted[i].first,
          wanted[i].second,
          nullptr,
          [&, i](std::uint64_t, std::span<const std::byte> piece) {
            found[i].append(
                reinterpret_cast<const char*>(piece.data()), piece.size());
          },
          [&, i](int result) {
            results[i] = result;
            ended.push_back(i);
          }};
    });
    EXPECT_EQ(results, (std::vector<int>{0, DirectReader::kEndOfFile, 0, 0}));
    EXPECT_EQ(found[0], bytes_.substr(100, 4900));
    EXPECT_EQ(found[1], "");
    EXPECT_EQ(found[3], bytes_.substr(4096));
    EXPECT_EQ(ended.size(), wanted.size());
    const bool has_ring = may_use_io_uring && IoRing::make(1) != nullptr;
    EXPECT_EQ(most_open > 1, has_ring);
  }
}

TEST_F(DirectReaderTest, ReportsTheEndOfTheFile) {
  for (const bool may_use_io_uring : {true, false}) {
    DirectReader reader(may_use_io_uring);
    EXPECT_EQ(read(reader, 0, kSize).first, 0);
    for (const std::uint64_t end : {kSize + 1, kSize + 4096, 2 * kSize}) {
      const auto [result, found] = read(reader, 10, end);
      EXPECT_EQ(result, DirectReader::kEndOfFile) << end;
      EXPECT_EQ(found, bytes_.substr(10, found.size()));
    }
    EXPECT_EQ(
        read(reader, 3 * kSize, 4 * kSize).first, DirectReader::kEndOfFile);
    // The reader can be used again.
    EXPECT_EQ(read(reader, 0, kSize).second, bytes_);
  }
}

TEST_F(DirectReaderTest, ReadsPlainlyWhatIsRefusedDirectly) {
  const int direct = file_.direct;
  file_.direct = -1;
  for (const bool may_use_io_uring : {true, false}) {
    DirectReader reader(may_use_io_uring);
    EXPECT_EQ(
        read(reader, 77, kSize - 3).second, bytes_.substr(77, kSize - 80));
  }
  file_.direct = direct;
}

TEST_F(DirectReaderTest, NamesTheErrorOfAFailedRead) {
  const DirectReader::File file = file_;
  file_ = {};
  for (const bool may_use_io_uring : {true, false}) {
    DirectReader reader(may_use_io_uring);
    EXPECT_EQ(read(reader, 0, 10).first, EBADF);
  }
  file_ = file;
}

TEST_F(DirectReaderTest, ThrowsWhatTheTakerThrowsWithNothingInFlight) {
  DirectReader reader;
  EXPECT_THROW(
      reader.read(
          file_,
          0,
          kSize,
          nullptr,
          [](auto, auto) { throw std::runtime_error("enough"); }),
      std::runtime_error);
  EXPECT_EQ(read(reader, 0, kSize).second, bytes_);
}

// A disk whose calls are interrupted or short. Short reads of a direct file
// return complete blocks.
ssize_t unreliable(int file, void* out, std::size_t size, off_t offset) {
  static std::atomic<int> num_calls{0};
  const int call = num_calls++;
  if (call % 3 == 1) {
    errno = EINTR;
    return -1;
  }
  const std::size_t most = call % 2 == 0 ? 40'960 : size;
  return ::pread(file, out, std::min(size, most), offset);
}

ssize_t broken(int file, void* out, std::size_t size, off_t offset) {
  if (offset >= static_cast<off_t>(DirectReader::kPieceBytes)) {
    errno = EIO;
    return -1;
  }
  return ::pread(file, out, size, offset);
}

TEST_F(DirectReaderTest, SurvivesInterruptedAndShortReads) {
  DirectReader reader(unreliable);
  EXPECT_EQ(read(reader, 0, kSize).second, bytes_);
  EXPECT_EQ(read(reader, 4095, kSize).second, bytes_.substr(4095));
}

TEST_F(DirectReaderTest, FailsWhereTheDiskFails) {
  DirectReader reader(broken);
  const auto [result, found] = read(reader, 0, kSize);
  EXPECT_EQ(result, EIO);
  EXPECT_EQ(found, bytes_.substr(0, DirectReader::kPieceBytes));
}

TEST_F(DirectReaderTest, KnowsThatFreshlyWrittenBytesAreCached) {
  EXPECT_TRUE(is_mostly_cached(file_.plain, 0, kSize));
  EXPECT_TRUE(is_mostly_cached(file_.plain, 5000, 1));
  EXPECT_TRUE(is_mostly_cached(file_.plain, 0, 0));
  EXPECT_TRUE(is_completely_cached(file_.plain, 0, kSize));
  EXPECT_TRUE(is_completely_cached(file_.plain, 4095, 2));
  EXPECT_TRUE(is_completely_cached(file_.plain, 0, 0));
}

TEST_F(DirectReaderTest, KnowsThatTheEndOfAFileIsNotCached) {
  ASSERT_EQ(::fsync(file_.plain), 0);
  ASSERT_EQ(::posix_fadvise(file_.plain, kSize / 2, 0, POSIX_FADV_DONTNEED), 0);
  if (is_completely_cached(file_.plain, kSize - 1, 1))
    GTEST_SKIP() << "the file system keeps its pages";
  EXPECT_FALSE(is_completely_cached(file_.plain, 0, kSize));
  EXPECT_TRUE(is_completely_cached(file_.plain, 0, 4096));
}

}  // namespace direct_reader_test
}  // namespace accelerate::detail
