#include "big_model/offload/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

std::shared_ptr<FileMapping> FileMapping::open(
    const std::filesystem::path& file) {
  return std::shared_ptr<FileMapping>(new FileMapping(file));
}

FileMapping::FileMapping(std::filesystem::path file) : file_(std::move(file)) {
  const auto fail = [&](const char* what) {
    throw Error(format(
        "[files] cannot {} {}: {}",
        what,
        file_.string(),
        std::strerror(errno)));
  };
  const int descriptor = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("open");
  struct stat status {};
  const bool is_known = ::fstat(descriptor, &status) == 0;
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (is_known && size_ > 0) {
    data_ = ::mmap(
        nullptr,
        size_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_NORESERVE,
        descriptor,
        0);
  }
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (!is_known || data_ == MAP_FAILED) {
    data_ = nullptr;
    fail("map");
  }
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

at::Tensor FileMapping::tensor(
    std::uint64_t offset,
    c10::ScalarType dtype,
    const std::vector<std::int64_t>& shape) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  std::uint64_t num_bytes = c10::elementSize(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(
            num_bytes, static_cast<std::uint64_t>(size), &num_bytes)) {
      num_bytes = ~std::uint64_t{0};
      break;
    }
  }
  if (num_bytes == 0) return at::empty(shape, options);
  if (offset > size_ || num_bytes > size_ - offset) {
    throw CheckpointError(format(
        "[big_model] {} has {} bytes, and a tensor of {} bytes should begin at "
        "byte {}: the file is not complete",
        file_.string(),
        size_,
        num_bytes,
        offset));
  }
  return at::from_blob(
      static_cast<std::byte*>(data_) + offset,
      shape,
      [keep = shared_from_this()](void*) {},
      options);
}

}  // namespace accelerate::detail
