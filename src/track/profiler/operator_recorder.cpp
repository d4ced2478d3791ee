#include "track/profiler/operator_recorder.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/Type.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include <torch/csrc/profiler/util.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "track/profiler/device_recorder.h"

namespace accelerate::detail {

namespace {

// The library of an address, and its function if that is exported.
struct Place {
  std::string library;
  std::uintptr_t offset = 0;
  std::string function;
};

Place place_of(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  Place place;
  place.library = std::filesystem::path(info.dli_fname).filename();
  place.offset = reinterpret_cast<std::uintptr_t>(address) -
      reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  if (info.dli_sname != nullptr) place.function = c10::demangle(info.dli_sname);
  return place;
}

bool is_of_program(const Place& place) {
  constexpr std::array<std::string_view, 9> kOthers{
      "libtorch",
      "libc10",
      "libaccelerate",
      "libc.so",
      "libc-",
      "libstdc++",
      "libgomp",
      "ld-linux",
      "libpthread"};
  return !place.library.empty() &&
      std::ranges::none_of(kOthers, [&](std::string_view other) {
        return place.library.starts_with(other);
      });
}

// True for functions that programs contain from headers and static libraries.
bool is_inlined(std::string_view function) {
  constexpr std::array<std::string_view, 7> kOthers{
      "at::",
      "c10::",
      "torch::",
      "std::",
      "accelerate::detail::",
      "decltype(auto) accelerate::",
      "__gnu_cxx::"};
  return function == "_start" ||
      std::ranges::any_of(kOthers, [&](std::string_view other) {
           return function.starts_with(other);
         });
}

std::string hexadecimal_offset(std::uintptr_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

std::string describe(const torch::unwind::Frame& frame, const Place& place) {
  const bool has_name = !frame.funcname.empty() && frame.funcname != "??";
  const std::string name = has_name ? frame.funcname
      : !place.function.empty()
      ? place.function
      : format("{}+{}", place.library, hexadecimal_offset(place.offset));
  // Without debug information some versions of LibTorch give the library and
  // the function's offset there.
  const bool has_line = frame.lineno > 0 && !frame.filename.empty() &&
      frame.filename != "??" &&
      std::filesystem::path(frame.filename).filename() != place.library;
  return has_line ? format("{}({}): {}", frame.filename, frame.lineno, name)
                  : name;
}

std::vector<torch::unwind::Frame> symbolize(const std::vector<void*>& all) {
  try {
    return torch::unwind::symbolize(all, torch::unwind::Mode::fast);
  } catch (const std::exception&) {
    // Not available on this kind of processor, or for these debug sections.
    return {};
  }
}

// The return addresses of the functions under way, the innermost first.
std::vector<void*> addresses_here() {
  constexpr int kMost = 128;
  std::array<void*, kMost> addresses{};
  const int count = ::backtrace(addresses.data(), kMost);
  // Not braces, which would make a list of two pointers.
  return std::vector<void*>(addresses.begin(), addresses.begin() + count);
}

// Names for the addresses in the events' stacks: "file.cpp(12): name" where
// debug information tells, else "name" as far as it is exported, else
// "program+0x1234". Leaves out addresses inside LibTorch, this library and the
// system's libraries.
std::unordered_map<void*, std::string> describe_stacks(
    const std::vector<RecordedEvent>& events) {
  std::unordered_map<void*, Place> places;
  std::vector<void*> addresses;
  for (const RecordedEvent& event : events) {
    for (void* const address : event.stack) {
      const auto [found, is_new] = places.try_emplace(address);
      if (!is_new) continue;
      found->second = place_of(address);
      if (is_of_program(found->second)) addresses.push_back(address);
    }
  }
  std::vector<torch::unwind::Frame> frames = symbolize(addresses);
  frames.resize(addresses.size());
  std::unordered_map<void*, std::string> functions;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Place& place = places.at(addresses[i]);
    if (is_inlined(frames[i].funcname) || is_inlined(place.function)) continue;
    functions.emplace(addresses[i], describe(frames[i], place));
  }
  return functions;
}

}  // namespace

NativeThread native_thread_here() {
  thread_local const NativeThread here{
      .pthread = static_cast<std::uint32_t>(
          reinterpret_cast<std::uintptr_t>(::pthread_self())),
      .system = static_cast<std::uint32_t>(::syscall(SYS_gettid))};
  return here;
}

namespace {

using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// A constant of LibTorch in some versions, an object in others.
const auto& kState = c10::DebugInfoKind::PROFILER_STATE;

void append_numbers(std::string& text, at::IntArrayRef numbers) {
  text += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  text += ']';
}

void append_shape(std::string& text, const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined() &&
      !value.toTensor().is_nested()) {
    return append_numbers(text, value.toTensor().sizes());
  }
  if (!value.isTensorList()) {
    text += "[]";
    return;
  }
  text += '[';
  bool is_first = true;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    if (!std::exchange(is_first, false)) text += ", ";
    append_shape(text, tensor);
  }
  text += ']';
}

// "[[2, 3], [], [[4], [5]]]": one entry per argument, empty for what is no
// tensor.
std::string shapes_of(c10::ArrayRef<const c10::IValue> inputs) {
  std::string text = "[";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i > 0) text += ", ";
    append_shape(text, inputs[i]);
  }
  return text + "]";
}

}  // namespace

struct OperatorRecorder::OpenEvent final : at::ObserverContext {
  explicit OpenEvent(std::shared_ptr<OperatorRecorder> to)
      : recorder(std::move(to)) {}

  // A message may end long after the profile.
  std::shared_ptr<OperatorRecorder> recorder;
  RecordedEvent event;
};

OperatorRecorder::OperatorRecorder(
    ProfileOptions options,
    std::shared_ptr<const ParameterOwners> owners)
    // Disabled, so that LibTorch does not take this for a profiler of its own.
    : ProfilerStateBase(ProfilerConfig(
          ProfilerState::Disabled,
          options.record_shapes,
          options.profile_memory)),
      options_(std::move(options)),
      owners_(std::move(owners)) {}

OperatorRecorder* OperatorRecorder::of_this_thread() {
  // LibTorch keeps its own profilers in the same place.
  return dynamic_cast<OperatorRecorder*>(
      c10::ThreadLocalDebugInfo::get(kState));
}

void OperatorRecorder::start() {
  if (of_this_thread() != nullptr) {
    throw ConfigError(
        "[track] only one profile can record a thread, but another one records "
        "it; end that first, with stop()");
  }
  c10::ThreadLocalDebugInfo::_push(kState, shared_from_this());
  is_running_ = true;
  begin_ns_ = profile_now();
  if (!records(options_, ProfilerActivity::cpu)) return;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_begin, &on_end)
          .needsInputs(
              options_.record_shapes || options_.with_flops ||
              options_.with_modules)
          .scopes(
              {at::RecordScope::FUNCTION,
               at::RecordScope::BACKWARD_FUNCTION,
               at::RecordScope::TORCHSCRIPT_FUNCTION,
               at::RecordScope::USER_SCOPE}));
  begin_ns_ = profile_now();
}

void OperatorRecorder::clear() {
  const std::scoped_lock lock(mutex_);
  begin_ns_ = profile_now();
  events_.clear();
  memory_.clear();
}

void OperatorRecorder::stop() noexcept {
  if (!std::exchange(is_running_, false)) return;
  end_ns_ = profile_now();
  if (callback_) at::removeCallback(*std::exchange(callback_, std::nullopt));
  if (of_this_thread() != this) return;
  try {
    c10::ThreadLocalDebugInfo::_pop(kState);
  } catch (const c10::Error&) {
    // Something else was pushed meanwhile, and will pop this with it.
  }
}

RecordedCycle OperatorRecorder::take() {
  RecordedCycle cycle;
  {
    const std::scoped_lock lock(mutex_);
    cycle.begin_ns = begin_ns_;
    cycle.end_ns = end_ns_;
    cycle.events = std::exchange(events_, {});
    cycle.memory = std::exchange(memory_, {});
  }
  // Events that were under way when the recording began.
  std::erase_if(cycle.events, [&](const RecordedEvent& event) {
    return event.begin_ns < cycle.begin_ns;
  });
  cycle.nodes = nest_events(cycle.events, cycle.memory);
  if (options_.with_stack) cycle.functions = describe_stacks(cycle.events);
  return cycle;
}

void OperatorRecorder::add_here(RecordedEvent event) {
  event.thread = at::RecordFunction::currentThreadId();
  event.native = native_thread_here();
  const std::scoped_lock lock(mutex_);
  events_.push_back(std::move(event));
}

std::string OperatorRecorder::owner_among(
    c10::ArrayRef<const c10::IValue> inputs) const {
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor()) continue;
    const auto found = owners_->find(input.toTensor().unsafeGetTensorImpl());
    if (found != owners_->end()) return found->second;
  }
  return {};
}

std::unique_ptr<at::ObserverContext> OperatorRecorder::on_begin(
    const at::RecordFunction& function) {
  OperatorRecorder* const recorder = of_this_thread();
  if (recorder == nullptr) return nullptr;
  const ProfileOptions& options = recorder->options_;
  auto open = std::make_unique<OpenEvent>(recorder->shared_from_this());
  RecordedEvent& event = open->event;
  event.name = function.name();
  event.kind = function.scope() == at::RecordScope::USER_SCOPE
      ? EventKind::user_range
      : EventKind::op;
  event.is_async = function.isAsync();
  event.thread = function.threadId();
  event.native = native_thread_here();
  event.sequence = function.seqNr();
  event.forward_thread = function.forwardThreadId();
  if (options.record_shapes) event.input_shapes = shapes_of(function.inputs());
  if (options.with_flops) {
    event.flops = static_cast<std::int64_t>(torch::profiler::impl::computeFlops(
        event.name, torch::profiler::impl::saveExtraArgs(function)));
  }
  if (options.with_modules)
    event.module = recorder->owner_among(function.inputs());
  if (options.with_stack) event.stack = addresses_here();
  event.begin_ns = profile_now();
  return open;
}

void OperatorRecorder::on_end(
    const at::RecordFunction&,
    at::ObserverContext* context) {
  const std::int64_t now = profile_now();
  auto* const open = static_cast<OpenEvent*>(context);
  if (open == nullptr) return;
  open->event.end_ns = now;
  OperatorRecorder& recorder = *open->recorder;
  const std::scoped_lock lock(recorder.mutex_);
  recorder.events_.push_back(std::move(open->event));
}

void OperatorRecorder::reportMemoryUsage(
    void* address,
    std::int64_t bytes,
    std::size_t total_allocated,
    std::size_t total_reserved,
    c10::Device device) {
  const RecordedMemory change{
      .thread = at::RecordFunction::currentThreadId(),
      .time_ns = profile_now(),
      .address = address,
      .bytes = bytes,
      .total_allocated = static_cast<std::int64_t>(total_allocated),
      .total_reserved = static_cast<std::int64_t>(total_reserved),
      .device_type = static_cast<int>(device.type()),
      .device_index = device.index()};
  const std::scoped_lock lock(mutex_);
  memory_.push_back(change);
}

bool records(const ProfileOptions& options, ProfilerActivity activity) {
  return !options.activities ||
      std::ranges::find(*options.activities, activity) !=
      options.activities->end();
}

void check_profile(const ProfileOptions& options) {
  if (options.schedule_option)
    (void)profiler_action(*options.schedule_option, 0);
  if (!options.activities || !records(options, ProfilerActivity::cuda) ||
      DeviceRecorder::has_device()) {
    return;
  }
  throw ConfigError(
      "[track] a profile has the activity \"cuda\", but this process has no "
      "CUDA device, or has not loaded LibTorch's CUDA library; valid "
      "activities: \"cpu\"");
}

}  // namespace accelerate::detail
