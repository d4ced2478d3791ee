#include <accelerate/random.h>

#include <mutex>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <accelerate/error.h>

namespace accelerate {

namespace {

void seed_everything(std::uint64_t seed, bool deterministic) {
  at::manual_seed(seed);
  if (!deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

}  // namespace

void set_seed(std::uint64_t seed, const SeedOptions& options) {
  if (options.device_specific) {
    throw ConfigError(
        "[train] set_seed() needs the rank for device_specific; also pass "
        "accelerator.world()");
  }
  seed_everything(seed, options.deterministic);
}

void set_seed(
    std::uint64_t seed,
    const World& world,
    const SeedOptions& options) {
  const auto rank = static_cast<std::uint64_t>(world.rank());
  seed_everything(
      options.device_specific ? seed + rank : seed, options.deterministic);
}

void synchronize_rng_state(const Group& group, at::Generator& generator) {
  if (group.size() == 1) return;
  const auto locked = [&](auto&& body) {
    const std::lock_guard lock(generator.mutex());
    return body();
  };
  // Not locked while waiting for other ranks, which may be threads.
  at::Tensor state = locked([&] { return generator.get_state().clone(); });
  group.broadcast(state, 0);
  locked([&] { generator.set_state(state); });
}

void synchronize_rng_states(
    const World& world,
    const std::vector<RNGType>& types) {
  for (const RNGType type : types) {
    if (type == RNGType::generator) {
      throw ConfigError(
          "[train] synchronize_rng_states() does not take RNGType::generator; "
          "call synchronize_rng_state() with the generator");
    }
    if (type == RNGType::device && world.device().is_cpu()) continue;
    const at::Device device =
        type == RNGType::torch ? at::Device(at::kCPU) : world.device();
    at::Generator generator = at::globalContext().defaultGenerator(device);
    synchronize_rng_state(world.group(), generator);
  }
}

}  // namespace accelerate
