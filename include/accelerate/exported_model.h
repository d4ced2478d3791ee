#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accelerate/detail/divided_program.h>
#include <accelerate/export.h>
#include <accelerate/exported_description.h>
#include <accelerate/tensor_parallel.h>

namespace accelerate {

struct ExportedOptions {
  /// The program within the archive; torch.export.save() names its only one
  /// "model".
  std::string model = "model";
  /// False leaves parameters and buffers on the meta device, as an archive
  /// without weights does; constants have their values.
  bool weights = true;
};

/// What a forward of an exported program returned: its tensors, in the order in
/// which Python's pytree lists them. A number is a tensor without dimensions,
/// None and a string are undefined tensors.
class ACCELERATE_API ExportedOutputs {
 public:
  ExportedOutputs() = default;
  ExportedOutputs(
      std::vector<at::Tensor> tensors,
      std::shared_ptr<const std::vector<std::string>> names);

  /// Throws ConfigError, listing the names, if there is no such result.
  [[nodiscard]] const at::Tensor& operator[](std::size_t index) const;
  /// "logits" of a dict, dataclass or ModelOutput; "pair.1" of nested ones.
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const;
  /// Whether there is a result of this name.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Number of tensors.
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  /// All results, in the order of the program.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const {
    return tensors_;
  }
  /// The names, as many as tensors; "0" and "1" for a tuple, empty for a
  /// single result.
  [[nodiscard]] const std::vector<std::string>& names() const;

  template <class Visitor>
  friend void visit_tensors(ExportedOutputs& outputs, Visitor&& visitor) {
    for (at::Tensor& tensor : outputs.tensors_) {
      if (tensor.defined()) visitor(tensor);
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<const std::vector<std::string>> names_;
};

/// Arguments of forward() by name: "input_ids".
using ExportedInputs = std::map<std::string, at::Tensor>;

/// A module of an exported program: it has its Python class's name, parameters
/// and buffers, but only the root's forward can be called.
class ACCELERATE_API ExportedModuleImpl : public torch::nn::Module {
 public:
  using Module::Module;

  /// Moves tensors as Module::to() does. Throws ConfigError for a floating
  /// dtype that a parameter does not have: dtypes are part of the program.
  void to(at::Device device, at::ScalarType dtype, bool non_blocking = false)
      override;
  void to(at::ScalarType dtype, bool non_blocking = false) override;
  void to(at::Device device, bool non_blocking = false) override;
  /// Throws ConfigError: load the program again instead.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
};

namespace detail {
class LoadedProgram;
class ProgramStages;
}  // namespace detail

/// A program of torch.export as a module. Its submodules, parameters and
/// buffers have Python's names and class names. train() and eval() act on
/// dropout and batch normalisation as in Python, also for a submodule alone;
/// a program that was exported in eval() stays there.
///
/// Buffers that are not part of the state dict, and constants, belong to the
/// program: they follow the module's device, and no list has them. A tied
/// parameter has only its first name. Like other modules, not thread-safe.
class ACCELERATE_API ExportedModelImpl : public ExportedModuleImpl,
                                         public detail::DividedProgram {
 public:
  ExportedModelImpl(
      const std::string& class_name,
      std::unique_ptr<detail::LoadedProgram> program);
  ~ExportedModelImpl() override;

  /// Runs the program. Inputs are those of input_names(), in this order:
  /// arguments of Python's forward that were tensors (or sizes, in which case
  /// an integer is expected) when it was exported. Throws ConfigError for other
  /// inputs: a different number, or sizes for which it was not exported. An
  /// operator's error names the module and the line of the Python source.
  ExportedOutputs forward(std::vector<c10::IValue> inputs);
  template <class... Inputs>
    requires(
        sizeof...(Inputs) > 0 &&
        ((std::convertible_to<Inputs, at::Tensor> || std::integral<Inputs>) &&
         ...))
  ExportedOutputs forward(const Inputs&... inputs) {
    return forward(std::vector<c10::IValue>{input_value(inputs)...});
  }
  /// Runs the program with inputs by name. Throws ConfigError if the names are
  /// not input_names().
  ExportedOutputs forward(const ExportedInputs& inputs);

  /// Names of the inputs: of Python's arguments, and of the tensors inside
  /// them: "input_ids", "batch.0".
  [[nodiscard]] const std::vector<std::string>& input_names() const;
  /// Names of the results; see ExportedOutputs.
  [[nodiscard]] const std::vector<std::string>& output_names() const;
  /// The dtype of the autocast in which the program was exported; unset if
  /// there was none, or it is unknown.
  [[nodiscard]] std::optional<at::ScalarType> autocast_dtype() const;
  /// Whether accelerate_cpp_export.py wrote the file: it says what the autocast
  /// was, has compared gradients with the model's, and adds a graph for eval()
  /// where that differs.
  [[nodiscard]] bool is_described() const;
  /// The model's own plan for tensor parallelism: the `tp_plan` of Hugging
  /// Face's class, as it was when accelerate_cpp_export.py exported it, without
  /// layers that have no parameters here because their weights are tied. Empty
  /// if the class has none. Throws ConfigError for styles that
  /// parse_tp_plan() does not know.
  [[nodiscard]] ParallelizePlan tensor_parallel_plan() const;
  /// Number of operators and functions of sizes that a forward calls, without
  /// those in branches and loops.
  [[nodiscard]] std::size_t num_instructions() const;

 private:
  friend class detail::ProgramStages;

  [[nodiscard]] bool is_embedding(const at::Tensor& parameter) const override;
  [[nodiscard]] ParallelizePlan own_plan() const override;
  std::vector<at::Tensor> divide(
      const std::vector<detail::DividedParameter>& parameters,
      int rank) override;
  void set_full(bool is_full) override;

  template <class Input>
  static c10::IValue input_value(const Input& input) {
    if constexpr (std::integral<Input>) {
      return static_cast<std::int64_t>(input);
    } else {
      return at::Tensor(input);
    }
  }

  std::unique_ptr<detail::LoadedProgram> program_;
};
/// The handle of an exported program, as LibTorch's modules have one.
class ExportedModel : public torch::nn::ModuleHolder<ExportedModelImpl> {
 public:
  using torch::nn::ModuleHolder<ExportedModelImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = ExportedModelImpl;
};

/// A plan for tensor parallelism as Hugging Face's models write it (`tp_plan`):
/// patterns of dotted module names, each with the name of a style.
///
///     {{"model.layers.*.self_attn.q_proj", "colwise"},
///      {"model.layers.*.self_attn.o_proj", "rowwise"},
///      {"lm_head", "colwise_gather_output"}}
///
/// Styles are "colwise", "colwise_gather_output", "rowwise",
/// "rowwise_split_input", "embedding_rowwise", "embedding_colwise",
/// "sequence_parallel", "replicated_with_grad_allreduce" (which is
/// SequenceParallel here: a layer that stays whole and works on slices),
/// "replicate", and the older "colwise_rep" and "rowwise_rep". Throws
/// ConfigError naming all others, such as those of experts.
[[nodiscard]] ACCELERATE_API ParallelizePlan
parse_tp_plan(const std::vector<std::pair<std::string, std::string>>& tp_plan);

/// Reads a program that Python wrote with accelerate_cpp_export.py, or with
/// torch.export.save(), of PyTorch 2.11 to 2.15. Nothing that is pickled is
/// read. Weights are mapped, so their pages are read when they are first used;
/// the file may be replaced meanwhile; their checksums are not verified, which
/// would read all of them. Throws Error if the file cannot be read,
/// CheckpointError if it is damaged, ConfigError listing everything in it that
/// is not supported.
[[nodiscard]] ACCELERATE_API ExportedModel load_exported(
    const std::filesystem::path& path,
    const ExportedOptions& options = {});

/// Describes a program without its weights; what is not supported is listed.
/// Throws as load_exported() does for files that it cannot read.
[[nodiscard]] ACCELERATE_API ExportedDescription inspect_exported(
    const std::filesystem::path& path,
    const ExportedOptions& options = {});

}  // namespace accelerate
