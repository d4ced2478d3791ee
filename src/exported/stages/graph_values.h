#pragma once

#include <cstddef>
#include <vector>

#include "exported/load/loaded_program.h"

namespace accelerate::detail {

/// What a graph does with its values, as far as dividing it needs: where they
/// are made, which of them a later stage can make again, and which instructions
/// must stay together because one changes the other's result in place.
class GraphValues {
 public:
  /// The place of a value that is an input of the graph.
  static constexpr std::size_t kInput = static_cast<std::size_t>(-1);

  /// Borrows `graph`.
  explicit GraphValues(const BoundGraph& graph);

  /// The index of the instruction that makes the value of a slot.
  [[nodiscard]] std::size_t made_at(int slot) const { return made_at_[slot]; }
  /// Whether a slot holds a tensor of the program, which every stage has.
  [[nodiscard]] bool is_bound(int slot) const { return is_bound_[slot]; }
  /// Whether an instruction can be repeated on another stage: it makes tensors
  /// from numbers, arguments of forward() and constants alone, always the same
  /// ones.
  [[nodiscard]] bool is_repeatable(std::size_t instruction) const {
    return is_repeatable_[instruction];
  }
  /// The instruction that keeps a stage from beginning at `instruction`, since
  /// it changes a tensor in place that is made or used on the other side. Null
  /// if there is none.
  [[nodiscard]] const Instruction* obstacle(std::size_t instruction) const {
    return obstacles_[instruction];
  }
  /// Tensors of the program that a run changes.
  [[nodiscard]] const std::vector<at::Tensor>& changed() const {
    return changed_;
  }

 private:
  void place_values();
  void join_aliases();
  void find_obstacles();
  void find_repeatable();
  void find_changed();
  int alias_of(int slot);
  void join(int a, int b);
  void forbid(std::size_t first, std::size_t last, const Instruction& because);

  const BoundGraph& graph_;
  const Code& code_;
  std::vector<std::size_t> made_at_;
  std::vector<bool> is_bound_;
  /// Slots that may share memory lead to the same one.
  std::vector<int> alias_;
  /// Indexed by the slot that aliases lead to.
  std::vector<bool> is_changed_;
  std::vector<bool> is_repeatable_;
  std::vector<const Instruction*> obstacles_;
  std::vector<at::Tensor> changed_;
};

}  // namespace accelerate::detail
