#include "gate/disk/aligned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/files/scratch_file.h"
#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::detail {

at::Tensor AlignedMemory::make(std::uint64_t bytes) const {
  const auto size = static_cast<std::int64_t>(bytes);
  if (!device_.is_cpu()) {
    // Pinned memory begins at a page.
    return at::empty(
        {size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
  constexpr std::size_t kHugePage = std::size_t{2} << 20U;
  void* memory = nullptr;
  const std::size_t alignment =
      bytes >= kHugePage ? kHugePage : ScratchFile::kAlignment;
  if (::posix_memalign(&memory, alignment, bytes) != 0) {
    throw Error(format(
        "[gate] there must be {} of memory for a tensor that lies in a file, "
        "but there is less",
        format_size(static_cast<double>(bytes))));
  }
  if (bytes >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
  return at::from_blob(
      memory,
      {size},
      [](void* address) { std::free(address); },
      at::TensorOptions().dtype(at::kByte));
}

at::Tensor AlignedMemory::take(std::uint64_t bytes) {
  const std::uint64_t size = ScratchFile::rounded(bytes);
  at::Tensor block;
  if (const auto found = free_.find(size); found != free_.end()) {
    block = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
  } else {
    drop_free_blocks(most_bytes_ - std::min(most_bytes_, size));
    block = make(size);
    bytes_ += size;
  }
  bytes_in_use_ += size;
  most_in_use_ = std::max(most_in_use_, bytes_in_use_);
  return block;
}

void AlignedMemory::give(at::Tensor block) {
  const auto size = static_cast<std::uint64_t>(block.nbytes());
  bytes_in_use_ -= size;
  // Another handle keeps it.
  if (block.use_count() > 1 || block.storage().use_count() > 1) {
    bytes_ -= size;
    return;
  }
  free_[size].push_back(std::move(block));
  drop_free_blocks(most_bytes_);
}

void AlignedMemory::drop_free_blocks(std::uint64_t limit) {
  while (bytes_ > limit && !free_.empty()) {
    // The largest, so that few are dropped.
    const auto last = std::prev(free_.end());
    bytes_ -= last->first;
    last->second.pop_back();
    if (last->second.empty()) free_.erase(last);
  }
}

}  // namespace accelerate::detail
