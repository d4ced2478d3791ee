#include "kernels/device/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <memory>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Program = void*;

template <class Function>
void find_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function != nullptr) return;
  throw Error(format(
      "[kernels] the run-time compiler lacks the function \"{}\": {}",
      name,
      ::dlerror()));
}

void* open_first(const std::vector<std::string>& names) {
  for (const int how : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const std::string& name : names)
      if (void* const library = ::dlopen(name.c_str(), how)) return library;
  }
  const char* const reason = ::dlerror();
  std::string tried;
  for (const std::string& name : names)
    tried += (tried.empty() ? "\"" : ", \"") + name + "\"";
  throw Error(format(
      "[kernels] NVIDIA's run-time compiler must be one of {}, but none can be "
      "opened: {}",
      tried,
      reason != nullptr ? reason : "no name was given"));
}

}  // namespace

struct Nvrtc::Functions {
  explicit Functions(void* library) {
    find_symbol(library, "nvrtcVersion", version);
    find_symbol(library, "nvrtcGetErrorString", error_string);
    find_symbol(library, "nvrtcCreateProgram", create);
    find_symbol(library, "nvrtcDestroyProgram", destroy);
    find_symbol(library, "nvrtcCompileProgram", compile);
    find_symbol(library, "nvrtcGetProgramLogSize", log_size);
    find_symbol(library, "nvrtcGetProgramLog", log);
    find_symbol(library, "nvrtcGetCUBINSize", cubin_size);
    find_symbol(library, "nvrtcGetCUBIN", cubin);
    find_symbol(library, "nvrtcGetPTXSize", ptx_size);
    find_symbol(library, "nvrtcGetPTX", ptx);
    find_symbol(library, "nvrtcGetNumSupportedArchs", num_architectures);
    find_symbol(library, "nvrtcGetSupportedArchs", architectures);
  }

  void check(int code, std::string_view what) const {
    if (code == 0) return;
    throw Error(format(
        "[kernels] the run-time compiler failed to {}: {}",
        what,
        error_string(code)));
  }

  // Reads a text or binary through a pair of functions.
  std::string read(
      Program program,
      int (*size_of)(Program, std::size_t*),
      int (*get)(Program, char*)) const {
    std::size_t size = 0;
    check(size_of(program, &size), "say how large its result is");
    std::string bytes(size, '\0');
    if (size > 0) check(get(program, bytes.data()), "return its result");
    return bytes;
  }

  [[nodiscard]] std::vector<int> known_architectures() const {
    int count = 0;
    check(num_architectures(&count), "say which devices it knows");
    std::vector<int> found(static_cast<std::size_t>(count));
    if (count > 0)
      check(architectures(found.data()), "say which devices it knows");
    return found;
  }

  int (*version)(int*, int*);
  const char* (*error_string)(int);
  int (*create)(
      Program*,
      const char* source,
      const char* name,
      int num_headers,
      const char* const* headers,
      const char* const* names);
  int (*destroy)(Program*);
  int (*compile)(Program, int num_options, const char* const* options);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, std::size_t*);
  int (*ptx)(Program, char*);
  int (*num_architectures)(int*);
  int (*architectures)(int*);
};

std::vector<std::string> Nvrtc::default_names() {
  return {
      "libnvrtc.so.13",
      "libnvrtc.so.12",
      "libnvrtc.so",
      "/usr/local/cuda/lib64/libnvrtc.so"};
}

Nvrtc::Nvrtc(const std::vector<std::string>& names)
    : functions_(new Functions(open_first(names))) {}

std::string Nvrtc::version() const {
  int major = 0;
  int minor = 0;
  functions_->check(functions_->version(&major, &minor), "say its version");
  return format("{}.{}", major, minor);
}

std::string Nvrtc::compile(const KernelProgram& program, int capability) const {
  const std::vector<int> known = functions_->known_architectures();
  int newest = 0;
  for (const int each : known)
    if (each <= capability) newest = std::max(newest, each);
  if (newest == 0) {
    throw Error(format(
        "[kernels] the run-time compiler {} must support devices of compute "
        "capability {}.{} or older ones, but supports none",
        version(),
        capability / 10,
        capability % 10));
  }
  const bool is_exact = newest == capability;
  std::vector<std::string> options{
      format("--gpu-architecture={}_{}", is_exact ? "sm" : "compute", newest),
      "--std=c++17",
      // Files contain functions that only some programs call.
      "--diag-suppress=177"};
  for (const std::string& definition : program.definitions)
    options.push_back("-D" + definition);
  std::vector<const char*> texts;
  for (const std::string& option : options) texts.push_back(option.c_str());

  const std::string source = kernel_source(program.source);
  const std::string name = format("{}.cu", program.source);
  Program made = nullptr;
  functions_->check(
      functions_->create(
          &made, source.c_str(), name.c_str(), 0, nullptr, nullptr),
      "take a program");
  const auto destroy = [this](Program* each) { functions_->destroy(each); };
  const std::unique_ptr<Program, std::function<void(Program*)>> owner(
      &made, destroy);
  const int code =
      functions_->compile(made, static_cast<int>(texts.size()), texts.data());
  if (code != 0) {
    throw Error(format(
        "[kernels] {} did not compile for compute capability {}.{}: {}:\n{}",
        program.text(),
        newest / 10,
        newest % 10,
        functions_->error_string(code),
        functions_->read(made, functions_->log_size, functions_->log)));
  }
  return is_exact
      ? functions_->read(made, functions_->cubin_size, functions_->cubin)
      : functions_->read(made, functions_->ptx_size, functions_->ptx);
}

}  // namespace accelerate::detail
