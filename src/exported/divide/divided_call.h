#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exported/divide/value_split.h"
#include "exported/graph/instruction.h"

namespace accelerate::detail {

/// A rank's part of a value of a graph.
struct DividedValue {
  /// Unset: every rank has all of it.
  std::optional<ValueSplit> split = std::nullopt;
  /// Index of the parameter that it is, or from which alone it is computed;
  /// negative for other values.
  int parameter = -1;
  /// The parameter is divided; the value is it, or its transpose.
  bool is_slice = false;
  bool is_transposed = false;
  /// A gradient flows through it.
  bool has_gradient = false;
  /// The slot whose memory it may share; negative for its own.
  int base = -1;
};

/// A call of an operator in a graph whose values are divided among ranks: what
/// the rules of operators read and decide.
class DividedCall {
 public:
  DividedCall(
      Instruction& instruction,
      const Code& code,
      std::vector<DividedValue>& values,
      int rank)
      : instruction_(instruction), code_(code), values_(values), rank_(rank) {}

  /// "aten::linear"
  [[nodiscard]] const std::string& name() const {
    return instruction_.op->operator_name().name;
  }
  [[nodiscard]] const std::string& place() const { return instruction_.place; }
  [[nodiscard]] const Instruction& instruction() const { return instruction_; }

  /// Slots of the tensors among its arguments, in order, without those of which
  /// only the dtype matters.
  [[nodiscard]] std::vector<int> tensors() const;
  /// The slot of a tensor that is an argument; negative without one.
  [[nodiscard]] int slot(std::string_view argument) const;
  [[nodiscard]] DividedValue& value(int slot) const { return values_[slot]; }
  [[nodiscard]] const std::vector<std::int64_t>& sizes(int slot) const {
    return code_.tensors[slot].sizes;
  }
  [[nodiscard]] bool is_floating(int slot) const {
    return code_.tensors[slot].is_floating;
  }
  [[nodiscard]] std::int64_t num_dims(int slot) const {
    return static_cast<std::int64_t>(sizes(slot).size());
  }

  // Constants among its arguments.

  /// The argument's number; `otherwise` for None, computed numbers, and
  /// arguments that it lacks.
  [[nodiscard]] std::int64_t number(
      std::string_view argument,
      std::int64_t otherwise) const;
  /// The dimension that the argument names, of `num_dims`, counted from the
  /// front.
  [[nodiscard]] std::int64_t dim(
      std::string_view argument,
      std::int64_t num_dims) const;
  /// The dimensions that the argument names, of `num_dims`; empty for None.
  [[nodiscard]] std::vector<std::int64_t> dims(
      std::string_view argument,
      std::int64_t num_dims) const;

  [[nodiscard]] bool has(std::string_view argument) const {
    return operand(argument) != nullptr;
  }
  /// Whether the graph computes the argument.
  [[nodiscard]] bool is_computed(std::string_view argument) const;

  /// The sizes of a result in the example of the export.
  [[nodiscard]] const std::vector<std::int64_t>& result_sizes(
      std::size_t result = 0) const;
  [[nodiscard]] bool has_result_sizes(std::size_t result) const {
    return is_tensor(instruction_.results[result]);
  }
  /// All results are divided like this.
  void set_results(const ValueSplit& split);
  /// Replaces size `dim` of the full tensor, in a list of sizes, by that of the
  /// rank's slice. Leaves -1 unchanged.
  void set_size(
      std::string_view argument,
      std::int64_t dim,
      const ValueSplit& split);

  /// Throws ConfigError saying how the operator must get a divided value:
  /// "whole along dimension 3".
  [[noreturn]] void refuse(const ValueSplit& split, std::string_view how) const;

 private:
  [[nodiscard]] const Operand* operand(std::string_view argument) const;
  [[nodiscard]] bool is_tensor(int slot) const {
    return slot >= 0 && code_.tensors[slot].is_known;
  }

  Instruction& instruction_;
  const Code& code_;
  std::vector<DividedValue>& values_;
  int rank_;
};

/// Decides how the results of an operator with a divided argument are divided,
/// and changes constants that are sizes. Throws ConfigError if the operator on
/// slices would not compute slices.
void divide_results(DividedCall& call);

}  // namespace accelerate::detail
