#include "gate/parallel_ranges.h"

#include <memory>

#include <ATen/TensorIterator.h>
#include <ATen/ops/from_blob.h>

namespace accelerate::detail {

// LibTorch's own loops over elements call at::parallel_for() where it is
// parallel. Here they iterate over bytes that are never read or written; their
// addresses encode the range.
void for_parallel_ranges(
    std::int64_t count,
    std::int64_t grain,
    c10::function_ref<void(std::int64_t begin, std::int64_t end)> function) {
  if (count <= 0) return;
  const std::unique_ptr<char[]> bytes(
      new char[static_cast<std::size_t>(count)]);
  const at::Tensor places =
      at::from_blob(bytes.get(), {count}, at::TensorOptions().dtype(at::kByte));
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(places)
                                    .build();
  iterator.for_each(
      [&](char** data,
          const std::int64_t* strides,
          std::int64_t size,
          std::int64_t num_lines) {
        for (std::int64_t line = 0; line < num_lines; ++line) {
          const std::int64_t begin = *data + line * strides[1] - bytes.get();
          function(begin, begin + size);
        }
      },
      grain);
}

}  // namespace accelerate::detail
