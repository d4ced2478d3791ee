#include "parallel/random_region.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "activations/random_state.h"
#include "activations/tape.h"

namespace accelerate::detail {

namespace {

// LibTorch uses this key only while it exports programs from Python. It comes
// before kRecordingKey, so a recording sees the region's generators.
constexpr c10::DispatchKey kKey = c10::DispatchKey::PreDispatch;
static_assert(kKey > kRecordingKey);

/// States of generators; a copy of the default generator draws from them.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : seed_(seed) {}

  /// The state for generators on the device of `generator`.
  at::Tensor& state(const at::Generator& generator) {
    at::Tensor& state = states_[generator.device()];
    if (!state.defined()) {
      at::Generator own = generator.clone();
      own.set_current_seed(seed_);
      state = own.get_state();
    }
    return state;
  }

  /// The next 64 bits; `advances` takes them.
  std::uint64_t next(bool advances) {
    at::Generator own = at::globalContext().defaultGenerator(at::kCPU).clone();
    at::Tensor& kept = state(own);
    own.set_state(kept);
    const std::uint64_t number = own.get<at::CPUGeneratorImpl>()->random64();
    if (advances) kept = own.get_state();
    return number;
  }

 private:
  std::uint64_t seed_;
  std::map<c10::Device, at::Tensor, bool (*)(c10::Device, c10::Device)> states_{
      [](c10::Device a, c10::Device b) {
        return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
      }};
};

struct Region {
  const void* owner;
  std::uint64_t stream;
  /// Unset until the first random operator.
  std::optional<Stream> numbers = std::nullopt;
  /// Whether its seed was taken from the enclosing generator.
  bool has_drawn = false;
};

// Thread-local because a region belongs to a forward, and the dispatch key is
// included per thread.
thread_local std::vector<Region> regions;

// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mixed(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15ULL;
  state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ (state >> 27U)) * 0x94d049bb133111ebULL;
  return state ^ (state >> 31U);
}

std::uint64_t next_of_default(bool advances) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  if (!advances) generator = generator.clone();
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

Stream& numbers_of(std::size_t level) {
  Region& region = regions[level];
  if (!region.numbers) {
    const std::uint64_t seed = level == 0
        ? next_of_default(/*advances=*/false)
        : numbers_of(level - 1).next(/*advances=*/false);
    region.numbers.emplace(mixed(seed ^ mixed(region.stream)));
  }
  return *region.numbers;
}

// Keeps the seeds of the innermost region and of the enclosing ones if an
// operator has used them; a dropout of an empty tensor has not.
void take_seeds(bool has_drawn) {
  for (std::size_t level = regions.size(); level-- > 0;) {
    Region& region = regions[level];
    if (region.has_drawn) return;
    if (!has_drawn) {
      region.numbers.reset();
      continue;
    }
    region.has_drawn = true;
    if (level == 0) {
      next_of_default(/*advances=*/true);
    } else {
      numbers_of(level - 1).next(/*advances=*/true);
    }
  }
}

/// Gives the default generator the region's state while an operator runs.
class SwappedState {
 public:
  SwappedState(at::Generator generator, Stream& numbers)
      : generator_(std::move(generator)), kept_(numbers.state(generator_)) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_state(kept_);
  }
  SwappedState(const SwappedState&) = delete;
  SwappedState& operator=(const SwappedState&) = delete;
  ~SwappedState() {
    const std::lock_guard lock(generator_.mutex());
    kept_ = generator_.get_state();
    generator_.set_state(before_);
  }

  /// Whether the operator has drawn numbers.
  [[nodiscard]] bool has_changed() const {
    return !at::equal(state_of(generator_), kept_);
  }

 private:
  mutable at::Generator generator_;
  at::Tensor& kept_;
  at::Tensor before_;
};

bool has_generator(const torch::jit::Stack& stack, std::size_t num_arguments) {
  return std::any_of(
      stack.end() - static_cast<std::ptrdiff_t>(num_arguments),
      stack.end(),
      [](const c10::IValue& value) { return value.isGenerator(); });
}

void run_random_operator(
    const c10::OperatorHandle& operation,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  // Operators that this one calls draw from the same generator.
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const std::size_t num_arguments = operation.schema().arguments().size();
  // Recomputed operators get the state that they had the first time.
  if (regions.empty() ||
      c10::impl::tls_is_dispatch_key_excluded(kRecordingKey) ||
      has_generator(*stack, num_arguments)) {
    operation.redispatchBoxed(below, stack);
    return;
  }
  bool has_drawn = false;
  {
    const SwappedState swapped(
        generator_of(*stack, num_arguments), numbers_of(regions.size() - 1));
    operation.redispatchBoxed(below, stack);
    has_drawn = regions.back().has_drawn || swapped.has_changed();
  }
  take_seeds(has_drawn);
}

// A process can have only one kernel per operator and dispatch key. Operators
// that libraries register later draw from the default generators.
void register_random_operators() {
  static const auto libraries = [] {
    std::map<std::string, std::unique_ptr<torch::Library>> made;
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto operation = dispatcher.findSchema(name);
      if (!operation || !operation->hasTag(at::Tag::nondeterministic_seeded))
        continue;
      const std::string space(name.getNamespace().value_or("aten"));
      auto& library = made[space];
      if (!library) {
        library = std::make_unique<torch::Library>(
            torch::Library::IMPL, space, kKey, __FILE__, __LINE__);
      }
      const std::string full = name.overload_name.empty()
          ? name.name
          : name.name + "." + name.overload_name;
      library->impl(
          full.c_str(),
          torch::CppFunction::makeFromBoxedFunction<&run_random_operator>());
    }
    return made;
  }();
}

}  // namespace

std::uint64_t random_stream_of(Axis axis, int rank) {
  return (static_cast<std::uint64_t>(axis) << 32U) +
      static_cast<std::uint64_t>(rank);
}

bool is_in_random_region(const void* owner) {
  return std::ranges::any_of(
      regions, [&](const Region& region) { return region.owner == owner; });
}

void enter_random_region(const void* owner, std::uint64_t stream) {
  if (is_in_random_region(owner)) return;
  if (regions.empty()) {
    register_random_operators();
    c10::impl::tls_set_dispatch_key_included(kKey, true);
  }
  regions.push_back({owner, stream});
}

void leave_random_region(const void* owner) {
  const auto found = std::ranges::find(regions, owner, &Region::owner);
  if (found == regions.end()) return;
  regions.erase(found, regions.end());
  if (regions.empty()) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

namespace {

void set_random_region(const void* owner, std::uint64_t stream, bool is_open) {
  if (is_open) {
    enter_random_region(owner, stream);
  } else {
    leave_random_region(owner);
  }
}

}  // namespace

RandomNumbersOf::RandomNumbersOf(
    const void* owner,
    std::uint64_t stream,
    bool is_open)
    : owner_(owner), stream_(stream), was_open_(is_in_random_region(owner)) {
  set_random_region(owner_, stream_, is_open);
}

RandomNumbersOf::~RandomNumbersOf() {
  set_random_region(owner_, stream_, was_open_);
}

}  // namespace accelerate::detail
