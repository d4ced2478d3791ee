#include <accelerate/activation_checkpointing.h>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "activations/host_copy.h"
#include "activations/kept_tensor.h"
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
        kept_.emplace(tensor);
      } else {
        on_host_.emplace(tensor, options_.pin_memory);
      }
    }

    at::Tensor call_unpack_hook() override {
      return on_host_ ? on_host_->back() : kept_->get();
    }

   private:
    [[nodiscard]] bool stays(const at::Tensor& tensor) const {
      return tensor.is_cpu() || !HostCopy::is_possible(tensor) ||
          static_cast<std::int64_t>(tensor.nbytes()) < options_.min_bytes ||
          is_of_parameter(tensor);
    }

    SaveOnCpuOptions options_;
    std::optional<KeptTensor> kept_;
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
