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

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void fail_to(const char* what, const std::filesystem::path& file) {
  const int error = errno;
  throw Error(format(
      "[files] cannot {} {}: {}", what, file.string(), std::strerror(error)));
}

}  // namespace

std::shared_ptr<FileMapping> FileMapping::open(
    const std::filesystem::path& file) {
  std::shared_ptr<FileMapping> mapping(new FileMapping(file));
  mapping->map();
  return mapping;
}

std::shared_ptr<FileMapping> FileMapping::open_protected(
    const std::filesystem::path& file) {
  std::shared_ptr<FileMapping> mapping(new FileMapping(file));
  return mapping->map_protected() ? mapping : nullptr;
}

FileMapping::FileMapping(std::filesystem::path file)
    : file_(std::move(file)), descriptor_(open_regular_file(file_, O_RDONLY)) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    ::close(descriptor_);
    fail_to("open", file_);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

// The mapping needs no open file.
void FileMapping::map() {
  if (size_ > 0) {
    void* const data = ::mmap(
        nullptr,
        size_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_NORESERVE,
        descriptor_,
        0);
    if (data == MAP_FAILED) fail_to("map", file_);
    data_ = static_cast<std::byte*>(data);
  }
  ::close(std::exchange(descriptor_, -1));
}

bool FileMapping::map_protected() {
  if (size_ == 0) return true;
  mappable_.emplace(descriptor_);
  const std::uint64_t promise = mappable_->protect();
  if (promise == 0) return false;
  bytes_ = mappable_->map(promise, 0, size_);
  if (bytes_ != nullptr) data_ = bytes_->data();
  return data_ != nullptr;
}

FileMapping::~FileMapping() {
  const bool is_protected = mappable_.has_value();
  bytes_.reset();
  mappable_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
  if (data_ != nullptr && !is_protected) ::munmap(data_, size_);
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
        "[big_model] {} has {} bytes, but a tensor of {} bytes should begin at "
        "byte {}: the file is incomplete",
        file_.string(),
        size_,
        num_bytes,
        offset));
  }
  return at::from_blob(
      data_ + offset, shape, [keep = shared_from_this()](void*) {}, options);
}

}  // namespace accelerate::detail
