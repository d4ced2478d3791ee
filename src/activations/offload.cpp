#include <accelerate/activation_checkpointing.h>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "activations/host_copy.h"
#include "activations/saved_tensors.h"

namespace accelerate {

namespace detail {

class HostKeeper final : public SavedTensorKeeper {
 public:
  explicit HostKeeper(const SaveOnCpuOptions& options)
      : options_(options), scope_(*this) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Hooks>(options_);
  }

 private:
  class Hooks final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hooks(const SaveOnCpuOptions& options) : options_(options) {}

    void call_pack_hook(const at::Tensor& tensor) override {
      if (stays(tensor)) {
        kept_ = tensor.variable_data();
        version_ = tensor.unsafeGetTensorImpl()->version_counter();
        version_when_saved_ = tensor.is_inference() ? 0 : tensor._version();
        checks_version_ = !tensor.is_inference();
      } else {
        on_host_.emplace(tensor, options_.pin_memory);
      }
    }

    at::Tensor call_unpack_hook() override {
      if (on_host_) return on_host_->back();
      TORCH_CHECK(
          !checks_version_ || version_.current_version() == version_when_saved_,
          "one of the variables needed for gradient computation has been "
          "modified by an inplace operation: it was at version ",
          version_when_saved_,
          " when it was saved, and is at ",
          version_.current_version());
      return kept_;
    }

   private:
    [[nodiscard]] bool stays(const at::Tensor& tensor) const {
      const at::Tensor base =
          tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
      return tensor.is_cpu() || !HostCopy::is_possible(tensor) ||
          static_cast<std::int64_t>(tensor.nbytes()) < options_.min_bytes ||
          (base.is_leaf() && base.requires_grad());
    }

    SaveOnCpuOptions options_;
    at::Tensor kept_;
    c10::VariableVersion version_;
    std::uint32_t version_when_saved_ = 0;
    bool checks_version_ = false;
    std::optional<HostCopy> on_host_;
  };

  SaveOnCpuOptions options_;
  SavedTensorScope scope_;
};

}  // namespace detail

SaveOnCpu::SaveOnCpu(const SaveOnCpuOptions& options)
    : keeper_(std::make_unique<detail::HostKeeper>(options)) {}

SaveOnCpu::~SaveOnCpu() = default;

}  // namespace accelerate
