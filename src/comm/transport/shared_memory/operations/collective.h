#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/operations/collectives.h"

namespace accelerate::detail {

/// A collective in steps. In each step, a rank writes its slot; if `combines`,
/// it reduces its part of what all ranks wrote; then it reads. A slot is
/// written again two steps later, when all ranks are done with it.
class Collective : public Operation {
 public:
  bool advance(Fabric& fabric) final;
  [[nodiscard]] bool is_complete() const final {
    return has_begun_ && next_done_ == num_steps_;
  }
  void list_awaited(const Fabric& fabric, std::vector<int>& ranks) const final;
  [[nodiscard]] std::string describe() const final;

 protected:
  /// The ranks whose slots a rank awaits before it combines or reads.
  static constexpr int kNoRank = -1;
  static constexpr int kAllRanks = -2;

  struct Shape {
    CollectiveStamp stamp = {};
    CollectiveNote note = {};
    /// Equal on all ranks if their stamps are.
    std::uint64_t num_steps = 1;
    bool combines = false;
    /// A rank, kNoRank or kAllRanks. A rank that awaits none does not read.
    int awaited = kAllRanks;
  };

  /// Called once, before the first step.
  virtual Shape begin(Fabric& fabric) = 0;
  /// Called once, after this rank has compared the stamps of the ranks it
  /// awaits, and before it combines or reads. Returns the number of steps,
  /// which may depend on the ranks' notes if every rank awaits all.
  virtual std::uint64_t settle(Fabric&, std::uint64_t num_steps) {
    return num_steps;
  }
  /// `slot` is this rank's.
  virtual void write(Fabric& fabric, std::uint64_t step, std::byte* slot) = 0;
  virtual void combine(Fabric&, std::uint64_t /*step*/) {}
  virtual void read(Fabric& fabric, std::uint64_t step) = 0;

  /// The slot of `rank` in step `step` of this collective.
  [[nodiscard]] std::byte* slot_of(Fabric& fabric, int rank, std::uint64_t step)
      const {
    return fabric.slot(rank, first_step_ + step);
  }
  /// The step record of the rank being waited for; empty until it has begun.
  [[nodiscard]] const CollectiveNote& note_of(const Fabric& fabric, int rank)
      const {
    return fabric.page(rank).calls[first_step_ % 2].note;
  }

 private:
  bool try_write(Fabric& fabric);
  bool try_combine(Fabric& fabric);
  bool try_read(Fabric& fabric);
  [[nodiscard]] bool is_awaited(const Fabric& fabric, int rank) const;
  // Whether `counter` is at least `value` on all awaited ranks.
  [[nodiscard]] bool have_all(
      const Fabric& fabric,
      std::atomic<std::uint64_t> RankPage::*counter,
      std::uint64_t value) const;
  void compare_stamps(Fabric& fabric);

  Shape shape_;
  std::uint64_t num_steps_ = 1;
  std::uint64_t first_step_ = 0;
  // Counted within this collective.
  std::uint64_t next_written_ = 0;
  std::uint64_t next_combined_ = 0;
  std::uint64_t next_done_ = 0;
  bool has_begun_ = false;
  bool are_compared_ = false;
};

/// Formats a stamp, as in "all_reduce of 4096 bytes (Float [1024], sum)".
std::string describe(const CollectiveStamp& stamp);

}  // namespace accelerate::detail
