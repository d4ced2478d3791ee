#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>
#include <accelerate/model_device_map.h>

#include "base/files/direct_reader.h"
#include "base/text/text.h"
#include "big_model/model/synchronize.h"

namespace accelerate {

namespace {

using detail::synchronize;

// Seconds of the fastest of several calls; the first is not measured.
double fastest_seconds(const std::function<void()>& call) {
  constexpr int kCalls = 5;
  double fastest = 0;
  for (int i = 0; i <= kCalls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - begin;
    if (i == 1 || (i > 1 && taken.count() < fastest)) fastest = taken.count();
  }
  return std::max(fastest, 1e-9);
}

// A file that is removed at the end.
class ScratchFile {
 public:
  ScratchFile(const std::filesystem::path& folder, std::size_t num_bytes)
      : path_((folder / "speed.XXXXXX").string()) {
    const int made = ::mkstemp(path_.data());
    if (made < 0) fail();
    const std::string piece(std::size_t{1} << 20U, 'w');
    bool is_written = true;
    for (std::size_t done = 0; is_written && done < num_bytes;) {
      const auto wrote =
          ::write(made, piece.data(), std::min(piece.size(), num_bytes - done));
      is_written = wrote > 0;
      done += static_cast<std::size_t>(std::max<ssize_t>(wrote, 0));
    }
    is_written = is_written && ::fsync(made) == 0 &&
        ::posix_fadvise(made, 0, 0, POSIX_FADV_DONTNEED) == 0;
    ::close(made);
    if (is_written) return;
    ::unlink(path_.c_str());
    fail();
  }
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  [[nodiscard]] const char* path() const { return path_.c_str(); }

 private:
  [[noreturn]] void fail() const {
    throw Error(detail::format(
        "[big_model] cannot write {} to measure the disk's speed; name a "
        "folder with 64 MB of free space",
        path_));
  }

  std::string path_;
};

double disk_speed(const std::filesystem::path& folder) {
  constexpr std::size_t kBytes = std::size_t{64} << 20U;
  const ScratchFile scratch(folder, kBytes);
  detail::DirectReader::File file;
  file.plain = ::open(scratch.path(), O_RDONLY | O_CLOEXEC);
  file.direct = ::open(scratch.path(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (file.direct >= 0) {
    file.memory_alignment = detail::direct_memory_alignment(file.direct);
  } else {
    // Without direct reads (tmpfs before Linux 6.6), the speed of the cache is
    // measured.
    file.direct = ::dup(file.plain);
  }
  detail::DirectReader reader;
  int result = 0;
  const auto begin = std::chrono::steady_clock::now();
  if (file.plain >= 0)
    result = reader.read(file, 0, kBytes, nullptr, [](auto&&...) {});
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  const bool is_read = file.plain >= 0 && result == 0;
  for (const int open : {file.plain, file.direct})
    if (open >= 0) ::close(open);
  if (!is_read)
    throw Error(detail::format("[big_model] cannot read {}", scratch.path()));
  return static_cast<double>(kBytes) / taken.count();
}

}  // namespace

MachineSpeeds measure_speeds(const std::filesystem::path& folder) {
  constexpr std::int64_t kSide = 1024;
  constexpr std::int64_t kElements = std::int64_t{16} << 20U;
  const at::NoGradGuard no_grad;
  const auto kind = at::accelerator::getAccelerator(/*checked=*/false);
  const bool has_device = kind && at::accelerator::deviceCount() > 0;
  const c10::Device device = has_device ? c10::Device(*kind, 0) : c10::kCPU;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);

  MachineSpeeds speeds;
  const at::Tensor factor = at::ones({kSide, kSide}, options);
  const double product = fastest_seconds([&] {
    const at::Tensor result = at::mm(factor, factor);
    synchronize(device);
  });
  speeds.flops_per_second =
      2.0 * static_cast<double>(kSide * kSide * kSide) / product;
  const at::Tensor memory = at::ones({kElements}, options);
  const double bytes = 4.0 * static_cast<double>(kElements);
  const double sum = fastest_seconds([&] {
    const at::Tensor result = memory.sum();
    synchronize(device);
  });
  speeds.memory_bytes_per_second = bytes / sum;
  if (has_device) {
    const at::Tensor host =
        at::ones({kElements}, options.device(c10::kCPU).pinned_memory(true));
    at::Tensor target = memory;
    const double copy = fastest_seconds([&] {
      target.copy_(host, /*non_blocking=*/true);
      synchronize(device);
    });
    speeds.link_bytes_per_second = bytes / copy;
  }
  if (!folder.empty()) speeds.disk_bytes_per_second = disk_speed(folder);
  return speeds;
}

}  // namespace accelerate
