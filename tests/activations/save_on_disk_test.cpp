#include <accelerate/save_on_disk.h>

#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace save_on_disk_test {

using testing::expect_error;
using testing::TemporaryDirectory;
using torch::Tensor;
namespace nn = torch::nn;

using Function = std::function<Tensor(const Tensor&)>;

SavedTensorFileOptions in(
    const TemporaryDirectory& directory,
    std::uint64_t buffer_bytes = 1 << 16) {
  return {
      .directory = directory.path(),
      .buffer_bytes = buffer_bytes,
      .min_bytes = 256,
      .directory_in_memory = true};
}

Tensor input() { return torch::sin(torch::arange(24 * 40)).view({24, 40}); }

// The gradient of an input by the sum of what `run` returns.
Tensor gradient(const Function& run) {
  const Tensor x = input().requires_grad_(true);
  run(x).pow(2).sum().backward();
  return x.grad();
}

Tensor gradient_on_disk(const SavedTensorFile& file, const Function& run) {
  return gradient([&](const Tensor& x) {
    const SaveOnDisk saving(file);
    return run(x);
  });
}

struct NamedFunction {
  const char* name;
  Function run;
};

std::vector<NamedFunction> runs() {
  torch::manual_seed(1);
  const nn::Linear first(40, 64), second(64, 40);
  const nn::MultiheadAttention attention(40, 4);
  return {
      {"layers",
       [=](const Tensor& x) {
         nn::Linear a = first, b = second;
         return b(torch::gelu(a(x)));
       }},
      {"attention",
       [=](const Tensor& x) {
         nn::MultiheadAttention layer = attention;
         const Tensor sequence = x.unsqueeze(1);
         return std::get<0>(layer(sequence, sequence, sequence));
       }},
      {"one tensor saved by several operators",
       [](const Tensor& x) {
         const Tensor y = x.sin();
         return y * y.exp() + y.pow(3) + y.tanh() * y;
       }},
      {"views and strides",
       [](const Tensor& x) {
         const Tensor y = x.sin().t();
         const Tensor part = y.slice(0, 0, 40, 2);
         const Tensor wide = y.sum(0, true).expand({40, 24});
         return (y * y.exp() * wide).sum() + (part * part.cos()).sum();
       }},
      {"integers and complex numbers",
       [](const Tensor& x) {
         const Tensor places = torch::arange(23, -1, -1);
         const Tensor spectrum = torch::fft::fft(x.index_select(0, places));
         return torch::real(spectrum * spectrum.conj());
       }},
      {"changes in place after saving", [](const Tensor& x) {
         Tensor y = x.sin();
         Tensor z = y.exp();
         z = z * y;
         return z.mul_(2).add_(1) * 3;
       }}};
}

TEST(SaveOnDisk, GivesTheSameGradients) {
  const TemporaryDirectory directory;
  for (const std::uint64_t buffer_bytes :
       {std::uint64_t{4096}, std::uint64_t{1} << 16, std::uint64_t{1} << 28}) {
    const SavedTensorFile file(in(directory, buffer_bytes));
    for (int round = 0; round < 2; ++round) {
      for (const NamedFunction& each : runs()) {
        EXPECT_TRUE(
            torch::equal(gradient_on_disk(file, each.run), gradient(each.run)))
            << each.name;
      }
    }
    EXPECT_GT(file.num_bytes(), 0U);
  }
}

TEST(SaveOnDisk, WritesWhatSeveralOperatorsSaveOnce) {
  const TemporaryDirectory directory;
  const SavedTensorFile file(in(directory));
  const Tensor x = input().requires_grad_(true);
  Tensor loss;
  {
    const SaveOnDisk saving(file);
    const Tensor y = x.sin();
    // Each saves y: 3840 bytes in one block.
    loss = (y.exp() * y).sum() + y.pow(2).sum() + y.tanh().sum();
  }
  // x, y, exp(y) and tanh(y); x is a leaf, which stays.
  EXPECT_EQ(file.num_bytes(), 3U * 4096);
}

TEST(SaveOnDisk, UsesItsRoomAgain) {
  const TemporaryDirectory directory;
  const SavedTensorFile file(in(directory));
  const Function run = runs().front().run;
  static_cast<void>(gradient_on_disk(file, run));
  const std::uint64_t bytes = file.num_bytes();
  for (int step = 0; step < 5; ++step)
    static_cast<void>(gradient_on_disk(file, run));
  EXPECT_EQ(file.num_bytes(), bytes);
}

TEST(SaveOnDisk, KeepsSmallTensorsAndParametersWhereTheyAre) {
  const TemporaryDirectory directory;
  SavedTensorFileOptions options = in(directory);
  options.min_bytes = 1 << 20;
  const SavedTensorFile small(options);
  const Function run = runs().front().run;
  EXPECT_TRUE(torch::equal(gradient_on_disk(small, run), gradient(run)));
  EXPECT_EQ(small.num_bytes(), 0U);
  const SavedTensorFile file(in(directory));
  const Tensor weight = torch::ones({64, 64}).requires_grad_(true);
  {
    const SaveOnDisk saving(file);
    static_cast<void>(weight * weight.t());
  }
  EXPECT_EQ(file.num_bytes(), 0U);
}

TEST(SaveOnDisk, OutlivesItsScopeAndItsFile) {
  const TemporaryDirectory directory;
  const Tensor x = input().requires_grad_(true);
  std::vector<Tensor> losses;
  {
    const SavedTensorFile file(in(directory));
    for (int i = 0; i < 2; ++i) {
      const SaveOnDisk saving(file);
      losses.push_back((x.sin().exp() * (i + 1)).sum());
    }
  }
  losses[0].backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  losses[0].backward();
  EXPECT_TRUE(torch::equal(x.grad(), 2 * once));
  x.mutable_grad().reset();
  losses[1].backward();
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * once));
}

TEST(SaveOnDisk, NoticesThatWhatStayedWasChanged) {
  const TemporaryDirectory directory;
  const SavedTensorFile file(in(directory));
  const Tensor x = torch::ones({3}).requires_grad_(true);
  Tensor y = x * 2, loss;
  {
    const SaveOnDisk saving(file);
    loss = (y * y).sum();
  }
  y.add_(1);
  expect_error<c10::Error>(
      [&] { loss.backward(); }, "modified by an inplace operation");
}

TEST(SavedTensorFile, NeedsADirectoryOnADisk) {
  expect_error<ConfigError>(
      [] { SavedTensorFile({.directory = "/nowhere"}); },
      "[activations] /nowhere must be a directory for what operators save, but "
      "is none");
  expect_error<ConfigError>(
      [] { SavedTensorFile({.directory = "/dev/shm"}); },
      "must be on a disk, but is in memory");
}

}  // namespace save_on_disk_test
}  // namespace accelerate
