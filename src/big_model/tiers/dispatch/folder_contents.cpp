#include "big_model/tiers/dispatch/folder_contents.h"

#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

std::vector<std::string> other_in(
    const std::filesystem::path& folder,
    const std::vector<ValueInMemory>& values) {
  const OffloadFolder there = read_offload_folder(folder);
  std::vector<std::string> others;
  for (const auto& [names, value, may_be_converted] : values) {
    for (const std::string& name : names) {
      const OffloadedWeight* const entry = there.index.find(name);
      const auto record = there.records.find(name);
      if (entry == nullptr || record == there.records.end()) continue;
      const bool is_alike =
          parse_torch_dtype(entry->dtype) == value.scalar_type() &&
          value.sizes() == at::IntArrayRef(entry->shape);
      const bool is_other = is_alike
          ? offload_record_of(to_write(name, value)) != record->second
          : !may_be_converted;
      if (is_other) others.push_back(name);
      break;
    }
  }
  return others;
}

}  // namespace accelerate::detail
