#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Something that tasks share while they use it at once: a processor, a link.
/// Amounts are in any unit: bytes, seconds of work.
struct SharedResource {
  std::string name;
  /// Amount per second of all tasks together.
  double capacity = 1;
  /// Amount per second of one task at most.
  double most_per_task = 1;
  /// Above 0: seconds for which a task has its full rate before others that wait
  /// have theirs, as with the time slices of processors; infinity: until it
  /// ends. 0: all tasks have equal shares at once.
  double turn = 0;
};

/// The part of a message that uses resources: it takes the same amount of each,
/// at the rate of the slowest.
struct Flow {
  double amount = 0;
  std::vector<std::size_t> resources = {};
};

/// Something that travels, beginning when all its senders have begun it.
struct SimulatedMessage {
  /// What it is for, "gradients" say; messages of one kind are summed up.
  std::string kind;
  int num_senders = 1;
  /// Seconds before its flows begin, however few bytes there are.
  double latency = 0;
  /// At once; none for a message that costs its latency only.
  std::vector<Flow> flows = {};
};

/// What ranks do, each in its order: they compute, begin messages and wait for
/// them. The model of a run in which nothing is computed.
class RankPrograms {
 public:
  struct Instruction {
    enum class Kind { compute, begin, wait };
    Kind kind = Kind::compute;
    /// How much is computed, in the unit of its resource.
    double amount = 0;
    std::size_t resource = 0;
    std::size_t message = 0;
    /// What is computed, "forward" say.
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
