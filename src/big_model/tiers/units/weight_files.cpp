#include "big_model/tiers/units/weight_files.h"

namespace accelerate::detail {

std::uint64_t stored_bytes(const OffloadedTensor& tensor) {
  if (tensor.source.stored == nullptr) return 0;
  const StoredTensor& stored = *tensor.source.stored;
  return safetensors::bytes_of(stored.dtype, stored.shape).value_or(0);
}

FirstContents::Versions versions_of(const OffloadedTensor& tensor) {
  FirstContents::Versions versions;
  for_each_file(tensor, [&](const InputFile& file) {
    versions.push_back(file.version_now());
  });
  return versions;
}

}  // namespace accelerate::detail
