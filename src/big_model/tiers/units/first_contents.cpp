#include "big_model/tiers/units/first_contents.h"

#include "checkpoint/tensors/tensor_bytes.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

bool FirstContents::matches(
    const at::Tensor& value,
    const Versions& before,
    const Versions& after,
    bool was_written_to) {
  const bool is_one_version = before == after;
  const std::lock_guard lock(mutex_);
  if (checksum_ && is_one_version && compared_ == before) return true;
  const std::uint64_t checksum = checksum_of(bytes_of(value));
  if (checksum_ ? checksum != *checksum_ : was_written_to) return false;
  checksum_ = checksum;
  compared_ = is_one_version ? std::optional(before) : std::nullopt;
  return true;
}

bool FirstContents::was_compared(const Versions& versions) const {
  const std::lock_guard lock(mutex_);
  return checksum_ && compared_ == versions;
}

}  // namespace accelerate::detail
