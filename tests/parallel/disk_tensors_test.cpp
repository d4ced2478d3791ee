#include "gate/disk/disk_tensors.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/torch.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace disk_tensors_test {

using accelerate::testing::expect_error;
using accelerate::testing::has_memory;
using accelerate::testing::TemporaryDirectory;
using torch::Tensor;

DiskTensors::Options options_for(
    const TemporaryDirectory& directory,
    std::uint64_t memory_bytes) {
  return {
      .directory = directory.path(),
      .what = "numbers",
      .memory_bytes = memory_bytes};
}

// Random uses of tensors that fit into memory by threes: each has the values
// that it would have there.
RC_GTEST_PROP(DiskTensors, HaveTheValuesTheyWouldHaveInMemory, ()) {
  const torch::NoGradGuard no_grad;
  constexpr std::int64_t kSize = 3000;
  constexpr std::uint64_t kMemory = 3 * 12'288;
  const TemporaryDirectory directory;
  DiskTensors::Options options = options_for(directory, kMemory);
  options.reads_ahead = *rc::gen::arbitrary<bool>();
  options.writes_behind = *rc::gen::arbitrary<bool>();
  std::optional<DiskTensors> disk(
      std::in_place,
      options,
      std::make_unique<TransferQueue>(*rc::gen::arbitrary<bool>()));
  std::vector<Tensor> kept, plain;
  const auto number_of_tensors = *rc::gen::inRange<std::size_t>(1, 8);
  for (std::size_t i = 0; i < number_of_tensors; ++i) {
    plain.push_back(torch::arange(kSize) * static_cast<double>(i + 1));
    kept.push_back(plain.back().clone());
    disk->add(kept.back());
  }
  const auto pick = [&] {
    return *rc::gen::inRange<std::size_t>(0, number_of_tensors);
  };
  const int num_steps = *rc::gen::inRange(1, 40);
  for (int step = 0; step < num_steps; ++step) {
    const std::size_t a = pick();
    const std::size_t b = pick();
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
        kept[a].add_(kept[b]);
        plain[a].add_(plain[b]);
        break;
      case 1:
        kept[a].narrow(0, 10, 500).mul_(2);
        plain[a].narrow(0, 10, 500).mul_(2);
        break;
      case 2:
        RC_ASSERT(torch::equal(kept[a] + kept[b], plain[a] + plain[b]));
        break;
      case 3: {
        const BypassGates bypass;
        const HeldTensors held({kept[a], kept[b]}, DiskUse::change);
        kept[a].sub_(kept[b]).add_(1);
        plain[a].sub_(plain[b]).add_(1);
        break;
      }
      case 4: {
        const BypassGates bypass;
        const HeldTensors held({kept[a]}, DiskUse::replace);
        kept[a].fill_(step);
        plain[a].fill_(step);
        break;
      }
      case 5:
        begin_fetch({kept[a], kept[b]});
        break;
      case 6:
        at::_foreach_mul_(std::vector<Tensor>{kept[a]}, 0.5);
        plain[a].mul_(0.5);
        break;
      default: {
        const Tensor made = disk->make({kSize}, at::kFloat);
        made.copy_(kept[a]);
        kept[b] = made;
        plain[b] = plain[a].clone();
        disk->forget_unused();
      }
    }
  }
  disk->flush();
  for (std::size_t i = 0; i < number_of_tensors; ++i)
    RC_ASSERT(torch::equal(kept[i], plain[i]));
  RC_ASSERT(disk->most_bytes() <= kMemory);
}

TEST(DiskTensors, LeaveMemoryWhenTheyAreLetGo) {
  const torch::NoGradGuard no_grad;
  const TemporaryDirectory directory;
  DiskTensors disk(options_for(directory, 1U << 20U));
  const Tensor tensor = torch::arange(5000);
  disk.add(tensor);
  {
    const HeldTensors held({tensor}, DiskUse::change);
    EXPECT_TRUE(has_memory(tensor));
  }
  EXPECT_FALSE(has_memory(tensor));
  expect_error<c10::Error>(
      [&] { static_cast<void>(tensor.data_ptr()); },
      "read through its address while it lies in a file (numbers in ");
  EXPECT_EQ(tensor[4999].item<std::int64_t>(), 4999);
}

TEST(DiskTensors, ExceedTheirMemoryOnlyByWhatIsHeld) {
  const torch::NoGradGuard no_grad;
  const TemporaryDirectory directory;
  constexpr std::uint64_t kBytes = 64U << 10U;
  DiskTensors disk(options_for(directory, 2 * kBytes));
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6; ++i) {
    tensors.push_back(torch::full({kBytes / 4}, float(i)));
    disk.add(tensors.back());
  }
  EXPECT_EQ(disk.most_bytes(), 2 * kBytes);
  {
    const HeldTensors held({tensors.begin(), tensors.begin() + 4});
    EXPECT_EQ(disk.most_bytes(), 4 * kBytes);
  }
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(
        tensors[static_cast<std::size_t>(i)].sum().item<float>(),
        static_cast<float>(i) * (kBytes / 4));
}

TEST(DiskTensors, ServeSeveralThreads) {
  const TemporaryDirectory directory;
  DiskTensors disk(options_for(directory, 3 * 40'000));
  std::vector<Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(torch::zeros({10'000}));
    disk.add(tensors.back());
  }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const torch::NoGradGuard no_grad;
      for (int round = 0; round < 50; ++round) {
        for (std::size_t i = t; i < tensors.size(); i += 4) tensors[i].add_(1);
        static_cast<void>(tensors[(t + 3) % 8].sum());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& tensor : tensors)
    EXPECT_EQ(tensor.sum().item<float>(), 500'000.0F);
}

std::atomic<int> failing = 0;  // of read (1) and write (2)
std::atomic<int> calls_until_failure = -1;
std::atomic<int> failure = EIO;
std::atomic<std::size_t> most_bytes = SIZE_MAX;

bool fails(int kind) {
  return (failing & kind) != 0 ||
      (calls_until_failure >= 0 && calls_until_failure-- == 0);
}
ssize_t read_or_fail(int file, void* out, std::size_t size, off_t offset) {
  if (!fails(1))
    return ::pread(file, out, std::min(size, most_bytes.load()), offset);
  errno = failure;
  return -1;
}
ssize_t write_or_fail(int file, const void* from, std::size_t n, off_t at) {
  if (!fails(2))
    return ::pwrite(file, from, std::min(n, most_bytes.load()), at);
  errno = failure;
  return -1;
}

std::unique_ptr<TransferQueue> failing_queue() {
  failing = 0;
  calls_until_failure = -1;
  failure = EIO;
  most_bytes = SIZE_MAX;
  return std::make_unique<TransferQueue>(
      TransferQueue::Calls{&read_or_fail, &write_or_fail});
}

// Steps on five tensors, one after another. Each begins at `start` and gains
// one in every step.
void take_steps(
    DiskTensors& disk,
    const std::vector<Tensor>& tensors,
    int count) {
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < count; ++step) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const HeldTensors held({tensors[i]}, DiskUse::change);
      begin_fetch({tensors[(i + 1) % tensors.size()]});
      const BypassGates bypass;
      tensors[i].add_(1);
    }
  }
  disk.flush();
}

// Whichever call fails, the steps end with an error that names the file, or
// with the right values; short reads and writes go on where they ended.
TEST(DiskTensors, NeverTakeAWrongStepWhicheverCallFails) {
  constexpr int kSteps = 3;
  const TemporaryDirectory directory;
  int num_errors = 0;
  for (const int error : {EIO, ENOSPC, EINTR}) {
    for (int call = 0; call < 40; ++call) {
      DiskTensors disk(options_for(directory, 2 * 80'000), failing_queue());
      most_bytes = call % 2 == 0 ? SIZE_MAX : 30'000;
      std::vector<Tensor> tensors;
      for (int i = 0; i < 5; ++i) {
        tensors.push_back(torch::full({20'000}, float(i)));
        disk.add(tensors.back());
      }
      failure = error;
      calls_until_failure = call;
      try {
        take_steps(disk, tensors, kSteps);
      } catch (const accelerate::Error& found) {
        EXPECT_THAT(found.what(), ::testing::HasSubstr("numbers in "));
        EXPECT_NE(error, EINTR);
        ++num_errors;
        continue;
      }
      calls_until_failure = -1;
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(torch::equal(
            tensors[static_cast<std::size_t>(i)] + 0,
            torch::full({20'000}, float(i + kSteps))))
            << "call " << call;
      }
    }
  }
  EXPECT_GE(num_errors, 40);
}

TEST(DiskTensors, SayWhichFileFails) {
  const torch::NoGradGuard no_grad;
  const TemporaryDirectory directory;
  DiskTensors disk(options_for(directory, 1U << 20U), failing_queue());
  const Tensor tensor = torch::ones({5000});
  disk.add(tensor);
  { const HeldTensors held({tensor}, DiskUse::change); }
  disk.flush();
  failing = 1;
  expect_error<accelerate::Error>(
      [&] { static_cast<void>(tensor + 1); },
      "[gate] reading numbers in " + directory.path().string() +
          " failed: Input/output error; resume from the last checkpoint");
  failing = 0;
  EXPECT_EQ(tensor.sum().item<float>(), 5000);
  failing = 2;
  failure = ENOSPC;
  { const HeldTensors held({tensor}, DiskUse::change); }
  expect_error<accelerate::Error>(
      [&] { disk.flush(); },
      "[gate] writing numbers in " + directory.path().string() +
          " failed: No space left on device");
  failing = 0;
  // New values need nothing of what is lost, and are kept.
  { const HeldTensors held({tensor}, DiskUse::replace); }
  // What could not be written is lost, so nothing goes on as if it were there.
  expect_error<accelerate::Error>(
      [&] { static_cast<void>(tensor + 1); }, "writing numbers in ");
}

// Some threads use tensors, others make new ones and forget them.
TEST(DiskTensors, AreForgottenWhileOthersAreUsed) {
  const TemporaryDirectory directory;
  DiskTensors disk(options_for(directory, 4 * 40'000));
  const Tensor kept = torch::zeros({10'000});
  disk.add(kept);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int round = 0; round < 60; ++round) {
        const Tensor made = disk.make({10'000}, at::kFloat);
        made.fill_(round);
        EXPECT_EQ(made.mean().item<float>(), static_cast<float>(round));
        static_cast<void>(kept.sum());
        disk.forget_unused();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kept.sum().item<float>(), 0);
}

TEST(DiskTensors, AreUnreadableAfterwards) {
  const TemporaryDirectory directory;
  const Tensor tensor = torch::ones({5000});
  {
    DiskTensors disk(options_for(directory, 0));
    disk.add(tensor);
    const HeldTensors held({tensor});
  }
  expect_error<c10::Error>(
      [&] { static_cast<void>(tensor + 1); }, "gone with the Accelerator");
}

}  // namespace disk_tensors_test
}  // namespace accelerate::detail
