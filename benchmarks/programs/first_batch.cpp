// One cold start of a loader over 32 million shuffled samples (sample i is i):
// prints milliseconds and mebibytes until its first batch of 32.
// usage: bench_first_batch ours|skip|torch
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

constexpr std::int64_t kSamples = 32'000'000;
constexpr std::int64_t kBatchSize = 32;
constexpr std::int64_t kSkipped = 500'000;

struct Indices {
  [[nodiscard]] std::int64_t size() const { return kSamples; }
  [[nodiscard]] std::int64_t get(std::int64_t i) const { return i; }
};

struct JoinIndices {
  torch::Tensor operator()(const std::vector<std::int64_t>& samples) const {
    return torch::tensor(samples);
  }
};

class TorchIndices
    : public torch::data::BatchDataset<TorchIndices, torch::Tensor> {
 public:
  torch::Tensor get_batch(c10::ArrayRef<size_t> indices) override {
    return torch::tensor(
        std::vector<std::int64_t>(indices.begin(), indices.end()));
  }
  c10::optional<size_t> size() const override {
    return static_cast<size_t>(kSamples);
  }
};

double mebibytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key))
      return std::stod(line.substr(std::strlen(key) + 1)) / 1024;
  }
  return 0;
}

template <class Begin>
void measure(Begin&& begin) {
  const double before = mebibytes("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  begin();
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  std::printf("%.6f %.6f\n", elapsed.count(), mebibytes("VmHWM") - before);
}

}  // namespace

int main(int, char** argv) {
  const std::string mode = argv[1];
  torch::set_num_threads(1);
  // Creates the first tensors here, so that their cost is not the loader's.
  static_cast<void>(torch::tensor(std::vector<std::int64_t>(kBatchSize)).sum());
  if (mode == "torch") {
    auto loader =
        torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
            TorchIndices(), torch::data::DataLoaderOptions(kBatchSize));
    measure([&] { static_cast<void>(loader->begin()->numel()); });
    return 0;
  }
  const accelerate::Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(accelerate::DataLoader(
      Indices(), {.batch_size = kBatchSize, .shuffle = true}, JoinIndices()));
  measure([&] {
    const std::int64_t skipped = mode == "skip" ? kSkipped : 0;
    static_cast<void>(skip_first_batches(loader, skipped).begin()->numel());
  });
  return 0;
}
