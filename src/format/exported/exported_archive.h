#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "format/exported/exported_program.h"

namespace accelerate::detail {

/// A tensor of an archive.
struct ExportedTensor {
  /// Its file in the archive; tied tensors have the same one.
  std::string file;
  ExportedDtype dtype = ExportedDtype::float32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  /// Counted in elements, from the beginning of `bytes`.
  std::int64_t offset = 0;
  bool requires_grad = false;
  bool is_parameter = false;
  /// The contents of the file, inside the archive; unset if the archive holds
  /// only the graph.
  std::optional<std::span<const std::byte>> bytes;
};
using ExportedTensors = std::map<std::string, ExportedTensor>;

/// What accelerate_cpp_export.py adds to an archive.
struct ExportedFacts {
  /// Dotted names and classes of all modules, in Python's order.
  std::vector<std::pair<std::string, std::string>> modules;
  /// Names of the modules that were in eval() although the model trained.
  std::vector<std::string> evaluated;
  /// The dtype of the autocast that was on, such as "bfloat16"; empty if none.
  std::string autocast;
  /// Hugging Face's plan for tensor parallelism, as patterns of module names
  /// and styles: "model.layers.*.mlp.up_proj", "colwise". Empty if the model
  /// has none.
  std::vector<std::pair<std::string, std::string>> tp_plan;
};

/// An archive of torch.export.save: a zip whose entries are not compressed.
/// Nothing that is pickled is read, and nothing is executed.
class ExportedArchive {
 public:
  /// Throws Error if the file cannot be read, CheckpointError if it is not such
  /// an archive, or has another byte order.
  explicit ExportedArchive(const std::filesystem::path& path);
  /// Borrows `bytes`. `name` is used in messages.
  ExportedArchive(std::span<const std::byte> bytes, const std::string& name);
  ~ExportedArchive();
  ExportedArchive(const ExportedArchive&) = delete;
  ExportedArchive& operator=(const ExportedArchive&) = delete;

  /// Names of the programs in the archive; torch.export.save() calls its one
  /// "model".
  [[nodiscard]] std::vector<std::string> models() const;
  /// Throws what parse_exported_program() throws, ConfigError if there is no
  /// program of this name.
  [[nodiscard]] ExportedProgram program(const std::string& model) const;
  /// The program for eval() that accelerate_cpp_export.py adds if it differs.
  [[nodiscard]] std::optional<ExportedProgram> evaluation() const;
  /// Parameters and buffers, and constants with buffers that are not in the
  /// state dict. Throw CheckpointError for tensors that are not inside their
  /// files, ConfigError for those that are pickled or not dense.
  [[nodiscard]] ExportedTensors weights(const std::string& model) const;
  [[nodiscard]] ExportedTensors constants(const std::string& model) const;
  /// Unset if the archive was written without accelerate_cpp_export.py.
  [[nodiscard]] std::optional<ExportedFacts> facts() const;

  /// All bytes of the file.
  [[nodiscard]] std::span<const std::byte> bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::detail
