#include "train/plan/record_step.h"

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cpu/Utils.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/precision.h>

#include "base/text/text.h"
#include "train/memory/counted_allocations.h"
#include "train/plan/fit_traces.h"

namespace accelerate::detail {

namespace {

// Not 1: kernels and modules treat a single sample differently.
constexpr std::int64_t kFewestSamples = 2;
// Kernels choose other algorithms for very few samples.
constexpr std::int64_t kMostSamples = 16;

/// Events of one run, with the sizes of that run as fixed_bytes.
class EventList final : public AllocationListener {
 public:
  void allocated(const void* memory, std::size_t num_bytes) override {
    places_[memory] = trace_.num_allocations;
    add(
        {.kind = TraceEvent::Kind::allocate,
         .index = trace_.num_allocations++,
         .fixed_bytes = static_cast<double>(num_bytes)});
  }
  void released(const void* memory) override {
    const auto found = places_.find(memory);
    if (found == places_.end()) return;
    add({.kind = TraceEvent::Kind::release, .index = found->second});
    places_.erase(found);
  }
  /// Adds a kernel's own memory while it runs; returns its index for end_own().
  std::size_t begin_own(std::size_t num_bytes) {
    const std::size_t index = trace_.num_allocations++;
    add(
        {.kind = TraceEvent::Kind::allocate,
         .index = index,
         .fixed_bytes = static_cast<double>(num_bytes),
         .is_kernels_own = true});
    return index;
  }
  void end_own(std::size_t index) {
    add(
        {.kind = TraceEvent::Kind::release,
         .index = index,
         .is_kernels_own = true});
  }
  void begin_operator(std::string_view name) {
    last_operator_ = std::hash<std::string_view>()(name);
  }
  void add(TraceEvent event) {
    event.last_operator = last_operator_;
    const bool is_repeated = event.kind == TraceEvent::Kind::read &&
        !trace_.events.empty() &&
        trace_.events.back().kind == TraceEvent::Kind::read &&
        trace_.events.back().index == event.index;
    if (!is_repeated) trace_.events.push_back(event);
  }

  /// The allocation at `memory`, or kNone.
  [[nodiscard]] std::size_t place_of(const void* memory) const {
    const auto found = places_.find(memory);
    return found == places_.end() ? TraceEvent::kNone : found->second;
  }
  /// Stops tracking `memory`.
  void forget(const void* memory) { places_.erase(memory); }

  [[nodiscard]] StepTrace take() { return std::move(trace_); }

 private:
  StepTrace trace_;
  std::size_t last_operator_ = 0;
  std::unordered_map<const void*, std::size_t> places_;
};

/// Without bf16 instructions, LibTorch uses its own kernels for 16-bit
/// products.
bool multiplies_16_bits_natively() {
  static const bool does = [] {
    const auto has = at::cpu::get_cpu_capabilities();
    const auto lacks = [&](const char* name) {
      const auto found = has.find(name);
      return found != has.end() && found->second.isBool() &&
          !found->second.toBool();
    };
    return lacks("avx512_f");
  }();
  return does;
}

/// Bytes that an operator allocates outside LibTorch's allocator while it runs.
/// Where 16-bit products are native, a product with a transposed first factor,
/// as for gradients of weights, is summed in fp32.
std::size_t kernels_own_bytes(const at::RecordFunction& function) {
  if (std::string_view(function.name()) != "aten::mm") return 0;
  const auto inputs = function.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor())
    return 0;
  const at::Tensor& first = inputs[0].toTensor();
  const at::Tensor& second = inputs[1].toTensor();
  if (!first.is_cpu() || first.dim() != 2 || second.dim() != 2 ||
      !at::isReducedFloatingType(first.scalar_type()) ||
      first.is_contiguous() || !multiplies_16_bits_natively())
    return 0;
  return static_cast<std::size_t>(first.size(0) * second.size(1)) *
      sizeof(float);
}

/// Records the operators that read parameters on this thread.
class RecordedReads {
 public:
  RecordedReads(EventList& events, const ParameterTable& table)
      : events_(events) {
    for (std::size_t p = 0; p < table.rows().size(); ++p) {
      places_.emplace(
          table.rows()[p]
              .tensor.unsafeGetTensorImpl()
              ->unsafe_storage()
              .unsafeGetStorageImpl(),
          p);
    }
    current = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            &RecordedReads::begin_operator, &RecordedReads::end_operator)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~RecordedReads() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  RecordedReads(const RecordedReads&) = delete;
  RecordedReads& operator=(const RecordedReads&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> begin_operator(
      const at::RecordFunction& function) {
    if (current == nullptr) return nullptr;
    current->events_.begin_operator(function.name());
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor()) {
        current->note(input.toTensor());
      } else if (input.isTensorList()) {
        for (const at::Tensor& each : input.toTensorVector())
          current->note(each);
      }
    }
    const std::size_t own = kernels_own_bytes(function);
    if (own == 0) return nullptr;
    auto context = std::make_unique<KernelsOwn>();
    context->index = current->events_.begin_own(own);
    return context;
  }

  static void end_operator(
      const at::RecordFunction&,
      at::ObserverContext* context) {
    if (context == nullptr || current == nullptr) return;
    current->events_.end_own(static_cast<KernelsOwn*>(context)->index);
  }

  struct KernelsOwn : at::ObserverContext {
    std::size_t index = 0;
  };

  void note(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = places_.find(
        tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (found == places_.end()) return;
    events_.add({.kind = TraceEvent::Kind::read, .index = found->second});
  }

  // Thread-local because LibTorch's callback is thread-local.
  static thread_local RecordedReads* current;
  EventList& events_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> places_;
  at::CallbackHandle handle_ = 0;
};

thread_local RecordedReads* RecordedReads::current = nullptr;

class RecordGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  RecordGradient(EventList& events, std::size_t parameter)
      : events_(events), parameter_(parameter) {}

  // Drops the gradient, so that planning holds only one at a time.
  void operator()(const at::Tensor& tensor) override {
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) return;
    const void* const memory =
        gradient.has_storage() ? gradient.storage().data() : nullptr;
    events_.add(
        {.kind = TraceEvent::Kind::gradient,
         .index = parameter_,
         .allocation = events_.place_of(memory)});
    events_.forget(memory);
    gradient.reset();
  }

 private:
  EventList& events_;
  std::size_t parameter_;
};

/// Restores the parts of the module that a step changes.
class KeptModule {
 public:
  KeptModule(torch::nn::Module& module, const ParameterTable& table)
      : generator_(at::detail::getDefaultCPUGenerator()),
        generator_state_(generator_.get_state()) {
    const at::NoGradGuard no_grad;
    for (const Parameter& row : table.rows()) {
      parameters_.push_back(
          {row.tensor,
           row.tensor.variable_data(),
           std::exchange(row.tensor.mutable_grad(), {}),
           std::move(torch::autograd::impl::post_acc_grad_hooks(row.tensor))});
    }
    for (const at::Tensor& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.emplace_back(buffer, buffer.clone());
    }
  }
  ~KeptModule() {
    const at::NoGradGuard no_grad;
    for (Kept& each : parameters_) {
      each.tensor.mutable_grad().reset();
      if (each.tensor.scalar_type() != each.data.scalar_type())
        each.tensor.set_data(each.data);
      each.tensor.mutable_grad() = std::move(each.gradient);
      torch::autograd::impl::set_post_acc_grad_hooks(
          each.tensor, std::move(each.hook));
    }
    for (const auto& [buffer, values] : buffers_) buffer.copy_(values);
    generator_.set_state(generator_state_);
  }
  KeptModule(const KeptModule&) = delete;
  KeptModule& operator=(const KeptModule&) = delete;

 private:
  struct Kept {
    at::Tensor tensor;
    at::Tensor data;
    at::Tensor gradient;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> hook;
  };
  std::vector<Kept> parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
  at::Generator generator_;
  at::Tensor generator_state_;
};

void require_loss(const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw ConfigError(format(
      "[train] plan_memory() needs a loss with one element that depends on the "
      "parameters; the step returned {}",
      !loss.defined() ? std::string("an undefined tensor")
                      : format(
                            "{} elements{}",
                            loss.numel(),
                            loss.requires_grad() ? "" : " without a graph")));
}

// The largest power of two, up to `most`, with which a step takes a fraction of
// a second and little memory.
std::int64_t cheap_samples(
    const StepTrace& trace,
    const PlannedModel& model,
    std::int64_t most) {
  constexpr double kMostBytes = 16 << 20;
  constexpr std::int64_t kMostProducts = std::int64_t{1} << 27;
  std::int64_t num_elements = 0;
  for (const PlannedParameter& each : model.parameters)
    num_elements += each.num_elements;
  std::int64_t samples = 1;
  while (2 * samples <= most && 2 * samples * num_elements <= kMostProducts &&
         peak_bytes(trace, 2 * samples) <= kMostBytes)
    samples *= 2;
  return samples;
}

StepTrace run_once(
    const ParameterTable& table,
    const LossOfSamples& loss_of,
    std::int64_t num_samples,
    const RecordedPrecision& precision,
    Strategy* recomputation) {
  const auto events = std::make_shared<EventList>();
  for (std::size_t p = 0; p < table.rows().size(); ++p) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        table.rows()[p].tensor, std::make_unique<RecordGradient>(*events, p));
  }
  const at::AutoGradMode with_gradients(true);
  const RecordedReads reads(*events, table);
  const CountedAllocations counting(events);
  at::Tensor loss;
  try {
    const AutocastScope autocast(at::kCPU, precision.autocast);
    if (recomputation != nullptr) recomputation->before_forward();
    loss = loss_of(num_samples);
    if (recomputation != nullptr) recomputation->after_forward({});
    require_loss(loss);
  } catch (const std::exception& error) {
    if (recomputation != nullptr) recomputation->on_failure(error);
    throw;
  }
  events->add({.kind = TraceEvent::Kind::end_of_forward});
  loss.backward();
  // The loop holds what is left now, such as the loss, until the next step.
  return events->take();
}

}  // namespace

StepTrace record_step(
    torch::nn::Module& module,
    const ParameterTable& table,
    const PlannedModel& planned,
    const LossOfSamples& loss_of,
    const RecordedPrecision& precision,
    Strategy* recomputation,
    std::int64_t most_samples) {
  const KeptModule kept(module, table);
  if (precision.casts_parameters && precision.autocast) {
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < table.rows().size(); ++p) {
      const at::Tensor& tensor = table.rows()[p].tensor;
      if (!planned.parameters[p].keeps_precision && tensor.is_floating_point())
        tensor.set_data(tensor.variable_data().to(*precision.autocast));
    }
  }
  const auto run = [&](std::int64_t num_samples) {
    return run_once(table, loss_of, num_samples, precision, recomputation);
  };
  // The first run also fills caches that LibTorch keeps for later runs.
  run(kFewestSamples);
  StepTrace few = run(kFewestSamples);
  for (std::int64_t samples = kFewestSamples; samples < kMostSamples;
       samples *= 2) {
    StepTrace more = run(2 * samples);
    if (auto fitted = fit_traces(few, more, samples)) {
      const std::int64_t many =
          cheap_samples(*fitted, planned, most_samples) / 2;
      if (many > kMostSamples && has_large_scratch(*fitted, most_samples)) {
        if (const auto of_many = fit_traces(run(many), run(2 * many), many))
          limit_scratch(*fitted, *of_many);
      }
      return *std::move(fitted);
    }
    few = std::move(more);
  }
  throw ConfigError(format(
      "[train] the step calls different operators with {} samples than with "
      "{}, so its memory cannot be extrapolated; pass plan_memory() a step "
      "that does the same for any number of samples",
      kMostSamples / 2,
      kMostSamples));
}

}  // namespace accelerate::detail
