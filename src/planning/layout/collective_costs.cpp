#include "planning/layout/collective_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace accelerate::detail {

namespace {

struct Span {
  /// Ranks of the group per node, and the number of nodes it spans.
  int per_node = 1;
  int num_nodes = 1;
};

Span span_of(const ClusterSpeeds& cluster, const RankGroup& group) {
  const int on_node = std::max(1, cluster.ranks_per_node / group.stride);
  const int per_node = std::min(on_node, group.size);
  return {per_node, (group.size + per_node - 1) / per_node};
}

double steps_of(CollectivePattern kind, int count) {
  if (count <= 1) return 0;
  if (kind == CollectivePattern::all_to_all) return count - 1;
  const double depth = std::ceil(std::log2(count));
  return kind == CollectivePattern::all_reduce ? 2 * depth : depth;
}

// Where ranks share processors, copying bytes and waking up for each step cost
// a rank its own processor time.
void add_flow(
    SimulatedMessage& message,
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    double inside,
    double between) {
  if (cluster.measured.shared_processors > 0) {
    const double seconds =
        (inside + between) / cluster.inside_node.bytes_per_second +
        std::exchange(message.latency, 0) * rank.share;
    message.flows.push_back({seconds, {rank.processor}});
    return;
  }
  if (inside > 0) message.flows.push_back({inside, {rank.inside_node}});
  if (between > 0) message.flows.push_back({between, {rank.between_nodes}});
}

}  // namespace

RankResources
add_rank(RankPrograms& programs, const ClusterSpeeds& cluster, int num_ranks) {
  RankResources rank;
  SharedResource processor{.name = "processor"};
  if (cluster.measured.shared_processors > 0) {
    const int on_node = std::min(num_ranks, cluster.ranks_per_node);
    const double share =
        static_cast<double>(cluster.measured.shared_processors) /
        static_cast<double>(on_node);
    processor.capacity = share;
    processor.most_per_task = share;
    rank.share = share;
  }
  rank.processor = programs.add_resource(processor);
  const double inside = cluster.inside_node.bytes_per_second;
  const double between = cluster.between_nodes.bytes_per_second;
  rank.inside_node = programs.add_resource({"inside_node", inside, inside});
  rank.between_nodes =
      programs.add_resource({"between_nodes", between, between});
  return rank;
}

SimulatedMessage collective(
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    CollectivePattern kind,
    const RankGroup& group,
    double bytes,
    std::string what,
    const CollectiveMessages& messages) {
  SimulatedMessage message{.kind = std::move(what)};
  if (group.size <= 1) return message;
  const Span span = span_of(cluster, group);
  const double n = group.size, m = span.per_node, nodes = span.num_nodes;
  const bool costs_per_message =
      messages.are_between_pairs && cluster.measured.seconds_per_message > 0;
  message.latency = messages.count *
      (costs_per_message ? (n - 1) * cluster.measured.seconds_per_message
                         : steps_of(kind, span.per_node) *
                   cluster.inside_node.latency_seconds +
               steps_of(kind, span.num_nodes) *
                   cluster.between_nodes.latency_seconds);
  double inside = 0, between = 0;
  if (kind == CollectivePattern::all_to_all) {
    inside = bytes * (m - 1) / n;
    between = bytes * (n - m) / n;
  } else {
    // All data that a node lacks must enter it through the links of its ranks.
    inside = m > 1 ? bytes * (m - 1) / m : 0;
    between = bytes * (nodes - 1) / nodes / m;
  }
  const double factor = kind == CollectivePattern::all_reduce ? 2 : 1;
  add_flow(message, cluster, rank, factor * inside, factor * between);
  return message;
}

SimulatedMessage transfer(
    const ClusterSpeeds& cluster,
    const RankResources& rank,
    int stride,
    double bytes,
    std::string what,
    std::optional<double> latency) {
  const bool is_inside = stride < cluster.ranks_per_node;
  const LinkSpeed& link =
      is_inside ? cluster.inside_node : cluster.between_nodes;
  SimulatedMessage message{
      .kind = std::move(what),
      .latency = latency.value_or(std::max(
          link.latency_seconds, cluster.measured.seconds_per_message))};
  add_flow(
      message, cluster, rank, is_inside ? bytes : 0, is_inside ? 0 : bytes);
  return message;
}

double seconds_alone(
    const RankPrograms& programs,
    const SimulatedMessage& message) {
  double longest = 0;
  for (const Flow& flow : message.flows) {
    for (const std::size_t resource : flow.resources) {
      longest = std::max(
          longest, flow.amount / programs.resources()[resource].most_per_task);
    }
  }
  return message.latency + longest;
}

}  // namespace accelerate::detail
