#include "exported/load/weights.h"

#include <cstring>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/offload/file_mapping.h"
#include "exported/graph/dtypes.h"
#include "gate/gate_key.h"

namespace accelerate::detail {

class TensorLoader::Files {
 public:
  Files(const ExportedArchive& archive, const std::filesystem::path& path)
      : archive_(archive),
        path_(path),
        mapping_(FileMapping::open_protected(path)) {
    // Another program may have replaced the file since it was opened.
    if (mapping_ && mapping_->size() != archive.bytes().size())
      mapping_.reset();
  }

  // A byte tensor with the file's contents.
  at::Tensor contents(const ExportedTensor& tensor) {
    const std::span<const std::byte> bytes = *tensor.bytes;
    const auto offset =
        static_cast<std::uint64_t>(bytes.data() - archive_.bytes().data());
    const std::vector<std::int64_t> shape = {
        static_cast<std::int64_t>(bytes.size())};
    if (mapping_ && offset % alignof(std::max_align_t) == 0) {
      return mapping_->tensor(offset, at::kByte, shape);
    }
    // Entries of a zip may overlap.
    copied_ += bytes.size();
    if (copied_ > archive_.bytes().size()) {
      throw CheckpointError(format(
          "[exported] {} cannot be read: its files must not overlap",
          path_.string()));
    }
    at::Tensor copy = at::empty(shape, at::kByte);
    if (!bytes.empty()) {
      std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
    }
    return copy;
  }

 private:
  const ExportedArchive& archive_;
  std::filesystem::path path_;
  std::shared_ptr<FileMapping> mapping_;
  /// Bytes that could not be mapped.
  std::uint64_t copied_ = 0;
};

TensorLoader::TensorLoader(
    const ExportedArchive& archive,
    const std::filesystem::path& path)
    : files_(std::make_unique<Files>(archive, path)) {}

TensorLoader::~TensorLoader() = default;

LoadedTensors TensorLoader::load(
    const ExportedTensors& tensors,
    bool has_values) {
  const c10::InferenceMode training_tensors(false);
  // A FactoryScope would move them elsewhere before they have values.
  const c10::impl::ExcludeDispatchKeyGuard as_usual(kGateKey);
  LoadedTensors loaded;
  // Keyed by file and place in it: tied tensors are one tensor.
  using Place = std::tuple<
      std::string,
      ExportedDtype,
      std::vector<std::int64_t>,
      std::vector<std::int64_t>,
      std::int64_t,
      bool>;
  std::map<Place, at::Tensor> known;
  std::map<std::string, at::Tensor> contents;
  for (const auto& [name, tensor] : tensors) {
    at::Tensor& made = known[Place{
        tensor.file,
        tensor.dtype,
        tensor.sizes,
        tensor.strides,
        tensor.offset,
        tensor.requires_grad}];
    if (!made.defined()) {
      const auto options = at::TensorOptions().dtype(scalar_type(tensor.dtype));
      if (has_values && tensor.bytes) {
        at::Tensor& bytes = contents[tensor.file];
        if (!bytes.defined()) bytes = files_->contents(tensor);
        made = at::empty({0}, options)
                   .set_(
                       bytes.storage(),
                       tensor.offset,
                       tensor.sizes,
                       tensor.strides);
      } else {
        made = at::empty_strided(
            tensor.sizes, tensor.strides, options.device(at::kMeta));
      }
      made.set_requires_grad(tensor.requires_grad);
    }
    loaded.emplace(name, made);
  }
  return loaded;
}

}  // namespace accelerate::detail
