#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "format/exported/exported_program.h"

namespace accelerate::detail {

/// The sizes for which a program was exported. Dimensions that Python named
/// may vary in a range, and are equal wherever the same name stands; what is
/// computed from them ("2*n") is left to the program's own assertions.
class InputSizes {
 public:
  InputSizes() = default;
  explicit InputSizes(const ExportedProgram& program);

  /// `inputs`: one value per input of the graph. Throws ConfigError naming the
  /// input and the dimension: "[exported] dimension 1 of input 'input_ids' must
  /// be 2 to 64, for which the model was exported, but is 65".
  void check(const std::vector<c10::IValue>& inputs) const;

 private:
  struct Dimension {
    ExportedRange range;
    /// Index of the symbol; negative without one.
    int symbol = -1;
  };
  struct Input {
    std::size_t place = 0;
    std::string name;
    std::vector<Dimension> dimensions;
  };
  /// The index of the symbol that the expression is, a new one for a new name;
  /// negative for other expressions. `known`: indices by name.
  int symbol_of(
      const std::string& expression,
      const ExportedProgram& program,
      std::map<std::string, int>& known);
  [[noreturn]] void fail_as_unequal(
      const std::vector<c10::IValue>& inputs,
      int symbol) const;

  std::vector<Input> inputs_;
  /// The range of each symbol.
  std::vector<ExportedRange> ranges_;
};

}  // namespace accelerate::detail
