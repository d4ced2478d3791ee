#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/weights.h>

/// Weights in a folder, in Accelerate's format: a file NAME.dat per tensor with
/// its elements in row-major order, and index.json with their dtypes and
/// shapes. Python programs read what is written here, and vice versa.
///
/// Written files are durable before index.json names them. Beside it is
/// checksums.json, which Accelerate ignores.
namespace accelerate {

/// An entry of index.json: a .dat file of the folder, or a tensor in a
/// safetensors file.
struct OffloadedWeight {
  /// PyTorch's name, "bfloat16". For a tensor in a safetensors file, the dtype
  /// that it is converted to; empty for its own.
  std::string dtype = {};
  /// Only for a .dat file; a safetensors file has its own.
  std::vector<std::int64_t> shape = {};
  /// Empty for a .dat file.
  std::filesystem::path safetensors_file = {};
  /// The tensor's name in that file; empty for the name of the entry.
  std::string weight_name = {};

  bool operator==(const OffloadedWeight&) const = default;
};

/// Entries by weight name, in the order in which they were added.
class ACCELERATE_API OffloadIndex {
 public:
  /// Names and their entries.
  using Entries = std::vector<std::pair<std::string, OffloadedWeight>>;

  OffloadIndex() = default;
  /// If a name appears twice, its first entry counts.
  explicit OffloadIndex(Entries entries);

  /// Adds an entry, or replaces the one of that name in place.
  void set(const std::string& name, OffloadedWeight weight);
  /// Null for a name without an entry.
  [[nodiscard]] const OffloadedWeight* find(const std::string& name) const;
  /// All entries, in the order in which they were added.
  [[nodiscard]] const Entries& entries() const { return entries_; }
  /// Whether there are none.
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Number of entries.
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  Entries entries_;
  std::unordered_map<std::string, std::size_t> places_;
};

/// Writes a weight's file and returns its entry, for an OffloadIndex. A file
/// that has the same contents is left alone. Names can contain '/', which
/// creates folders. Throws ConfigError for names that would lead out of the
/// folder and for weights without contents, Error if the file cannot be
/// written, which is then unchanged.
ACCELERATE_API OffloadedWeight offload_weight(
    const at::Tensor& weight,
    const std::string& name,
    const std::filesystem::path& folder);

/// Returns the weight in such a file, memory-mapped: its pages are read on
/// first use. Changes to the tensor are not written back. The file must not be
/// shortened while the tensor exists. Throws CheckpointError if the file does
/// not have the size that the entry implies.
[[nodiscard]] ACCELERATE_API at::Tensor load_offloaded_weight(
    const std::filesystem::path& file,
    const OffloadedWeight& weight);

/// Adds entries to the folder's index.json, replacing those of the same names;
/// writes nothing for an empty index.
ACCELERATE_API void save_offload_index(
    const OffloadIndex& index,
    const std::filesystem::path& folder);

/// Reads the index.json of a folder. Throws CheckpointError if it is missing or
/// not an index.
[[nodiscard]] ACCELERATE_API OffloadIndex
load_offload_index(const std::filesystem::path& folder);

/// Writes weights and their index to a folder, which is created. Weights that
/// the folder already has, by size and checksum, are not rewritten. All files
/// are complete before any gets its name, so an error leaves the folder as it
/// was; what a killed process left behind is removed by the next one. Waits for
/// another process that is filling the folder.
ACCELERATE_API void offload_state_dict(
    const std::filesystem::path& folder,
    const WeightList& state_dict);

/// Weights by name, wherever they are.
class ACCELERATE_API WeightMapping {
 public:
  WeightMapping() = default;
  WeightMapping(const WeightMapping&) = delete;
  WeightMapping& operator=(const WeightMapping&) = delete;
  virtual ~WeightMapping();

  /// Names of the weights.
  [[nodiscard]] virtual std::vector<std::string> keys() const = 0;
  /// Throws ConfigError for a name that is not among the keys.
  [[nodiscard]] virtual at::Tensor at(const std::string& key) const = 0;
  /// Number of weights.
  [[nodiscard]] std::size_t size() const { return keys().size(); }
};

/// The weights of another mapping whose names begin with a prefix, by the rest
/// of their names.
class ACCELERATE_API PrefixedDataset : public WeightMapping {
 public:
  /// `mapping` must outlive this object.
  PrefixedDataset(const WeightMapping& mapping, std::string prefix);

  [[nodiscard]] std::vector<std::string> keys() const override;
  [[nodiscard]] at::Tensor at(const std::string& key) const override;

 private:
  const WeightMapping& mapping_;
  std::string prefix_;
};

/// Where an OffloadedWeightsLoader finds weights; at least one must be given.
struct OffloadedWeightsSources {
  /// Weights in memory, which take precedence over those in files.
  WeightList state_dict = {};
  /// A folder with the .dat files, and an index.json unless `index` is given.
  std::filesystem::path save_folder = {};
  /// Entries in addition to those of the folder's index.json, over which they
  /// take precedence.
  OffloadIndex index = {};
  /// Where weights from files are put.
  c10::Device device = c10::kCPU;
};

/// Weights in memory, in a folder and in safetensors files under one set of
/// names: first those in memory, then those of the index, then those of the
/// folder. Files are opened when they are first needed.
class ACCELERATE_API OffloadedWeightsLoader : public WeightMapping {
 public:
  /// Throws ConfigError if no source is given, CheckpointError for a folder
  /// without an index.
  explicit OffloadedWeightsLoader(OffloadedWeightsSources sources);
  ~OffloadedWeightsLoader() override;

  [[nodiscard]] std::vector<std::string> keys() const override;
  [[nodiscard]] at::Tensor at(const std::string& key) const override;

 private:
  struct State;
  detail::OwnedPtr<State> state_;
};

/// Returns the weights that are one of `submodule_names`, or below one, grouped
/// by submodule.
[[nodiscard]] ACCELERATE_API WeightList extract_submodules_state_dict(
    const WeightList& state_dict,
    const std::vector<std::string>& submodule_names);

/// Returns the state dict of a model whose weights may be offloaded: those are
/// fetched to the CPU one after another, into memory of their own. Other
/// tensors share the model's memory. Tensors on the meta device that are not
/// offloaded are left out, with a warning.
[[nodiscard]] ACCELERATE_API WeightList
get_state_dict_offloaded_model(const torch::nn::Module& model);

/// Returns a state dict with the tensors of one module, whose weights may be
/// offloaded. `module_name` is the name of one of its tensors in `state_dict`
/// ("layers.0.weight"); the entries of that module get its values, offloaded
/// ones on `device_to_put_offload`.
[[nodiscard]] ACCELERATE_API WeightList get_state_dict_from_offload(
    const torch::nn::Module& module,
    const std::string& module_name,
    WeightList state_dict,
    c10::Device device_to_put_offload = c10::kCPU);

/// Loads the weights of an index into a module, on the CPU, from .dat files of
/// a folder or safetensors files. Throws like set_module_tensor_to_device() and
/// load_offloaded_weight().
ACCELERATE_API void load_offloaded_weights(
    torch::nn::Module& model,
    const OffloadIndex& index,
    const std::filesystem::path& offload_folder);

}  // namespace accelerate
