#include "train/capture/device_graph.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <exception>

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define ACCELERATE_HAS_GRAPH_REGISTRY
#endif

namespace accelerate::detail {

namespace {

#ifdef ACCELERATE_HAS_GRAPH_REGISTRY
// The graph that at::accelerator::Graph wraps, for a device that need not be
// current.
class RegisteredGraph final : public DeviceGraph {
 public:
  explicit RegisteredGraph(c10::DeviceType type)
      : graph_(at::create_graph_impl(type)) {}
  ~RegisteredGraph() override { RegisteredGraph::reset(); }

  // Other threads (the loaders' workers) may continue to allocate pinned
  // memory.
  void begin(c10::MempoolId_t pool) override {
    graph_->capture_begin(pool, at::GraphCaptureMode::ThreadLocal);
    is_open_ = true;
  }
  void end() override {
    is_open_ = false;
    graph_->capture_end();
  }
  void replay() override { graph_->replay(); }
  void reset() noexcept override {
    try {
      if (is_open_) end();
    } catch (const std::exception&) {
      // The recording is being discarded.
    }
    try {
      graph_->reset();
    } catch (const std::exception&) {
      // The next operator reports that the device has failed.
    }
  }
  c10::MempoolId_t pool() override { return graph_->pool(); }

 private:
  std::unique_ptr<at::GraphImplInterface> graph_;
  bool is_open_ = false;
};
#endif

// The functions of at::cuda::CUDAGraph (LibTorch 2.11), whose header needs
// CUDA's.
struct CudaGraphFunctions {
  using Graph = void*;
  void (*construct)(Graph, bool keep_graph) = nullptr;
  void (*destroy)(Graph) = nullptr;
  void (*begin)(Graph, c10::MempoolId_t, int mode) = nullptr;
  void (*end)(Graph) = nullptr;
  void (*replay)(Graph) = nullptr;
  void (*reset)(Graph) = nullptr;
  c10::MempoolId_t (*pool)(Graph) = nullptr;
};

template <class Function>
bool find_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

// Null if no CUDA library is loaded, or one without these functions.
const CudaGraphFunctions* cuda_graph_functions() {
  static const auto found = []() -> std::unique_ptr<CudaGraphFunctions> {
    void* const library = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    auto functions = std::make_unique<CudaGraphFunctions>();
    CudaGraphFunctions& f = *functions;
    const bool has_all =
        find_symbol(library, "_ZN2at4cuda9CUDAGraphC1Eb", f.construct) &&
        find_symbol(library, "_ZN2at4cuda9CUDAGraphD1Ev", f.destroy) &&
        find_symbol(
            library,
            "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE"
            "21cudaStreamCaptureMode",
            f.begin) &&
        find_symbol(library, "_ZN2at4cuda9CUDAGraph11capture_endEv", f.end) &&
        find_symbol(library, "_ZN2at4cuda9CUDAGraph6replayEv", f.replay) &&
        find_symbol(library, "_ZN2at4cuda9CUDAGraph5resetEv", f.reset) &&
        find_symbol(library, "_ZN2at4cuda9CUDAGraph4poolEv", f.pool);
    return has_all ? std::move(functions) : nullptr;
  }();
  return found.get();
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(const CudaGraphFunctions& functions) : f_(functions) {
    f_.construct(memory_.data(), /*keep_graph=*/false);
  }
  ~CudaGraph() override {
    CudaGraph::reset();
    f_.destroy(memory_.data());
  }

  void begin(c10::MempoolId_t pool) override {
    // cudaStreamCaptureModeThreadLocal: other threads (the loaders' workers)
    // may continue to allocate pinned memory.
    constexpr int kThreadLocal = 1;
    f_.begin(memory_.data(), pool, kThreadLocal);
    is_open_ = true;
  }
  void end() override {
    is_open_ = false;
    f_.end(memory_.data());
  }
  void replay() override { f_.replay(memory_.data()); }
  void reset() noexcept override {
    try {
      if (is_open_) end();
    } catch (const std::exception&) {
      // The recording is being discarded.
    }
    try {
      f_.reset(memory_.data());
    } catch (const std::exception&) {
      // The next operator reports that the device has failed.
    }
  }
  c10::MempoolId_t pool() override { return f_.pool(memory_.data()); }

 private:
  // The object takes less than 250 bytes.
  static constexpr std::size_t kBytes = 2048;

  const CudaGraphFunctions& f_;
  alignas(std::max_align_t) std::array<std::byte, kBytes> memory_{};
  bool is_open_ = false;
};

}  // namespace

MakeGraph graphs_of(c10::Device device) {
#ifdef ACCELERATE_HAS_GRAPH_REGISTRY
  if (at::has_graph_impl(device.type())) {
    return [type = device.type()] {
      return std::make_unique<RegisteredGraph>(type);
    };
  }
#endif
  if (!device.is_cuda()) return nullptr;
  const CudaGraphFunctions* const functions = cuda_graph_functions();
  if (functions == nullptr) return nullptr;
  return [functions] { return std::make_unique<CudaGraph>(*functions); };
}

}  // namespace accelerate::detail
