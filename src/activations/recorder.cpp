#include "activations/recorder.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "gate/biased_product.h"
#include "gate/first_of.h"
#include "gate/mode_keys.h"

namespace accelerate::detail {

namespace {

// Thread-local because a recording covers its own thread's operators; the
// dispatch key that intercepts them is also included per thread.
thread_local Recording* current = nullptr;

// Products whose bias is not added are recorded before what uses them.
void settle_products(
    const c10::OperatorHandle& operation,
    const torch::jit::Stack& stack) {
  const std::size_t count = operation.schema().arguments().size();
  first_of(torch::jit::last(stack, count), [](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined())
      BiasedProduct::settle(value.toTensor(), /*adds_bias=*/false);
    return false;
  });
}

void record(
    const c10::OperatorHandle& operation,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  settle_products(operation, *stack);
  // Operators called by this one are recomputed with it, so they are not
  // recorded.
  const c10::impl::ExcludeDispatchKeyGuard exclude(kRecordingKey);
  const c10::DispatchKeySet below = keys &
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey);
  if (current != nullptr) {
    current->run(operation, below, stack);
  } else {
    operation.redispatchBoxed(below, stack);
  }
}

// A process can have only one fallback per dispatch key.
void register_fallback() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kRecordingKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
    return made;
  }();
}

}  // namespace

Recording::Recording(
    const Segments& segments,
    const CheckpointOptions& options,
    std::shared_ptr<ComparedOperators> compared)
    : segments_(&segments), options_(options), compared_(std::move(compared)) {
  begin();
}

Recording::Recording(
    std::string name,
    const CheckpointOptions& options,
    std::shared_ptr<ComparedOperators> compared)
    : options_(options), compared_(std::move(compared)) {
  begin();
  if (scope_)
    tape_ = std::make_shared<Tape>(std::move(name), options_, compared_);
}

void Recording::begin() {
  if (!at::GradMode::is_enabled()) return;
  if (current != nullptr && current->tape_) return;
  register_fallback();
  enclosing_ = std::exchange(current, this);
  include_.emplace(kRecordingKey);
  scope_.emplace(*this);
}

Recording::~Recording() {
  if (!scope_) return;
  if (tape_) tape_->close();
  scope_.reset();
  include_.reset();
  current = enclosing_;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recording::make_hooks() {
  return tape_ ? tape_->make_hooks() : nullptr;
}

void Recording::enter(c10::ArrayRef<c10::IValue> arguments) {
  first_of(arguments, [&](const c10::IValue& value) {
    if (!value.isTensor()) return false;
    const auto found =
        segments_->segment_of.find(value.toTensor().unsafeGetTensorImpl());
    if (found == segments_->segment_of.end() || found->second == segment_)
      return false;
    segment_ = found->second;
    if (tape_) tape_->close();
    tape_.reset();
    if (segment_ != Segments::kUnrecorded && at::GradMode::is_enabled()) {
      tape_ = std::make_shared<Tape>(
          segments_->names[segment_], options_, compared_);
    }
    return false;
  });
}

void Recording::became(const at::Tensor& placeholder, const at::Tensor& value) {
  // This recording may be inside another, in which case it does nothing.
  if (current != nullptr && current->tape_)
    current->tape_->rename(value, placeholder);
}

void Recording::run(
    const c10::OperatorHandle& operation,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const std::size_t count = operation.schema().arguments().size();
  if (segments_ != nullptr) enter(torch::jit::last(*stack, count));
  const std::shared_ptr<Tape> tape = tape_;
  const bool is_recorded = tape && tape->begin(operation, *stack);
  try {
    operation.redispatchBoxed(keys, stack);
  } catch (...) {
    if (is_recorded) tape->cancel();
    throw;
  }
  if (is_recorded) tape->end(*stack);
}

}  // namespace accelerate::detail
