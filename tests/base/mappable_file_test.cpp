#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files/mappable_file.h"
#include "base/files/page_cache.h"
#include "support/temporary_directory.h"

namespace accelerate::mappable_file_test {

namespace fs = std::filesystem;
using detail::MappableFile;
using detail::page_bytes;

constexpr std::size_t kSize = (std::size_t{5} << 20U) + 123;

class MappableFiles : public ::testing::Test {
 protected:
  MappableFiles() {
    for (std::size_t i = 0; i < contents_.size(); ++i)
      contents_[i] = static_cast<char>(i * 7 + i / 4096);
    std::ofstream(file_, std::ios::binary) << contents_;
    descriptor_ = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  }
  ~MappableFiles() override { ::close(descriptor_); }

  bool is_there(const detail::MappedBytes& bytes, std::size_t offset) const {
    return std::memcmp(
               bytes.data(), contents_.data() + offset, kSize - offset) == 0;
  }

  testing::TemporaryDirectory directory_;
  fs::path file_ = directory_.path() / "file";
  std::string contents_ = std::string(kSize, '\0');
  int descriptor_ = -1;
};

TEST_F(MappableFiles, BytesStayWhenTheFileIsTruncatedOrWrittenTo) {
  const MappableFile mappable(descriptor_);
  const std::uint64_t promise = mappable.protect();
  if (promise == 0) GTEST_SKIP() << "this file system has no leases";
  EXPECT_EQ(mappable.protect(), promise);
  const auto all = mappable.map(promise, 0, kSize);
  const auto part = mappable.map(promise, 4097, kSize - 4097);
  ASSERT_NE(all, nullptr);
  ASSERT_NE(part, nullptr);
  EXPECT_TRUE(all->populate());
  all->data()[5] = std::byte{1};
  contents_[5] = 1;
  EXPECT_EQ(mappable.map(promise, 0, kSize + 1), nullptr);
  std::atomic<bool> is_done = false;
  std::atomic<int> num_wrong = 0;
  std::thread reader([&] {
    while (!is_done)
      if (!is_there(*part, 4097)) ++num_wrong;
  });
  // Truncating blocks until the mapped pages have been copied.
  fs::resize_file(file_, 10);
  std::ofstream(file_, std::ios::binary) << "other contents";
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(is_there(*all, 0));
    EXPECT_TRUE(is_there(*part, 4097));
  }
  is_done = true;
  reader.join();
  EXPECT_EQ(num_wrong, 0);
  // Later mappings see the new file, under another promise.
  const std::uint64_t next = mappable.protect();
  EXPECT_NE(next, promise);
  EXPECT_EQ(mappable.map(promise, 0, 5), nullptr);
  const auto other = mappable.map(next, 0, 5);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(std::memcmp(other->data(), "other", 5), 0);
}

// Including uncached pages in the middle of a window that the kernel maps at
// once.
TEST_F(MappableFiles, PopulateReadsPagesThatAreNotCached) {
  const MappableFile mappable(descriptor_);
  const std::uint64_t promise = mappable.protect();
  if (promise == 0) GTEST_SKIP() << "this file system has no leases";
  constexpr std::size_t kBegin = 4097;
  constexpr off_t kForgotten = 261 * 4096;
  const std::size_t page = page_bytes();
  ASSERT_EQ(::fsync(descriptor_), 0);
  ASSERT_EQ(
      ::posix_fadvise(descriptor_, kForgotten, 901 * 4096, POSIX_FADV_DONTNEED),
      0);
  const auto bytes = mappable.map(promise, kBegin, kSize - kBegin);
  ASSERT_NE(bytes, nullptr);
  EXPECT_TRUE(bytes->populate());
  std::vector<unsigned char> pages(
      (kSize - kBegin + kBegin % page + page - 1) / page);
  std::byte* const first = bytes->data() - kBegin % page;
  ASSERT_EQ(::mincore(first, kSize - kBegin + kBegin % page, pages.data()), 0);
  for (std::size_t i = 0; i < pages.size(); ++i)
    EXPECT_EQ(pages[i] & 1U, 1U) << "page " << i;
  EXPECT_TRUE(is_there(*bytes, kBegin));
}

// Returns whether this process's page tables map every page of a range of
// bytes; true if the system does not say.
bool are_mapped(const std::byte* data, std::size_t size) {
  const std::size_t page = page_bytes();
  const int table = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (table < 0) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = address / page;
  std::vector<std::uint64_t> entries((address + size - 1) / page - first + 1);
  const auto num_bytes = static_cast<ssize_t>(entries.size() * 8);
  const ssize_t got = ::pread(
      table, entries.data(), entries.size() * 8, static_cast<off_t>(first * 8));
  ::close(table);
  return got != num_bytes ||
      std::all_of(entries.begin(), entries.end(), [](std::uint64_t entry) {
           return entry >> 63U != 0;
         });
}

TEST_F(MappableFiles, PopulatesPiecesInAnyOrderOnSeveralThreads) {
  const MappableFile mappable(descriptor_);
  const std::uint64_t promise = mappable.protect();
  if (promise == 0) GTEST_SKIP() << "this file system has no leases";
  for (const std::size_t begin :
       {std::size_t{0}, std::size_t{4097}, kSize - (std::size_t{3} << 20U)}) {
    SCOPED_TRACE(begin);
    const auto bytes = mappable.map(promise, begin, kSize - begin);
    ASSERT_NE(bytes, nullptr);
    std::size_t num_pieces = 0;
    EXPECT_TRUE(bytes->populate([&](std::size_t count, const auto& work) {
      num_pieces = count;
      std::thread odd([&] {
        for (std::size_t i = 1; i < count; i += 2) work(i);
      });
      for (std::size_t i = (count + 1) / 2; i-- > 0;) work(2 * i);
      odd.join();
    }));
    EXPECT_GE(num_pieces, 2U);
    EXPECT_TRUE(are_mapped(bytes->data(), kSize - begin));
    EXPECT_TRUE(is_there(*bytes, begin));
  }
}

// Systems refuse to map files from anywhere else.
TEST_F(MappableFiles, PartsAreMappedFromTheBeginningOfAPage) {
  const MappableFile mappable(descriptor_);
  const std::uint64_t promise = mappable.protect();
  if (promise == 0) GTEST_SKIP() << "this file system has no leases";
  for (const std::size_t begin :
       {std::size_t{0}, std::size_t{4097}, kSize - 1000}) {
    SCOPED_TRACE(begin);
    const auto bytes = mappable.map(promise, begin, 1000);
    ASSERT_NE(bytes, nullptr);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes->data());
    EXPECT_EQ(address % page_bytes(), begin % page_bytes());
    EXPECT_TRUE(bytes->populate());
    EXPECT_EQ(std::memcmp(bytes->data(), contents_.data() + begin, 1000), 0);
  }
}

TEST_F(MappableFiles, AreNotMappedWhileSomebodyCouldWrite) {
  const int writer = ::open(file_.c_str(), O_RDWR | O_CLOEXEC);
  {
    const MappableFile mappable(descriptor_);
    EXPECT_EQ(mappable.protect(), 0U);
    EXPECT_EQ(mappable.map(1, 0, 1), nullptr);
  }
  ::close(writer);
}

TEST_F(MappableFiles, BytesOutliveTheirFile) {
  std::unique_ptr<detail::MappedBytes> bytes;
  {
    const MappableFile mappable(descriptor_);
    const std::uint64_t promise = mappable.protect();
    if (promise == 0) GTEST_SKIP() << "this file system has no leases";
    bytes = mappable.map(promise, 0, kSize);
  }
  // No lease is left to wait for.
  fs::resize_file(file_, 0);
  EXPECT_TRUE(is_there(*bytes, 0));
}

// Other programs can still read, rename and remove the file.
TEST_F(MappableFiles, OthersMayReadRenameAndRemove) {
  const MappableFile mappable(descriptor_);
  const std::uint64_t promise = mappable.protect();
  if (promise == 0) GTEST_SKIP() << "this file system has no leases";
  const auto bytes = mappable.map(promise, 0, kSize);
  {
    std::ifstream reader(file_, std::ios::binary);
    EXPECT_EQ(reader.get(), contents_[0]);
  }
  fs::rename(file_, directory_.path() / "renamed");
  fs::remove(directory_.path() / "renamed");
  EXPECT_EQ(mappable.protect(), promise);
  EXPECT_TRUE(is_there(*bytes, 0));
}

}  // namespace accelerate::mappable_file_test
