#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace accelerate::detail {

/// Dtypes, with the numbers that exported programs use for them.
enum class ExportedDtype : std::uint8_t {
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  complex32 = 9,
  complex64 = 10,
  complex128 = 11,
  boolean = 12,
  bfloat16 = 13,
  uint16 = 28,
  float8_e4m3fn = 29,
  float8_e5m2 = 30,
  float8_e4m3fnuz = 31,
  float8_e5m2fnuz = 32,
  float8_e8m0fnu = 33,
  uint32 = 34,
  uint64 = 35,
};

/// The dtype of this number in the file; nothing for other numbers.
std::optional<ExportedDtype> exported_dtype(std::int64_t number);
/// PyTorch's name: "float32".
std::string name_of(ExportedDtype dtype);
/// Bytes of an element.
std::size_t element_bytes(ExportedDtype dtype);

/// Memory formats, with their numbers in the file.
enum class ExportedMemoryFormat : std::uint8_t {
  contiguous = 1,
  channels_last = 2,
  channels_last_3d = 3,
  preserve = 4,
};

/// The only layout that is read.
struct ExportedStrided {};

struct ExportedDevice {
  std::string type;
  std::optional<std::int64_t> index;
};

/// A reference to a value of the graph by its name: a tensor, or a number that
/// the graph computes.
struct ExportedReference {
  std::string name;
};

/// An argument of a kind that cannot be run, which the program lists in
/// `unsupported`.
struct ExportedUnsupported {};

struct ExportedArgument;
struct ExportedGraph;
using ExportedList = std::vector<ExportedArgument>;

/// What a node gets or returns; None is std::monostate.
struct ExportedArgument {
  std::variant<
      std::monostate,
      bool,
      std::int64_t,
      double,
      std::complex<double>,
      std::string,
      ExportedDtype,
      ExportedMemoryFormat,
      ExportedStrided,
      ExportedDevice,
      ExportedReference,
      ExportedList,
      std::shared_ptr<const ExportedGraph>,
      ExportedUnsupported>
      value;

  /// The name of the value that it refers to; null if it is none.
  [[nodiscard]] const std::string* reference() const {
    const auto* found = std::get_if<ExportedReference>(&value);
    return found == nullptr ? nullptr : &found->name;
  }
};

struct ExportedNode {
  /// "torch.ops.aten.linear.default", "_operator.add"
  std::string target;
  struct Input {
    std::string name;
    ExportedArgument argument;
  };
  std::vector<Input> inputs;
  /// A nested list stands for a single result that is a list of tensors.
  ExportedList outputs;
  /// The dotted name of the module whose forward calls it; empty for the root.
  std::string module;
  /// Where Python calls it, outside of PyTorch if possible:
  /// "model.py:12: return self.head(x)"; empty if unknown.
  std::string source;
};

/// The file's description of a tensor of a graph.
struct ExportedValue {
  /// Unset for dtypes that are not read.
  std::optional<ExportedDtype> dtype;
  /// Sizes of the example for which the program was exported; negative where
  /// they are unknown.
  std::vector<std::int64_t> sizes;
};

struct ExportedGraph {
  ExportedList inputs;
  std::vector<ExportedNode> nodes;
  ExportedList outputs;
  /// Its tensors, by name.
  std::map<std::string, ExportedValue> values;
};

}  // namespace accelerate::detail
