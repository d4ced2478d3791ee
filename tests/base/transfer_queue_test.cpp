#include "base/files/transfer_queue.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <accelerate/error.h>
#include "base/files/scratch_file.h"

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace {

using accelerate::testing::TemporaryDirectory;

using Bytes = std::vector<std::byte>;

Bytes numbers(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 255U);
  return bytes;
}

// What a system call does next; the test sets it.
std::atomic<int> calls_until_failure = -1;
std::atomic<int> failure = EIO;
std::atomic<std::size_t> most_bytes = SIZE_MAX;

bool fails() {
  if (calls_until_failure < 0) return false;
  return calls_until_failure-- == 0;
}

ssize_t read_some(int file, void* out, std::size_t size, off_t offset) {
  if (fails()) {
    errno = failure;
    return -1;
  }
  return ::pread(file, out, std::min(size, most_bytes.load()), offset);
}

ssize_t write_some(int file, const void* from, std::size_t size, off_t offset) {
  if (fails()) {
    errno = failure;
    return -1;
  }
  return ::pwrite(file, from, std::min(size, most_bytes.load()), offset);
}

struct Faults {
  Faults() {
    calls_until_failure = -1;
    most_bytes = SIZE_MAX;
    failure = EIO;
  }
  ~Faults() {
    calls_until_failure = -1;
    most_bytes = SIZE_MAX;
  }
};

std::vector<std::unique_ptr<TransferQueue>> queues() {
  std::vector<std::unique_ptr<TransferQueue>> all;
  all.push_back(std::make_unique<TransferQueue>());
  all.push_back(std::make_unique<TransferQueue>(/*may_use_io_uring=*/false));
  all.push_back(std::make_unique<TransferQueue>(
      TransferQueue::Calls{&read_some, &write_some}));
  return all;
}

RC_GTEST_PROP(TransferQueue, ReadsWhatItWrote, ()) {
  const Faults faults;
  const auto sizes = *rc::gen::container<std::vector<std::size_t>>(
      *rc::gen::inRange(1, 9), rc::gen::inRange<std::size_t>(1, 600'000));
  const bool are_aligned = *rc::gen::arbitrary<bool>();
  most_bytes = *rc::gen::element(SIZE_MAX, std::size_t{70'000});
  const TemporaryDirectory directory;
  for (const auto& queue : queues()) {
    ScratchFile file(directory.path(), "numbers");
    struct Part {
      std::uint64_t offset;
      Bytes bytes, read;
    };
    std::vector<Part> parts;
    for (const std::size_t size : sizes) {
      const std::size_t used = are_aligned ? ScratchFile::rounded(size) : size;
      parts.push_back(
          {file.allocate(used),
           numbers(used, static_cast<unsigned>(parts.size())),
           Bytes(used)});
    }
    std::vector<TransferQueue::Ticket> tickets;
    for (const Part& part : parts)
      tickets.push_back(queue->write(file, part.offset, part.bytes));
    for (const auto& ticket : tickets) RC_ASSERT(queue->wait(ticket) == 0);
    tickets.clear();
    for (Part& part : parts)
      tickets.push_back(queue->read(file, part.offset, part.read));
    for (const auto& ticket : tickets) {
      RC_ASSERT(queue->wait(ticket) == 0);
      RC_ASSERT(queue->has_ended(ticket));
    }
    for (const Part& part : parts) RC_ASSERT(part.bytes == part.read);
  }
}

TEST(TransferQueue, ReportsTheErrorOfAnyCall) {
  const Faults faults;
  const TemporaryDirectory directory;
  ScratchFile file(directory.path(), "numbers");
  constexpr int kPieces = 3;
  Bytes bytes(kPieces * TransferQueue::kPieceBytes);
  const std::uint64_t offset = file.allocate(bytes.size());
  TransferQueue queue(TransferQueue::Calls{&read_some, &write_some});
  for (const int error : {EIO, ENOSPC}) {
    for (int call = 0; call < kPieces; ++call) {
      failure = error;
      calls_until_failure = call;
      EXPECT_EQ(queue.wait(queue.write(file, offset, bytes)), error);
      calls_until_failure = call;
      EXPECT_EQ(queue.wait(queue.read(file, offset, bytes)), error);
      // The next ones are unaffected.
      EXPECT_EQ(queue.wait(queue.write(file, offset, bytes)), 0);
      EXPECT_EQ(queue.wait(queue.read(file, offset, bytes)), 0);
    }
  }
}

TEST(TransferQueue, ReportsTheEndOfTheFile) {
  const TemporaryDirectory directory;
  const ScratchFile file(directory.path(), "numbers");
  Bytes bytes(ScratchFile::kAlignment);
  for (const auto& queue : queues()) {
    EXPECT_EQ(
        queue->wait(queue->read(file, 1U << 30U, bytes)),
        TransferQueue::kEndOfFile);
  }
}

TEST(TransferQueue, EndsWhatWasAskedForBeforeItIsGone) {
  const TemporaryDirectory directory;
  ScratchFile file(directory.path(), "numbers");
  const Bytes bytes = numbers(40 * TransferQueue::kPieceBytes, 1);
  const std::uint64_t offset = file.allocate(bytes.size());
  for (auto& queue : queues()) {
    static_cast<void>(queue->write(file, offset, bytes));
    queue.reset();
    Bytes read(bytes.size());
    ASSERT_EQ(
        ::pread(file.plain(), read.data(), read.size(), 0),
        static_cast<ssize_t>(read.size()));
    EXPECT_EQ(read, bytes);
  }
}

TEST(ScratchFile, HasNoName) {
  const TemporaryDirectory directory;
  const ScratchFile file(directory.path(), "numbers");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ScratchFile, UsesFreeRoomAgain) {
  const TemporaryDirectory directory;
  ScratchFile file(directory.path(), "numbers");
  const auto first = file.allocate(5'000);
  const auto second = file.allocate(5'000);
  EXPECT_NE(first, second);
  EXPECT_EQ(first % ScratchFile::kAlignment, 0U);
  file.free(first, 5'000);
  EXPECT_EQ(file.allocate(8'192), first);
  EXPECT_EQ(file.size(), 16'384U);
  file.reserve(100'000);
  EXPECT_EQ(file.size(), 116'384U);
  EXPECT_EQ(file.allocate(1), 16'384U);
  EXPECT_EQ(file.size(), 116'384U);
}

TEST(ScratchFile, RefusesWhatTheDiskCannotHold) {
  const TemporaryDirectory directory;
  ScratchFile file(directory.path(), "the optimizer state of rank 3");
  accelerate::testing::expect_error<accelerate::Error>(
      [&] { static_cast<void>(file.allocate(std::uint64_t{1} << 50U)); },
      "must have room for 1.0 PB more to hold the optimizer state of rank "
      "3");
  EXPECT_EQ(file.allocate(1), 0U);
}

TEST(ScratchFile, SaysWhichDirectoryIsMissing) {
  accelerate::testing::expect_error<accelerate::Error>(
      [] { ScratchFile("/nowhere/at/all", "numbers"); },
      "[base] /nowhere/at/all must be a directory in which files can be made");
}

}  // namespace
}  // namespace accelerate::detail
