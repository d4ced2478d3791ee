// Recorded splits of models, sequences and rows over ranks.
#include <accelerate/sequence_shards.h>

#include "oracle/departures.h"
#include "oracle/module_trees.h"
#include "oracle/oracle.h"
#include "parallel/shard/sharded_parameter.h"
#include "pipeline/automatic_split.h"

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

// The device map and the split points of Accelerate's "auto".
Json auto_split(const Json& input) {
  std::vector<std::string> classes;
  if (!input.at("no_split_module_classes").is_null())
    input.at("no_split_module_classes").get_to(classes);
  const detail::DeviceMapSplit split = detail::split_by_device_map(
      module_tree_of(input.at("module")), input.at("num_stages"), classes);
  Json map = Json::array();
  for (const Placement& each : split.map.placements()) {
    const auto index = each.device.index();
    map.push_back({each.name, index ? Json(*index) : Json(each.device.name())});
  }
  Json points = Json::array();
  for (const auto& point : split.points)
    points.push_back(point ? Json(*point) : Json());
  return {{"device_map", std::move(map)}, {"split_points", std::move(points)}};
}

// The rows of each rank.
Json shard_bounds(const Json& input) {
  const auto begins =
      detail::row_begins(input.at("size"), input.at("num_ranks"));
  Json ranks = Json::array();
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    ranks.push_back(
        {{"size", begins[i + 1] - begins[i]}, {"offset", begins[i]}});
  return {{"ranks", ranks}};
}

// PyTorch gives all ranks except the last ones the same number of rows.
bool rows_are_equal_shares(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (input.at("kind") != "shard_bounds") return false;
  const std::int64_t size = input.at("size");
  const std::int64_t num_ranks = input.at("num_ranks");
  std::int64_t next = 0;
  for (const Json& rank : found.at("ranks")) {
    const std::int64_t rows = rank.at("size");
    if (rank.at("offset") != next || rows < size / num_ranks ||
        rows > (size + num_ranks - 1) / num_ranks) {
      return false;
    }
    next += rows;
  }
  if (next != size) return false;
  expected = found;
  return true;
}

// Expects shards of the padded sequence where a failure was recorded.
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
  if (kind == "pipeline_auto_split") return topic_tp_pp::auto_split(input);
  if (kind == "shard_bounds") return topic_tp_pp::shard_bounds(input);
  throw NotBuilt(kind);
}

Departures tp_pp_departures() {
  return Departures(
      {},
      {{"a sequence whose length does not divide is padded, not refused",
        &topic_tp_pp::pads_the_sequence},
       {"ranks have equal shares of the rows, up to one row",
        &topic_tp_pp::rows_are_equal_shares}});
}

}  // namespace accelerate::oracle
