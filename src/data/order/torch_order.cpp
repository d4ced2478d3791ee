#include "data/order/torch_order.h"

#include <mutex>
#include <utility>

#include <ATen/Context.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Seeds LibTorch's CPU generator, and restores its state on destruction.
class SeededGenerator {
 public:
  explicit SeededGenerator(std::uint64_t seed)
      : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;
  ~SeededGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }

 private:
  at::Generator generator_;
  at::Tensor before_;
};

void draw_with_seed(std::uint64_t seed, const std::function<void()>& draw) {
  // Ranks that are threads of one process share the generator.
  static std::mutex one_at_a_time;
  const std::lock_guard turn(one_at_a_time);
  const SeededGenerator seeded(seed);
  draw();
}

}  // namespace

void TorchOrder::attach(LoaderContext context, bool is_reproducible) {
  if (context.defaults.split_batches ||
      context.defaults.dispatch_batches.value_or(false)) {
    throw ConfigError(
        "[data] dataloader_config sets split_batches or dispatch_batches, but "
        "every rank reads all of a torch::data loader and keeps entire "
        "batches; prepare an accelerate::DataLoader of its "
        "dataset, or unset them");
  }
  context_ = std::move(context);
  is_reproducible_ = is_reproducible;
}

bool TorchOrder::places_batches() const {
  return context_.device_placement.value_or(context_.places_by_default);
}

bool TorchOrder::fills_up() const {
  const bool by_default = context_.defaults.even_batches;
  return context_.even_batches ? context_.even_batches().value_or(by_default)
                               : by_default;
}

std::uint64_t TorchOrder::seed() const {
  return seed_.value_or(context_.defaults.data_seed.value_or(context_.seed));
}

bool TorchOrder::is_restorable() const {
  return is_reproducible_ && context_.seeds_order;
}

void TorchOrder::begin_pass(const std::function<void()>& draw) {
  if (is_reading_) throw_nested_pass(epoch_, num_rounds_);
  if (context_.begin) context_.begin();
  is_reading_ = true;
  first_ = std::exchange(next_first_, 0);
  num_rounds_ = 0;
  has_ended_ = false;
  try {
    // The same order as Accelerate's SeedableRandomSampler for this seed.
    context_.seeds_order ? draw_with_seed(seed() + epoch_, draw) : draw();
  } catch (...) {
    end_pass();
    throw;
  }
}

void TorchOrder::end_pass() noexcept {
  if (!is_reading_) return;
  is_reading_ = false;
  has_ended_ = false;
  ++epoch_;
  first_ = 0;
  if (context_.end) context_.end();
}

void TorchOrder::announce(bool is_last, std::int64_t remainder) {
  ++num_rounds_;
  has_ended_ = is_last;
  if (context_.on_batch) context_.on_batch(is_last, remainder);
}

StateDict TorchOrder::state_dict() const {
  const bool is_inside = is_reading_ && !has_ended_;
  const std::int64_t position =
      is_inside ? first_ + num_rounds_ * context_.batch_count : next_first_;
  if (position > 0 && !is_restorable()) {
    context_.logger.log_once_per_world(
        LogLevel::warning,
        "data",
        "a checkpoint is saved in the middle of a pass over a torch::data "
        "loader whose order cannot be drawn again, so load_state() will reject "
        "it; save between passes, or use accelerate::DataLoader");
  }
  return {
      {"epoch", static_cast<std::int64_t>(epoch_ + (has_ended_ ? 1 : 0))},
      {"torch_batches", position},
      {"seed", static_cast<std::int64_t>(seed())}};
}

std::string TorchOrder::load_complaint(const StateDict& state) const {
  if (is_restorable()) return {};
  if (!state.contains("torch_batches") ||
      state.get<std::int64_t>("torch_batches") <= 0) {
    return {};
  }
  return format(
      "the checkpoint was saved in the middle of a pass over a torch::data "
      "loader, and {}; save between passes, use accelerate::DataLoader, or "
      "load with strict = false, which begins the pass again",
      is_reproducible_
          ? "rng_types leaves out RNGType::generator, so its order is unknown"
          : "the order of its sampler cannot be drawn again, as can those of "
            "RandomSampler and SequentialSampler");
}

void TorchOrder::load_state_dict(const StateDict& state) {
  if (is_reading_) {
    throw ConfigError(
        "[data] load_state_dict() was called inside a pass over this loader; "
        "leave the loop first");
  }
  const auto epoch = state.get<std::int64_t>("epoch");
  const auto position = state.get<std::int64_t>("torch_batches");
  const auto seed = state.get<std::int64_t>("seed");
  if (epoch < 0 || position < 0) {
    throw CheckpointError(format(
        "[data] the epoch and the position in the state of a loader must be at "
        "least 0, but are {} and {}",
        epoch,
        position));
  }
  const std::string complaint = load_complaint(state);
  if (!complaint.empty()) throw CheckpointError("[data] " + complaint);
  epoch_ = static_cast<std::uint64_t>(epoch);
  next_first_ = position;
  seed_ = static_cast<std::uint64_t>(seed);
}

}  // namespace accelerate::detail
