#include "support/pretend_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "support/pretend_stream.h"

namespace accelerate::testing {

namespace {

constexpr int kDevices = 2;

using Clock = std::chrono::steady_clock;
using Stream = std::pair<c10::DeviceIndex, c10::StreamId>;

// What is queued on a stream. Work is counted from 1.
struct Queue {
  std::deque<std::function<void()>> work;
  std::int64_t num_queued = 0;
  std::int64_t num_done = 0;
  // The thread that runs some of it now.
  std::thread::id runner = {};
  PretendStream handle = {};
};

// State that the devices share. One per process, like LibTorch's registries,
// and never destroyed: queued work may hold pinned memory to the end.
struct Machine {
  std::mutex mutex;
  std::condition_variable progress;
  std::map<Stream, Queue> queues;
  std::map<const void*, Stream> allocated;
  std::map<const void*, std::size_t> sizes;
  std::int64_t bytes[kDevices] = {}, peak_bytes[kDevices] = {};
  std::set<const void*> pinned;
  c10::StreamId next_stream = 1;
  PretendCounts counts;
  std::map<Stream, std::int64_t> pinned_copies;
  PretendSpeeds speeds;
  Clock::time_point link_is_free;

  // When a copy queued now will be done. Must be called with `mutex` held.
  Clock::time_point end_of_copy(std::size_t num_bytes) {
    const Clock::time_point now = Clock::now();
    if (speeds.link_bytes_per_second <= 0) return now;
    link_is_free =
        std::max(link_is_free, now) +
        std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(
                static_cast<double>(num_bytes) / speeds.link_bytes_per_second));
    return link_is_free;
  }

  // Must be called with `mutex` held.
  void enqueue(const Stream& stream, std::function<void()> work) {
    Queue& queue = queues[stream];
    queue.work.push_back(std::move(work));
    ++queue.num_queued;
  }

  // Must be called with `mutex` held.
  bool is_idle(const Stream& stream) {
    const Queue& queue = queues[stream];
    return queue.num_done == queue.num_queued;
  }

  void note_host_wait();

  std::int64_t num_queued(const Stream& stream) {
    const std::lock_guard lock(mutex);
    return queues[stream].num_queued;
  }
  bool is_done(const Stream& stream, std::int64_t number) {
    const std::lock_guard lock(mutex);
    return queues[stream].num_done >= number;
  }

  // Runs the work up to `number`, or waits until another thread has, unless this
  // thread is in the midst of it. Streams that wait for each other are run by
  // several threads, so none may hold one while it waits for another.
  void run(const Stream& stream, std::int64_t number) {
    std::unique_lock lock(mutex);
    Queue& queue = queues[stream];
    while (queue.num_done < number) {
      if (queue.runner == std::this_thread::get_id()) return;
      if (queue.runner != std::thread::id()) {
        progress.wait(lock);
        continue;
      }
      queue.runner = std::this_thread::get_id();
      std::function<void()> work = std::move(queue.work.front());
      queue.work.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      work = nullptr;
      lock.lock();
      queue.runner = {};
      ++queue.num_done;
      progress.notify_all();
      if (failure) std::rethrow_exception(failure);
    }
  }
  void run(const Stream& stream) { run(stream, num_queued(stream)); }
};

Machine& machine() {
  static auto* const machine = new Machine();
  return *machine;
}

std::atomic<PretendCapture*> current_capture = nullptr;
// True while this thread computes an operator, whose copies are its own.
thread_local bool is_computing = false;
// The same, outside of captures.
thread_local bool is_in_operator = false;

thread_local std::int64_t host_waits = 0;

void Machine::note_host_wait() {
  if (is_in_operator) return;
  ++host_waits;
  const std::lock_guard lock(mutex);
  ++counts.host_waits;
}

PretendCapture* capture_of_thread() {
  return is_computing ? nullptr : current_capture.load();
}
[[noreturn]] void refuse_in_capture() {
  TORCH_CHECK(
      false, "CUDA error: operation not permitted when stream is capturing");
}

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kDevices] = {};

Stream current_stream(c10::DeviceIndex device) {
  return {device, current_streams[device]};
}

// Gives memory back in the order of the stream that was current when it was
// allocated, as CUDA's allocator does.
class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    // Makes values that are read too early visibly wrong.
    constexpr int kGarbage = 0xa5;
    void* const data = std::malloc(size + 1);
    std::memset(data, kGarbage, size + 1);
    const std::lock_guard lock(machine().mutex);
    machine().allocated[data] = current_stream(current_device);
    machine().sizes[data] = size;
    std::int64_t& bytes = machine().bytes[current_device];
    bytes += static_cast<std::int64_t>(size);
    std::int64_t& peak = machine().peak_bytes[current_device];
    peak = std::max(peak, bytes);
    return {
        data, data, &release, c10::Device(c10::kPrivateUse1, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  static void release(void* data) {
    const std::lock_guard lock(machine().mutex);
    const auto found = machine().allocated.extract(data);
    if (found) {
      machine().bytes[found.mapped().first] -=
          static_cast<std::int64_t>(machine().sizes.extract(data).mapped());
    }
    if (!found || machine().is_idle(found.mapped())) return std::free(data);
    machine().enqueue(found.mapped(), [data] { std::free(data); });
  }
};
Memory memory;

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    void* const data = std::malloc(size + 1);
    const std::lock_guard lock(machine().mutex);
    machine().pinned.insert(data);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }

 private:
  static void release(void* data) {
    const std::lock_guard lock(machine().mutex);
    machine().pinned.erase(data);
    std::free(data);
  }
};
PinnedMemory pinned_memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {
        c10::kPrivateUse1,
        std::exchange(current_device, with_index(device).index())};
  }
  c10::Device getDevice() const override {
    return {c10::kPrivateUse1, current_device};
  }
  void setDevice(c10::Device device) const override {
    current_device = with_index(device).index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = with_index(device).index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static c10::Device with_index(c10::Device device) {
    return {
        c10::kPrivateUse1,
        device.has_index() ? device.index() : current_device};
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device which = with_index(device);
    return c10::Stream(
        c10::Stream::UNSAFE, which, current_streams[which.index()]);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const std::lock_guard lock(machine().mutex);
    return c10::Stream(
        c10::Stream::UNSAFE, with_index(device), machine().next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }

  // An event is the work that was queued when it was recorded.
  struct Event {
    Stream stream;
    std::int64_t number = 0;
  };
  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex,
      const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    const Stream which{stream.device_index(), stream.id()};
    *static_cast<Event*>(*event) = {which, machine().num_queued(which)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Event found = *static_cast<Event*>(event);
    const std::lock_guard lock(machine().mutex);
    ++machine().counts.waits;
    machine().enqueue({stream.device_index(), stream.id()}, [found] {
      machine().run(found.stream, found.number);
    });
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    machine().note_host_wait();
    const Event& found = *static_cast<Event*>(event);
    machine().run(found.stream, found.number);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Event& found = *static_cast<Event*>(event);
    return machine().is_done(found.stream, found.number);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    const Stream which{stream.device_index(), stream.id()};
    const std::lock_guard lock(machine().mutex);
    PretendStream& handle = machine().queues[which].handle;
    handle.device = which.first;
    handle.id = which.second;
    static constexpr auto stream_of = [](const PretendStream* of) {
      return Stream(static_cast<c10::DeviceIndex>(of->device), of->id);
    };
    handle.run = [](const PretendStream* of) { machine().run(stream_of(of)); };
    handle.enqueue = [](const PretendStream* of,
                        void (*work)(void*),
                        void* argument) {
      const std::lock_guard queuing(machine().mutex);
      machine().enqueue(stream_of(of), [work, argument] { work(argument); });
    };
    return &handle;
  }
  void destroyEvent(void* event, const c10::DeviceIndex)
      const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&)
      const override {
    const std::lock_guard lock(machine().mutex);
    ++machine().counts.recorded;
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  // The generator that operators draw from, since the host computes.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_device = index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index < 0 ? current_device : index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(machine().mutex);
    return machine().pinned.contains(data);
  }
};

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  // The deleter keeps `tensor` alive as long as the alias.
  at::Tensor alias = at::from_blob(
      tensor.data_ptr(),
      tensor.sizes(),
      tensor.strides(),
      [tensor](void*) {},
      tensor.options().device(at::kCPU));
  if (tensor.is_conj()) alias = alias.conj();
  return tensor.is_neg() ? alias._neg_view() : alias;
}

at::Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      sizes,
      &memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::kFloat),
      format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      sizes,
      strides,
      &memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::kFloat));
}

at::Tensor
copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (PretendCapture* const capture = capture_of_thread()) {
    if (from.is_cpu() || to.is_cpu()) refuse_in_capture();
    capture->copy(from, to);
    return to;
  }
  const c10::DeviceIndex device =
      to.is_cpu() ? from.get_device() : to.get_device();
  const Stream stream = current_stream(device);
  // As CUDA's copies, those between devices follow the streams of both.
  if (!from.is_cpu() && !to.is_cpu() && from.get_device() != device)
    machine().run(current_stream(from.get_device()));
  const auto copy = [source = on_host(from), target = on_host(to)] {
    target.copy_(source);
  };
  if (!non_blocking || (to.is_cpu() && !to.is_pinned())) {
    if (from.is_cpu() || to.is_cpu()) machine().note_host_wait();
    machine().run(stream);
    copy();
    return to;
  }
  const bool is_pinned = to.is_cpu() || (from.is_cpu() && from.is_pinned());
  const std::lock_guard lock(machine().mutex);
  machine().enqueue(stream, [copy, end = machine().end_of_copy(to.nbytes())] {
    copy();
    std::this_thread::sleep_until(end);
  });
  if (is_pinned) ++machine().pinned_copies[stream];
  if (stream.second != 0) {
    ++machine().counts.side_copies;
    machine().counts.pinned_copies += is_pinned ? 1 : 0;
  }
  return to;
}

// How long a product of two matrices takes; 0 for other operators.
double seconds_of(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  const double speed = [] {
    const std::lock_guard lock(machine().mutex);
    return machine().speeds.flops_per_second;
  }();
  const std::string& name = op.operator_name().name;
  const bool adds = name == "aten::addmm";
  if (speed <= 0 || (!adds && name != "aten::mm")) return 0;
  const auto arguments =
      torch::jit::last(stack, op.schema().arguments().size());
  const at::Tensor& left = arguments[adds ? 1 : 0].toTensor();
  const at::Tensor& right = arguments[adds ? 2 : 1].toTensor();
  return 2.0 * static_cast<double>(left.numel()) *
      static_cast<double>(right.size(1)) / speed;
}

// CUDA's operators also accept a tensor's indices on the host.
bool takes_indices(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put_" ||
      name == "aten::_index_put_impl_";
}

// Whether CUDA's host waits to learn the sizes or the value of the result.
bool waits_for_values(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  static const std::set<std::string> names{
      "aten::bincount",
      "aten::equal",
      "aten::masked_select",
      "aten::nonzero",
      "aten::_unique2",
      "aten::unique_consecutive",
      "aten::unique_dim"};
  const std::string& name = op.operator_name().name;
  if (names.contains(name)) return true;
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(stack, arguments.size());
  if (name == "aten::repeat_interleave")
    return values.front().isTensor() && values.back().isNone();
  if (!takes_indices(name)) return false;
  return std::ranges::any_of(values[1].toListRef(), [](const auto& index) {
    return index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool ||
         index.toTensor().scalar_type() == at::kByte);
  });
}

// The device of an operator's tensors. Refuses what CUDA refuses: tensors on
// several devices, except for scalars on the host.
std::optional<c10::Device> common_device(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(stack, arguments.size());
  std::optional<c10::Device> found;
  const auto look_at = [&](const c10::IValue& value, bool may_be_on_host) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_cpu() && (may_be_on_host || tensor.dim() == 0)) return;
    TORCH_CHECK(
        found.value_or(tensor.device()) == tensor.device(),
        op.operator_name(),
        ": Expected all tensors to be on the same device, but found at least "
        "two devices, ",
        found->str(),
        " and ",
        tensor.device().str(),
        "!");
    found = tensor.device();
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool may_be_on_host = arguments[i].name() == "batch_sizes" ||
        (arguments[i].name() == "indices" &&
         takes_indices(op.operator_name().name));
    if (!values[i].isList()) {
      look_at(values[i], may_be_on_host);
      continue;
    }
    for (const c10::IValue& item : values[i].toListRef())
      look_at(item, may_be_on_host);
  }
  return found;
}

// On the host, of which the program's observers see nothing.
template <class Body>
auto compute_on_host(Body&& body) {
  const at::DisableRecordFunctionGuard unobserved;
  const std::shared_ptr<void> end(
      nullptr, [was = std::exchange(is_in_operator, true)](void*) {
        is_in_operator = was;
      });
  return body();
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // It changes its running means and variances, though its schema does not say
  // so.
  if (op.operator_name().name == "aten::native_batch_norm") {
    for (const std::size_t argument : {3, 4}) {
      c10::IValue& value =
          (*stack)[stack->size() - op.schema().arguments().size() + argument];
      if (value.isTensor() && value.toTensor().defined())
        value = on_host(value.toTensor());
    }
  }
  compute_on_host([&] { at::native::cpu_fallback(op, stack); });
}

// Convolutions, which LibTorch leaves to devices of extensions.
at::Tensor convolve(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    at::SymIntArrayRef stride,
    at::SymIntArrayRef padding,
    at::SymIntArrayRef dilation,
    bool transposed,
    at::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  machine().run(current_stream(input.get_device()));
  return compute_on_host([&] {
    const bool has_bias = bias && bias->defined();
    return at::convolution_symint(
               on_host(input),
               on_host(weight),
               has_bias ? std::optional(on_host(*bias)) : std::nullopt,
               stride,
               padding,
               dilation,
               transposed,
               output_padding,
               std::move(groups))
        .to(input.device());
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::SymIntArrayRef stride,
    at::SymIntArrayRef padding,
    at::SymIntArrayRef dilation,
    bool transposed,
    at::SymIntArrayRef output_padding,
    c10::SymInt groups,
    std::array<bool, 3> wanted) {
  machine().run(current_stream(input.get_device()));
  return compute_on_host([&] {
    const std::vector<c10::SymInt> bias_sizes{
        weight.sym_size(transposed ? 1 : 0)};
    auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
        on_host(gradient),
        on_host(input),
        on_host(weight),
        at::OptionalSymIntArrayRef(bias_sizes),
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        std::move(groups),
        wanted);
    const auto back = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(input.device()) : tensor;
    };
    return std::tuple(back(of_input), back(of_weight), back(of_bias));
  });
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (PretendCapture* const capture = capture_of_thread()) {
    capture->run(op, stack);
    return;
  }
  const auto device = common_device(op, *stack);
  if (waits_for_values(op, *stack)) machine().note_host_wait();
  machine().run(current_stream(device ? device->index() : current_device));
  const Clock::time_point start = Clock::now();
  const double seconds = seconds_of(op, *stack);
  compute(op, stack);
  if (seconds > 0) {
    std::this_thread::sleep_until(
        start +
        std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(seconds)));
  }
}

// Called when the device is first requested, since LibTorch does not accept the
// name earlier.
void register_device() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &memory);
  c10::register_privateuse1_backend(pretend_device_name());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl(
      "_copy_from_and_resize",
      [](const at::Tensor& from, const at::Tensor& to) {
        if (from.sizes() != to.sizes()) {
          const at::Tensor room = at::empty(from.sizes(), to.options());
          to.unsafeGetTensorImpl()->set_storage_keep_dtype(room.storage());
          to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
        }
        return copy_from(from, to, false);
      });
  library.impl("_local_scalar_dense", [](const at::Tensor& tensor) {
    if (capture_of_thread() != nullptr) refuse_in_capture();
    machine().note_host_wait();
    machine().run(current_stream(tensor.get_device()));
    return on_host(tensor).item();
  });
  library.impl("convolution_overrideable", &convolve);
  library.impl("convolution_backward_overrideable", &convolve_backward);
  library.impl(
      "set_.source_Storage_storage_offset",
      [](at::Tensor& tensor,
         c10::Storage storage,
         std::int64_t offset,
         at::IntArrayRef sizes,
         at::IntArrayRef strides) -> at::Tensor& {
        return at::native::set_storage_cpu_(
            tensor, std::move(storage), offset, sizes, strides);
      });
  library.impl("view_as_real", [](const at::Tensor& tensor) {
    return at::native::view_as_real(tensor);
  });
  library.impl("view_as_complex", [](const at::Tensor& tensor) {
    return at::native::view_as_complex(tensor);
  });
  library.impl("unfold", &at::native::unfold);
  library.impl("view", [](const at::Tensor& tensor, at::IntArrayRef sizes) {
    return at::native::view(tensor, sizes);
  });
  library.impl(
      "as_strided",
      [](const at::Tensor& tensor,
         at::IntArrayRef sizes,
         at::IntArrayRef strides,
         std::optional<std::int64_t> offset) {
        return at::native::as_strided_tensorimpl(
            tensor, sizes, strides, offset);
      });
  library.impl(
      "_reshape_alias",
      [](const at::Tensor& tensor,
         at::IntArrayRef sizes,
         at::IntArrayRef strides) {
        return at::native::_reshape_alias(tensor, sizes, strides);
      });
}
// LibTorch's fallbacks would call themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

std::string pretend_device_name() {
  const char* const name = std::getenv("ACCELERATE_TEST_DEVICE_NAME");
  return name == nullptr ? "pretend" : name;
}

at::Device pretend_device(int index) {
  static std::once_flag once;
  std::call_once(once, register_device);
  return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

void set_pretend_speeds(const PretendSpeeds& speeds) {
  const std::lock_guard lock(machine().mutex);
  machine().speeds = speeds;
}

void set_pretend_capture(PretendCapture* capture) { current_capture = capture; }

void run_on_pretend_device(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  is_computing = true;
  const std::shared_ptr<void> end(nullptr, [](void*) { is_computing = false; });
  compute(op, stack);
}

std::int64_t take_peak_of_pretend_memory(int device) {
  const std::lock_guard lock(machine().mutex);
  return std::exchange(machine().peak_bytes[device], machine().bytes[device]);
}

std::int64_t pretend_host_waits() { return host_waits; }

std::int64_t pretend_pinned_copies(const c10::Stream& stream) {
  const std::lock_guard lock(machine().mutex);
  return machine().pinned_copies[{stream.device_index(), stream.id()}];
}

PretendCounts pretend_counts() {
  const std::lock_guard lock(machine().mutex);
  return machine().counts;
}

}  // namespace accelerate::testing
