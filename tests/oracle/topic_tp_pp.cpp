// Recorded splits of models, sequences and rows over ranks.
#include <accelerate/sequence_shards.h>

#include "oracle/departures.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_tp_pp {

constexpr std::string_view kContextParallel = "context_parallel";

Json cut_sequence(const Json& input) {
  const SequenceShards shards(
      input.at("sequence_length").get<std::int64_t>(), input.at("num_ranks"));
  Json ranks = Json::array();
  for (int rank = 0; rank < shards.num_ranks(); ++rank)
    ranks.push_back(shards.positions(rank));
  return {{"ranks", ranks}, {"restore", shards.restore()}};
}

// A recorded failure that must be answered by shards of the padded sequence.
bool pads_the_sequence(const Json& input, const Json& found, Json& expected) {
  if (input.at("kind") != kContextParallel || !expected.contains("error"))
    return false;
  const std::int64_t length = input.at("sequence_length");
  const std::int64_t chunks = 2 * input.at("num_ranks").get<std::int64_t>();
  if (length % chunks == 0 || !found.contains("restore")) return false;
  Json padded = input;
  padded["sequence_length"] = (length + chunks - 1) / chunks * chunks;
  expected = cut_sequence(padded);
  return true;
}

}  // namespace topic_tp_pp

Json run_tp_pp(const Json& input) {
  const std::string kind = input.at("kind");
  if (kind == topic_tp_pp::kContextParallel)
    return topic_tp_pp::cut_sequence(input);
  throw NotBuilt(kind);
}

Departures tp_pp_departures() {
  return Departures(
      {},
      {{"a sequence whose length does not divide is padded, not refused",
        &topic_tp_pp::pads_the_sequence}});
}

}  // namespace accelerate::oracle
