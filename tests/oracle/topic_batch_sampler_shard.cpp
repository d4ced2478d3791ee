#include "data/batch_plan.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

Json run_batch_sampler_shard(const Json& input) {
  if (input.contains("batches")) throw NotBuilt("batch samplers of variable batches");
  const int count = input.at("num_processes");
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank) {
    const detail::BatchPlan plan(
        {.num_samples = input.at("n"),
         .batch_size = input.at("batch_size"),
         .rank = rank,
         .count = count,
         .drop_last = input.at("drop_last"),
         .split_batches = input.at("split_batches"),
         .even_batches = input.at("even_batches")});
    Json batches = Json::array();
    for (std::int64_t i = 0; i < plan.size(); ++i) batches.push_back(plan.positions(i));
    ranks.push_back({{"batches", std::move(batches)}, {"length", plan.size()}});
  }
  return {{"ranks", std::move(ranks)}};
}

}  // namespace accelerate::oracle
