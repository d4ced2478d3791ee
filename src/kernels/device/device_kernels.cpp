#include "kernels/device/device_kernels.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "config/user_variables.h"
#include "kernels/device/cuda_driver.h"
#include "kernels/device/nvrtc.h"
#include "kernels/device/program_cache.h"

namespace accelerate::detail {

namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::int64_t kMostBlocks = (1LL << 31U) - 1;
// Blocks per multiprocessor of kernels that take further pieces themselves.
constexpr std::int64_t kBlocksAtOnce = 8;

/// The kernels that the process has compiled and loaded, and the reason for
/// missing ones.
class LoadedKernels {
 public:
  // Lives as long as the process: its kernels may still be running.
  static LoadedKernels& of_process() {
    static auto* const loaded = new LoadedKernels();
    return *loaded;
  }

  const DeviceKernel*
  find(c10::Device device, const KernelProgram& program, const char* entry) {
    const std::lock_guard lock(mutex_);
    std::string key = format(
        "{} {} {}", static_cast<int>(device.index()), program.source, entry);
    for (const std::string& definition : program.definitions)
      key += ' ' + definition;
    const auto found = kernels_.find(key);
    if (found != kernels_.end()) return found->second.get();
    return kernels_.emplace(std::move(key), load(device, program, entry))
        .first->second.get();
  }

  std::string problem() {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

  void note(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (problem_.empty()) problem_ = reason;
  }

  const CudaDriver& driver() { return *driver_; }

  std::int64_t num_multiprocessors(c10::Device device) {
    const std::lock_guard lock(mutex_);
    auto& count = multiprocessors_[device.index()];
    if (count == 0) count = driver_->num_multiprocessors(device.index());
    return count;
  }

 private:
  std::unique_ptr<DeviceKernel>
  load(c10::Device device, const KernelProgram& program, const char* entry) {
    try {
      auto kernel = std::make_unique<DeviceKernel>();
      kernel->device = device;
      kernel->function = driver_of().find(module_of(device, program), entry);
      return kernel;
    } catch (const Error& error) {
      if (problem_.empty()) problem_ = error.what();
      return nullptr;
    }
  }

  CudaDriver::Module module_of(
      c10::Device device,
      const KernelProgram& program) {
    const std::string name =
        format("{} {}", static_cast<int>(device.index()), program.text());
    const auto found = modules_.find(name);
    if (found != modules_.end()) return found->second;
    const int capability = driver_of().capability(device.index());
    const CudaDriver::Module module =
        driver_of().load(device.index(), compiled(program, capability));
    return modules_.emplace(name, module).first->second;
  }

  std::string compiled(const KernelProgram& program, int capability) {
    const Nvrtc& compiler = compiler_of();
    const auto compile = [&] { return compiler.compile(program, capability); };
    const auto directory = cache_directory(Environment::current());
    if (!directory) return compile();
    return ProgramCache(*directory / "kernels")
        .get(program_key(program, capability, compiler.version()), compile);
  }

  const CudaDriver& driver_of() { return tried(driver_, driver_problem_); }
  const Nvrtc& compiler_of() { return tried(compiler_, compiler_problem_); }

  // Makes the object at the first call; later calls rethrow its error.
  template <class Made>
  const Made& tried(std::optional<Made>& made, std::string& problem) {
    if (!problem.empty()) throw Error(problem);
    if (!made) {
      try {
        made.emplace();
      } catch (const Error& error) {
        problem = error.what();
        throw;
      }
    }
    return *made;
  }

  std::mutex mutex_;
  std::optional<CudaDriver> driver_;
  std::optional<Nvrtc> compiler_;
  std::string driver_problem_;
  std::string compiler_problem_;
  std::string problem_;
  std::map<std::string, CudaDriver::Module> modules_;
  std::map<std::string, std::unique_ptr<DeviceKernel>> kernels_;
  std::map<int, std::int64_t> multiprocessors_;
};

// Thread-local, since other threads compute as usual while a test emulates.
thread_local const EmulatedKernels::Find* emulated_kernels = nullptr;

}  // namespace

EmulatedKernels::EmulatedKernels(Find find) : find_(std::move(find)) {
  emulated_kernels = &find_;
}

EmulatedKernels::~EmulatedKernels() { emulated_kernels = nullptr; }

bool may_have_kernels(c10::Device device) {
  return device.is_cuda() || (device.is_cpu() && emulated_kernels != nullptr);
}

std::string program_key(
    const KernelProgram& program,
    int capability,
    std::string_view compiler) {
  return format(
      "{} capability {} nvrtc {} source {}",
      program.text(),
      capability,
      compiler,
      hash_text(kernel_source(program.source)));
}

void DeviceKernel::launch_with(std::int64_t blocks, void** arguments) const {
  if (blocks < 1 || blocks > kMostBlocks) {
    throw InternalError(format(
        "[kernels] a kernel must have 1 to {} blocks, but has {}",
        kMostBlocks,
        blocks));
  }
  if (emulation) return emulation(blocks, arguments);
  const c10::impl::VirtualGuardImpl guard(device.type());
  LoadedKernels::of_process().driver().launch(
      device.index(),
      function,
      static_cast<std::uint32_t>(blocks),
      kThreads,
      guard.getStream(device).native_handle(),
      arguments);
}

const DeviceKernel* find_kernel(
    c10::Device device,
    const KernelProgram& program,
    const char* entry) {
  if (!may_have_kernels(device)) return nullptr;
  if (device.is_cpu()) return (*emulated_kernels)(program, entry);
  return LoadedKernels::of_process().find(device, program, entry);
}

std::string missing_kernels() { return LoadedKernels::of_process().problem(); }

void note_missing_kernels(const std::string& reason) {
  LoadedKernels::of_process().note(reason);
}

bool has_plain_memory(const at::Tensor& tensor) {
  // DeferredInit is the gate's key.
  return !tensor.key_set().has_any(c10::DispatchKeySet(
      {c10::DispatchKey::DeferredInit,
       c10::DispatchKey::Python,
       c10::DispatchKey::Functionalize,
       c10::DispatchKey::Conjugate,
       c10::DispatchKey::Negative,
       c10::DispatchKey::ZeroTensor}));
}

std::int64_t num_blocks_for(c10::Device device, std::int64_t most) {
  // Few enough that blocks take several pieces.
  if (device.is_cpu()) return std::clamp<std::int64_t>(most, 1, 3);
  const std::int64_t busy =
      kBlocksAtOnce * LoadedKernels::of_process().num_multiprocessors(device);
  return std::clamp<std::int64_t>(most, 1, busy);
}

const char* kernel_value(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "Float32";
    case at::kBFloat16:
      return "BFloat16";
    case at::kHalf:
      return "Float16";
    default:
      return nullptr;
  }
}

}  // namespace accelerate::detail
