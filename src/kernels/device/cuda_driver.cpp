#include "kernels/device/cuda_driver.h"

#include <dlfcn.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Values of CUdevice_attribute.
constexpr int kMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

template <class Function>
void find_driver_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function != nullptr) return;
  throw Error(
      format("[kernels] CUDA's driver lacks the function \"{}\"", name));
}

void* open_driver() {
  if (void* const library = ::dlopen("libcuda.so.1", RTLD_NOW)) return library;
  throw Error(format(
      "[kernels] CUDA's driver, \"libcuda.so.1\", cannot be opened: {}",
      ::dlerror()));
}

}  // namespace

struct CudaDriver::Functions {
  explicit Functions(void* library) {
    find_driver_symbol(library, "cuInit", init);
    find_driver_symbol(library, "cuGetErrorString", error_string);
    find_driver_symbol(library, "cuDeviceGet", device);
    find_driver_symbol(library, "cuDeviceGetAttribute", attribute);
    find_driver_symbol(library, "cuDevicePrimaryCtxRetain", retain_context);
    find_driver_symbol(library, "cuCtxPushCurrent_v2", push_context);
    find_driver_symbol(library, "cuCtxPopCurrent_v2", pop_context);
    find_driver_symbol(library, "cuModuleLoadData", load);
    find_driver_symbol(library, "cuModuleGetFunction", find);
    find_driver_symbol(library, "cuLaunchKernel", launch);
    check(init(0), "start");
  }

  void check(int code, std::string_view what) const {
    if (code == 0) return;
    const char* text = nullptr;
    error_string(code, &text);
    throw Error(format(
        "[kernels] CUDA's driver failed to {}, with code {}: {}",
        what,
        code,
        text != nullptr ? text : "unknown"));
  }

  [[nodiscard]] int ordinal(int index) const {
    int found = 0;
    check(device(&found, index), "know the device");
    return found;
  }

  [[nodiscard]] int attribute_of(int index, int which) const {
    int value = 0;
    check(attribute(&value, which, ordinal(index)), "describe the device");
    return value;
  }

  int (*init)(unsigned);
  int (*error_string)(int, const char**);
  int (*device)(int*, int);
  int (*attribute)(int*, int, int);
  int (*retain_context)(void**, int);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*load)(void**, const void*);
  int (*find)(void**, void*, const char*);
  int (*launch)(
      void* function,
      unsigned grid_x,
      unsigned grid_y,
      unsigned grid_z,
      unsigned block_x,
      unsigned block_y,
      unsigned block_z,
      unsigned shared_bytes,
      void* stream,
      void** arguments,
      void** extra);
};

/// Makes LibTorch's context, the device's primary one, current on this thread.
class CudaDriver::ContextScope {
 public:
  ContextScope(const Functions& functions, int index) : functions_(functions) {
    // LibTorch never releases it either; retaining it again only increments a
    // count.
    void* context = nullptr;
    functions.check(
        functions.retain_context(&context, functions.ordinal(index)),
        "give the device's context");
    functions.check(functions.push_context(context), "use the context");
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    void* popped = nullptr;
    functions_.pop_context(&popped);
  }

 private:
  const Functions& functions_;
};

CudaDriver::CudaDriver() : functions_(new Functions(open_driver())) {}

int CudaDriver::capability(int index) const {
  return 10 * functions_->attribute_of(index, kCapabilityMajor) +
      functions_->attribute_of(index, kCapabilityMinor);
}

int CudaDriver::num_multiprocessors(int index) const {
  return functions_->attribute_of(index, kMultiprocessors);
}

CudaDriver::Module CudaDriver::load(int index, const std::string& program)
    const {
  const ContextScope scope(*functions_, index);
  Module module = nullptr;
  functions_->check(
      functions_->load(&module, program.c_str()), "load a program");
  return module;
}

CudaDriver::Function CudaDriver::find(Module module, const char* entry) const {
  Function function = nullptr;
  functions_->check(
      functions_->find(&function, module, entry),
      format("find the kernel \"{}\"", entry));
  return function;
}

void CudaDriver::launch(
    int index,
    Function function,
    std::uint32_t blocks,
    std::uint32_t threads,
    void* stream,
    void** arguments) const {
  const ContextScope scope(*functions_, index);
  functions_->check(
      functions_->launch(
          function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
      "start a kernel");
}

}  // namespace accelerate::detail
