#include <accelerate/accelerate.h>

#include "oracle/oracle.h"
#include "oracle/streams.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace topic_gather_for_metrics {

DataLoaderOptions options_of(const Json& input) {
  return {
      .batch_size = input.at("batch_size"),
      .drop_last = input.at("drop_last"),
      .split_batches = input.at("split_batches").get<bool>(),
      .even_batches = input.at("even_batches").get<bool>(),
      .dispatch_batches = input.at("dispatch_batches").get<bool>()};
}

std::vector<std::int64_t> whole_numbers(const at::Tensor& tensor) {
  std::vector<std::int64_t> numbers;
  for (const double number : listify(tensor))
    numbers.push_back(static_cast<std::int64_t>(number));
  return numbers;
}

struct OneRank {
  Json gathered = Json::array();
  Json local_batches = Json::array();
};

template <class Loader>
void read(
    const Accelerator& accelerator,
    Loader loader,
    const Json& input,
    OneRank& result) {
  const bool as_objects = input.at("gather") == "object";
  for (auto& [samples] : skip_first_batches(loader, input.at("skip"))) {
    const std::vector<std::int64_t> own = whole_numbers(samples);
    result.local_batches.push_back(own);
    if (as_objects) {
      std::vector<std::string> names;
      for (const std::int64_t sample : own)
        names.push_back("s" + std::to_string(sample));
      result.gathered.push_back(accelerator.gather_for_metrics(names));
    } else {
      result.gathered.push_back(
          whole_numbers(accelerator.gather_for_metrics(samples)));
    }
  }
}

// The remainder of Accelerate's loader after a pass; ours has none.
std::int64_t remainder_at_end(const Json& input) {
  const std::int64_t n = input.at("n");
  const std::int64_t batch_size = input.at("batch_size");
  const std::int64_t ranks = input.at("num_processes");
  const std::int64_t round =
      input.at("split_batches") ? batch_size : batch_size * ranks;
  if (input.at("dispatch_batches")) {
    const std::int64_t num_samples =
        input.at("drop_last") ? n / round * round : n;
    if (num_samples == 0) return -1;
    return num_samples % round == 0 ? round : num_samples % round;
  }
  if (input.at("drop_last") || input.at("skip") != 0) return -1;
  return n % round;
}

}  // namespace topic_gather_for_metrics

Json run_gather_for_metrics(const Json& input) {
  using namespace topic_gather_for_metrics;
  const int count = input.at("num_processes");
  std::vector<OneRank> ranks(static_cast<std::size_t>(count));
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    OneRank& mine =
        ranks[static_cast<std::size_t>(accelerator.process_index())];
    const std::int64_t n = input.at("n");
    if (input.at("kind") == "map") {
      read(
          accelerator,
          accelerator.prepare(
              DataLoader(TensorDataset{torch::arange(n)}, options_of(input))),
          input,
          mine);
    } else {
      read(
          accelerator,
          accelerator.prepare(DataLoader(SizedStream(n), options_of(input))),
          input,
          mine);
    }
  });
  Json local_batches = Json::array();
  for (const OneRank& rank : ranks) {
    if (rank.gathered != ranks[0].gathered)
      throw std::logic_error("ranks differ");
    local_batches.push_back(rank.local_batches);
  }
  return {
      {"gathered", ranks[0].gathered},
      {"local_batches", local_batches},
      {"remainder_at_end", remainder_at_end(input)}};
}

}  // namespace accelerate::oracle
