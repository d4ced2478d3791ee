#include <accelerate/accelerate.h>

#include "data/order/batch_sampler_shard.h"
#include "data/order/batch_source.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_batch_sampler_shard {

class GivenBatches final : public BatchSampler {
 public:
  explicit GivenBatches(std::vector<std::vector<std::int64_t>> batches)
      : batches_(std::move(batches)) {}
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(batches_.size());
  }
  void begin_pass(std::uint64_t, std::uint64_t) override {}
  [[nodiscard]] std::vector<std::int64_t> at(
      std::int64_t batch) const override {
    return batches_.at(static_cast<std::size_t>(batch));
  }

 private:
  std::vector<std::vector<std::int64_t>> batches_;
};

// Each rank's batches from a sampler without a batch size.
Json shares_of_batches(const Json& input, int count) {
  Json ranks = Json::array();
  try {
    for (int rank = 0; rank < count; ++rank) {
      DataLoaderOptions options;
      options.drop_last = input.at("drop_last");
      options.split_batches = input.at("split_batches").get<bool>();
      options.even_batches = input.at("even_batches").get<bool>();
      options.batch_sampler = std::make_shared<GivenBatches>(
          input.at("batches").get<std::vector<std::vector<std::int64_t>>>());
      constexpr std::int64_t kMany = 1000;
      detail::BatchSource source({.num_samples = kMany}, options);
      detail::LoaderContext context;
      context.batch_rank = rank;
      context.batch_count = count;
      source.attach(std::move(context), false);
      source.begin_pass(kMany);
      Json batches = Json::array();
      for (std::int64_t i = 0; i < source.size(); ++i)
        batches.push_back(source.at(i).indices);
      ranks.push_back(
          {{"batches", std::move(batches)}, {"length", source.size()}});
    }
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
  return {{"ranks", std::move(ranks)}};
}

}  // namespace topic_batch_sampler_shard

Json run_batch_sampler_shard(const Json& input) {
  using namespace topic_batch_sampler_shard;
  const int count = input.at("num_processes");
  if (input.contains("batches")) return shares_of_batches(input, count);
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank) {
    const detail::BatchSamplerShard plan(
        {.num_samples = input.at("n"),
         .batch_size = input.at("batch_size"),
         .rank = rank,
         .count = count,
         .drop_last = input.at("drop_last"),
         .split_batches = input.at("split_batches"),
         .even_batches = input.at("even_batches")});
    Json batches = Json::array();
    for (std::int64_t i = 0; i < plan.size(); ++i)
      batches.push_back(plan.positions(i));
    ranks.push_back({{"batches", std::move(batches)}, {"length", plan.size()}});
  }
  return {{"ranks", std::move(ranks)}};
}

}  // namespace accelerate::oracle
