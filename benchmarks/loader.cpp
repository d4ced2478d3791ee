// A loader's cold start, skipping, overhead over an index_select, and gain from
// two worker threads with tiny samples, compared with LibTorch's loader.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"

namespace {

using namespace accelerate::benchmarks;

struct ColdStart {
  double ms = 0;
  double mb = 0;
};

ColdStart cold_start(const std::string& program, const std::string& mode) {
  const std::string command = program + " " + mode;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      popen(command.c_str(), "r"), pclose);
  ColdStart start;
  if (!pipe || std::fscanf(pipe.get(), "%lf %lf", &start.ms, &start.mb) != 2) {
    std::fprintf(stderr, "loader: \"%s\" failed\n", command.c_str());
    std::exit(1);
  }
  return start;
}

void measure_cold_starts(const std::string& program) {
  constexpr int kRuns = 7;
  std::vector<double> ms, mb, skip, torch_ms, torch_mb;
  for (int run = 0; run < kRuns; ++run) {
    const ColdStart theirs = cold_start(program, "torch");
    torch_ms.push_back(theirs.ms);
    torch_mb.push_back(theirs.mb);
    const ColdStart ours = cold_start(program, "ours");
    ms.push_back(ours.ms);
    mb.push_back(ours.mb);
    skip.push_back(cold_start(program, "skip").ms);
  }
  const auto say = [&](const std::string& metric,
                       const std::string& unit,
                       const auto& ours,
                       const auto& theirs) {
    report(
        {"loader",
         metric,
         median(ours),
         unit,
         median(theirs),
         median(ours) / median(theirs),
         ours.size()});
  };
  say("first_batch_ms", "ms", ms, torch_ms);
  say("first_batch_mb", "MiB", mb, torch_mb);
  // The baseline is the first batch without skipping.
  say("skip_ms", "ms", skip, ms);
}

// Gives batches, starting a new pass when one ends.
template <class Loader>
class Endless {
 public:
  explicit Endless(Loader& loader) : loader_(&loader) {}
  auto& next() {
    if (!pass_ || !(++*pass_ != loader_->end())) {
      pass_.reset();
      pass_.emplace(loader_->begin());
    }
    return **pass_;
  }

 private:
  Loader* loader_;
  std::optional<decltype(std::declval<Loader&>().begin())> pass_;
};

void measure_index_select(
    const std::string& metric,
    std::int64_t width,
    bool shuffle) {
  constexpr std::int64_t kRows = 64 * 1024;
  constexpr std::int64_t kBatchSize = 32;
  constexpr int kCalls = 1024;
  const torch::Tensor rows = torch::rand({kRows, width});
  accelerate::Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(accelerate::DataLoader(
      accelerate::TensorDataset{rows},
      {.batch_size = kBatchSize, .shuffle = shuffle}));
  Endless batches(loader);
  const torch::Tensor order =
      shuffle ? torch::randperm(kRows) : torch::arange(kRows);
  const std::vector<torch::Tensor> indices = order.split(kBatchSize);
  std::size_t next = 0;
  torch::Tensor batch;
  const Interleaved times = interleave(
      60,
      kCalls,
      [&] { batches.next(); },
      [&] { batch = rows.index_select(0, indices[next++ % indices.size()]); });
  report_interleaved("loader", metric + "_us", times);
  const double ratio = median(times.ours) / median(times.baseline);
  report(
      {"loader",
       metric + "_over_index_select",
       ratio,
       "ratio",
       1.0,
       ratio,
       times.ours.size()});
}

// A sample of 64 numbers and a label.
struct Tiny {
  torch::Tensor rows = torch::rand({320'000, 64});
  [[nodiscard]] std::int64_t size() const { return rows.size(0); }
  [[nodiscard]] std::tuple<torch::Tensor, torch::Tensor> get(
      std::int64_t i) const {
    return {rows[i], torch::full({}, i % 10, torch::kLong)};
  }
};

void measure_workers() {
  accelerate::Accelerator accelerator({.cpu = true});
  const Tiny tiny;
  const auto make = [&](int num_workers) {
    return accelerator.prepare(accelerate::DataLoader(
        tiny, {.batch_size = 32, .shuffle = true, .num_workers = num_workers}));
  };
  auto none = make(0);
  auto two = make(2);
  Endless of_none(none), of_two(two);
  const Interleaved times =
      interleave(30, 1000, [&] { of_two.next(); }, [&] { of_none.next(); });
  const auto rate = [](const std::vector<double>& us) {
    return 32e6 / median(us);
  };
  report(
      {"loader",
       "two_workers_samples",
       rate(times.ours),
       "1/s",
       rate(times.baseline),
       rate(times.ours) / rate(times.baseline),
       times.ours.size()});
  report(
      {"loader",
       "two_workers_over_none",
       median(times.baseline) / median(times.ours),
       "ratio",
       1.0,
       median(times.baseline) / median(times.ours),
       times.ours.size()});
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path bin =
      std::filesystem::canonical(argv[0]).parent_path();
  measure_cold_starts((bin / "bench_first_batch").string());
  keep_freed_memory();
  torch::set_num_threads(1);
  measure_index_select("batch", 64, false);
  measure_index_select("shuffled_batch", 64, true);
  measure_index_select("shuffled_wide_batch", 784, true);
  measure_workers();
  return 0;
}
