#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accelerate/exported_model.h>

namespace accelerate {

struct PackageOptions {
  /// The model within the package; Python calls its one "model".
  std::string model = "model";
  /// Where it runs; of the type for which it was compiled. Unset: that type's
  /// current device.
  std::optional<at::Device> device = std::nullopt;
  /// Number of forwards that run at once, called by as many threads; further
  /// ones wait. Each has memory of its own, but weights are shared. Raise it to
  /// the number of threads that call forward().
  std::size_t num_runners = 1;
};

namespace detail {
class LoadedPackage;
}

/// A model that Python compiled, as a module. Its weights are inside the
/// compiled code, so it has no parameters, cannot be trained, and moves to no
/// other device. forward() may be called by several threads at once.
class ACCELERATE_API PackagedModelImpl : public torch::nn::Module {
 public:
  PackagedModelImpl(
      const std::string& class_name,
      std::unique_ptr<detail::LoadedPackage> package);
  ~PackagedModelImpl() override;

  /// Runs the model, without gradients. Inputs are the tensors among the
  /// arguments of Python's forward, in this order, on device(). Throws
  /// ConfigError for other inputs: their number, dtypes or sizes, if
  /// compile_for_cpp() made the package. For other packages, LibTorch checks
  /// only the number, and wrong sizes read memory out of bounds.
  ExportedOutputs forward(std::vector<at::Tensor> inputs);
  template <class... Inputs>
    requires(
        sizeof...(Inputs) > 0 &&
        (std::convertible_to<Inputs, at::Tensor> && ...))
  ExportedOutputs forward(const Inputs&... inputs) {
    return forward(std::vector<at::Tensor>{inputs...});
  }
  /// Runs the model with inputs by name. Throws ConfigError if the names are
  /// not input_names().
  ExportedOutputs forward(const ExportedInputs& inputs);

  /// Replaces the weights by others with Python's names, converted to the dtype
  /// and device of the package: those of load_state_dict(), or of
  /// Accelerator::get_state_dict(). For a tied tensor, one of its names is
  /// enough. Throws a single CheckpointError with all names that are missing or
  /// unknown, and all shapes that differ; then nothing was replaced. Must not
  /// run beside a forward.
  void load_weights(const std::map<std::string, at::Tensor>& weights);
  void load_weights(
      const std::vector<std::pair<std::string, at::Tensor>>& weights) {
    load_weights(
        std::map<std::string, at::Tensor>(weights.begin(), weights.end()));
  }

  /// Names as in ExportedModelImpl; empty if compile_for_cpp() did not make the
  /// package.
  [[nodiscard]] const std::vector<std::string>& input_names() const;
  /// Names of the results, as in ExportedModelImpl.
  [[nodiscard]] const std::vector<std::string>& output_names() const;
  /// The device for which the model was compiled.
  [[nodiscard]] at::Device device() const;

  /// Throws ConfigError, unless the model is already on that device.
  void to(at::Device device, at::ScalarType dtype, bool non_blocking = false)
      override;
  void to(at::ScalarType dtype, bool non_blocking = false) override;
  void to(at::Device device, bool non_blocking = false) override;

 private:
  std::unique_ptr<detail::LoadedPackage> package_;
};
/// The handle of a compiled model, as LibTorch's modules have one.
class PackagedModel : public torch::nn::ModuleHolder<PackagedModelImpl> {
 public:
  using torch::nn::ModuleHolder<PackagedModelImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = PackagedModelImpl;
};

/// Loads a package of AOTInductor, which Python wrote with compile_for_cpp() or
/// with torch._inductor.aoti_compile_and_package(). **This executes machine
/// code from the file**: load only what you would run as a program. The code is
/// written to a temporary directory while it is loaded. Throws Error if the
/// file cannot be read, CheckpointError if it is damaged or no package,
/// ConfigError for a device of another type than the package's, or inputs other
/// than tensors.
[[nodiscard]] ACCELERATE_API PackagedModel load_package(
    const std::filesystem::path& path,
    const PackageOptions& options = {});

}  // namespace accelerate
