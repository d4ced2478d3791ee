#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A resource that concurrent tasks share, such as a processor or a link.
/// Amounts are in any unit, such as bytes or seconds of work.
struct SharedResource {
  std::string name;
  /// Amount per second for all tasks together.
  double capacity = 1;
  /// Maximum amount per second for one task.
  double most_per_task = 1;
  /// Above 0: seconds for which a task runs at its full rate before waiting
  /// tasks get their turn, like the time slices of processors; infinity: until
  /// it ends. 0: all tasks run at once, with equal shares.
  double turn = 0;
};

/// The part of a message that uses resources: the same amount of each, at the
/// rate of the slowest.
struct Flow {
  double amount = 0;
  std::vector<std::size_t> resources = {};
};

/// A message, which departs when all its senders have begun it.
struct SimulatedMessage {
  /// Purpose, such as "gradients"; times are summed per kind.
  std::string kind;
  int num_senders = 1;
  /// Seconds before its flows begin, regardless of its size.
  double latency = 0;
  /// Concurrent flows; empty for a message that only costs its latency.
  std::vector<Flow> flows = {};
};

/// The instructions of each rank, in order: compute, begin a message, wait for
/// a message. Models a run without computing anything.
class RankPrograms {
 public:
  struct Instruction {
    enum class Kind { compute, begin, wait };
    Kind kind = Kind::compute;
    /// Amount of computation, in the unit of its resource.
    double amount = 0;
    std::size_t resource = 0;
    std::size_t message = 0;
    /// What is computed, such as "forward".
    std::string what = {};
  };

  explicit RankPrograms(std::size_t num_ranks) : ranks_(num_ranks) {}

  std::size_t add_resource(SharedResource resource) {
    resources_.push_back(std::move(resource));
    return resources_.size() - 1;
  }
  std::size_t add_message(SimulatedMessage message) {
    messages_.push_back(std::move(message));
    return messages_.size() - 1;
  }
  void compute(
      std::size_t rank,
      std::size_t resource,
      double amount,
      std::string what) {
    ranks_[rank].push_back(
        {Instruction::Kind::compute, amount, resource, 0, std::move(what)});
  }
  void begin(std::size_t rank, std::size_t message) {
    ranks_[rank].push_back({Instruction::Kind::begin, 0, 0, message});
  }
  void wait(std::size_t rank, std::size_t message) {
    ranks_[rank].push_back({Instruction::Kind::wait, 0, 0, message});
  }

  [[nodiscard]] const std::vector<std::vector<Instruction>>& ranks() const {
    return ranks_;
  }
  [[nodiscard]] const std::vector<SharedResource>& resources() const {
    return resources_;
  }
  [[nodiscard]] const std::vector<SimulatedMessage>& messages() const {
    return messages_;
  }

 private:
  std::vector<std::vector<Instruction>> ranks_;
  std::vector<SharedResource> resources_;
  std::vector<SimulatedMessage> messages_;
};

}  // namespace accelerate::detail
