#include "track/profiler/operator_recorder.h"

#include <array>
#include <utility>

#include <execinfo.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/util.h>

#include <accelerate/error.h>

#include "track/profiler/call_stacks.h"
#include "track/profiler/check_profile.h"

namespace accelerate::detail {

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
        "[track] a profile was begun on a thread that another one records; end "
        "that first, with stop()");
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

}  // namespace accelerate::detail
