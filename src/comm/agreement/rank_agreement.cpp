#include "comm/agreement/rank_agreement.h"

#include <numeric>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

RankAgreement::RankAgreement(
    World world,
    std::function<DesyncDetector::Position()> position)
    : world_(std::move(world)), position_(std::move(position)) {}

void RankAgreement::start_detector() {
  if (!detector_)
    detector_ = std::make_unique<DesyncDetector>(world_, position_);
}

StoreGroup& RankAgreement::calls() {
  if (calls_) return *calls_;
  start_detector();
  std::vector<int> all_ranks(static_cast<std::size_t>(world_.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  calls_.emplace(world_, "checkpoint calls", all_ranks);
  calls_->end_circular_waits();
  calls_->while_waiting([detector = detector_.get()](const std::string& call) {
    detector->ask(call + "()");
  });
  return *calls_;
}

void RankAgreement::require_same_call(
    const std::string& call,
    const std::string& arguments) {
  const std::string mine =
      arguments.empty() ? call : format("{} {}", call, arguments);
  const std::vector<std::string> all = calls().all_gather(mine, call);
  std::vector<std::string> lines;
  bool are_equal = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    are_equal = are_equal && all[i] == mine;
    lines.push_back(format("rank {}: {}", i, all[i]));
  }
  if (are_equal) return;
  throw DistributedError(format(
      "[checkpoint] all ranks must make the same call, but they made different "
      "ones:\n  {}",
      join(lines, "\n  ")));
}

void RankAgreement::require_success(
    const std::string& failure,
    const std::string& call,
    const std::string& what) {
  const std::string failures = gather_failures(failure, call);
  if (failures.empty()) return;
  throw CheckpointError(format("{}{}", what, failures));
}

std::string RankAgreement::gather_failures(
    const std::string& failure,
    const std::string& call) {
  std::vector<std::string> lines;
  const auto failures = calls().all_gather(failure, call);
  for (std::size_t i = 0; i < failures.size(); ++i) {
    // Most failures are the same on all ranks.
    if (failures[i].empty() || (i > 0 && failures[i] == failures[0])) continue;
    lines.push_back(
        failures.size() == 1 ? failures[i]
                             : format("rank {}: {}", i, failures[i]));
  }
  return join(lines, "\n");
}

std::string RankAgreement::decide(
    const std::string& decision,
    const std::string& call) {
  return calls().broadcast(decision, call);
}

}  // namespace accelerate::detail
