#include <accelerate/save_on_disk.h>

#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/DimVector.h>

#include <accelerate/error.h>

#include "activations/host_copy.h"
#include "activations/kept_tensor.h"
#include "activations/saved_tensors.h"
#include "base/files/in_memory.h"
#include "base/text/text.h"
#include "gate/disk/disk_tensors.h"
#include "gate/gate.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace detail {

// A saved tensor's copy in the file.
class DiskCopy {
 public:
  DiskCopy(
      std::shared_ptr<DiskTensors> file,
      std::size_t number,
      const at::Tensor& tensor)
      : file_(std::move(file)),
        number_(number),
        sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        is_dense_(tensor.is_non_overlapping_and_dense()),
        options_(tensor.options().requires_grad(false)),
        on_disk_(file_->make({tensor.numel()}, tensor.dtype())) {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    const HeldTensors held({on_disk_}, DiskUse::replace);
    laid_out().copy_(tensor);
  }

  /// Place among those of a forward.
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] const at::Tensor& on_disk() const { return on_disk_; }

  [[nodiscard]] at::Tensor back() const {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    const HeldTensors held({on_disk_});
    return laid_out().to(options_, /*non_blocking=*/false, /*copy=*/true);
  }

 private:
  // The elements with the sizes and, if possible, the strides that were saved.
  [[nodiscard]] at::Tensor laid_out() const {
    return is_dense_ ? on_disk_.as_strided(sizes_, strides_)
                     : on_disk_.view(sizes_);
  }

  std::shared_ptr<DiskTensors> file_;
  std::size_t number_;
  c10::DimVector sizes_, strides_;
  bool is_dense_;
  at::TensorOptions options_;
  at::Tensor on_disk_;
};

// The copies that one scope made, in their order. Backward needs them in about
// the reverse order.
class DiskCopies {
 public:
  explicit DiskCopies(std::shared_ptr<DiskTensors> file)
      : file_(std::move(file)) {}

  [[nodiscard]] std::shared_ptr<DiskCopy> save(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    Known& known = known_[{
        tensor.storage().unsafeGetStorageImpl(),
        tensor.storage_offset(),
        tensor.is_inference() ? 0 : tensor._version(),
        tensor.scalar_type(),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.sizes().vec(),
        tensor.strides().vec()}];
    std::shared_ptr<DiskCopy> copy = known.copy.lock();
    // Another tensor may have the same memory by now.
    if (copy && !known.storage.expired()) return copy;
    copy = std::make_shared<DiskCopy>(file_, copies_.size(), tensor);
    copies_.push_back(copy);
    known = {copy, tensor.storage().getWeakStorageImpl()};
    return copy;
  }

  [[nodiscard]] at::Tensor back(const DiskCopy& copy) {
    std::vector<at::Tensor> next{copy.on_disk()};
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = copy.number(); i-- > 0 && next.size() <= kAhead;) {
        if (const auto before = copies_[i].lock())
          next.push_back(before->on_disk());
      }
    }
    begin_fetch(next);
    return copy.back();
  }

 private:
  using Key = std::tuple<
      const void*,
      std::int64_t,
      std::uint32_t,
      at::ScalarType,
      bool,
      bool,
      std::vector<std::int64_t>,
      std::vector<std::int64_t>>;
  struct Known {
    std::weak_ptr<DiskCopy> copy = {};
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{
        c10::intrusive_ptr<c10::StorageImpl>()};
  };
  static constexpr std::size_t kAhead = 8;

  std::mutex mutex_;
  std::shared_ptr<DiskTensors> file_;
  std::vector<std::weak_ptr<DiskCopy>> copies_;
  std::map<Key, Known> known_;
};

namespace {

bool stays(const at::Tensor& tensor, std::int64_t min_bytes) {
  return !HostCopy::is_possible(tensor) || tensor.numel() == 0 ||
      static_cast<std::int64_t>(tensor.nbytes()) < min_bytes ||
      keeper_of(tensor) != nullptr || is_of_parameter(tensor);
}

}  // namespace

class DiskKeeper final : public SavedTensorKeeper {
 public:
  DiskKeeper(std::shared_ptr<DiskTensors> file, std::int64_t min_bytes)
      : copies_(std::make_shared<DiskCopies>(std::move(file))),
        min_bytes_(min_bytes),
        scope_(*this) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Hooks>(copies_, min_bytes_);
  }

 private:
  class Hooks final : public torch::autograd::SavedVariableHooks {
   public:
    Hooks(std::shared_ptr<DiskCopies> copies, std::int64_t min_bytes)
        : copies_(std::move(copies)), min_bytes_(min_bytes) {}

    void call_pack_hook(const at::Tensor& tensor) override {
      if (stays(tensor, min_bytes_)) {
        kept_.emplace(tensor);
      } else {
        copy_ = copies_->save(tensor);
      }
    }

    at::Tensor call_unpack_hook() override {
      return copy_ ? copies_->back(*copy_) : kept_->get();
    }

   private:
    std::shared_ptr<DiskCopies> copies_;
    std::int64_t min_bytes_;
    std::optional<KeptTensor> kept_;
    std::shared_ptr<DiskCopy> copy_;
  };

  std::shared_ptr<DiskCopies> copies_;
  std::int64_t min_bytes_;
  SavedTensorScope scope_;
};

}  // namespace detail

SavedTensorFile::SavedTensorFile(const SavedTensorFileOptions& options)
    : min_bytes_(options.min_bytes) {
  if (!std::filesystem::is_directory(options.directory)) {
    throw ConfigError(detail::format(
        "[activations] {} must be a directory for what operators save, but is "
        "none",
        detail::printable(options.directory.string())));
  }
  if (!options.directory_in_memory && detail::is_in_memory(options.directory)) {
    throw ConfigError(detail::format(
        "[activations] {} must be on a disk, but is in memory (tmpfs), where "
        "files save nothing; name another directory, or set "
        "directory_in_memory to true",
        options.directory.string()));
  }
  tensors_ = std::make_shared<detail::DiskTensors>(detail::DiskTensors::Options{
      .directory = options.directory,
      .what = "what operators save for backward",
      .memory_bytes = options.buffer_bytes});
}

std::uint64_t SavedTensorFile::num_bytes() const {
  return tensors_->num_bytes();
}

SaveOnDisk::SaveOnDisk(const SavedTensorFile& file) {
  file.tensors_->forget_unused();
  keeper_ =
      std::make_unique<detail::DiskKeeper>(file.tensors_, file.min_bytes_);
}

SaveOnDisk::~SaveOnDisk() = default;

}  // namespace accelerate
