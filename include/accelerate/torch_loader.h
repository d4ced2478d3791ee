#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/batch_iterator.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_context.h>
#include <accelerate/detail/loader_engine.h>
#include <accelerate/detail/torch_engine.h>
#include <accelerate/nested.h>
#include <accelerate/state_dict.h>

namespace torch::data {
template <typename Dataset, typename Sampler>
class StatelessDataLoader;
namespace samplers {
class RandomSampler;
class SequentialSampler;
}  // namespace samplers
}  // namespace torch::data

namespace accelerate {

namespace detail {

/// Facts about a torch::data loader that follow from its type.
template <class Loader>
struct TorchLoaderFacts {
  /// Whether the sampler's order depends on the default generator only.
  static constexpr bool kIsReproducible = false;
  /// Whether its batches, if they are vectors, are lists of samples.
  static constexpr bool kGivesSamples = true;
};
template <class Dataset, class Sampler>
struct TorchLoaderFacts<torch::data::StatelessDataLoader<Dataset, Sampler>> {
  static constexpr bool kIsReproducible =
      std::is_same_v<Sampler, torch::data::samplers::RandomSampler> ||
      std::is_same_v<Sampler, torch::data::samplers::SequentialSampler>;
  // True for a dataset of examples, or one mapped by a transform of single
  // examples.
  static constexpr bool kGivesSamples = requires {
    typename Dataset::ExampleType;
  } || requires { typename Dataset::TransformType::OutputType; };
};

/// The functions of one torch::data loader.
template <class Loader>
class TypedTorchBatches final : public TorchBatches {
  using Facts = TorchLoaderFacts<Loader>;
  using Position = decltype(std::declval<Loader&>().begin());

 public:
  using Batch = std::decay_t<decltype(*std::declval<Position&>())>;

  explicit TypedTorchBatches(std::unique_ptr<Loader> its_loader)
      : loader(std::move(its_loader)) {}

  void begin() override {
    at_.emplace(loader->begin());
    end_.emplace(loader->end());
  }
  void end() noexcept override {
    at_.reset();
    end_.reset();
  }
  std::unique_ptr<LoadedBatch> next() override {
    if (*at_ == *end_) return nullptr;
    auto held = std::make_unique<Held>();
    held->batch.emplace(std::move(**at_));
    ++*at_;
    return held;
  }
  [[nodiscard]] std::unique_ptr<LoadedBatch> copy(
      const LoadedBatch& batch) const override {
    auto held = std::make_unique<Held>();
    held->batch = static_cast<const Held&>(batch).batch;
    return held;
  }
  /// A batch that is neither a list nor a nested value counts as one sample.
  [[nodiscard]] std::int64_t num_samples(
      const LoadedBatch& loaded) const override {
    const Batch& batch = *static_cast<const Held&>(loaded).batch;
    if constexpr (
        kIs<Batch, std::vector> &&
        (Facts::kGivesSamples || !NestedTensors<Batch>)) {
      return static_cast<std::int64_t>(batch.size());
    } else if constexpr (NestedTensors<Batch>) {
      return find_batch_size(batch).value_or(1);
    } else {
      return 1;
    }
  }

  MovedCheck<std::unique_ptr<Loader>, "TorchLoader"> loader;

 private:
  using Held = HeldBatch<Batch, /*can_dispatch=*/false>;

  std::optional<Position> at_;
  std::optional<Position> end_;
};

}  // namespace detail

/// A torch::data loader that every rank reads completely: rank r of N keeps
/// batches r, r + N …, and the last round is filled up with the first batches,
/// which gather_for_metrics leaves out. Prefer DataLoader, which reads only the
/// batches of its rank and copies less.
///
/// A pass draws its order with LibTorch's default generator seeded by the
/// loader's seed (data_seed, else rank 0's torch::manual_seed at prepare())
/// plus the epoch, so that all ranks draw the same; the generator's state is
/// restored. Without RNGType::generator in AcceleratorOptions::rng_types the
/// sampler draws from each rank's generator as it is. A sampler that has its
/// own generator, or draws numbers after reset(), must give the same order on
/// all ranks. Ranks that are threads share LibTorch's generator: none may draw
/// numbers while another begins a pass.
///
/// A pass continues after load_state() by reading and dropping batches, on any
/// number of ranks, with RandomSampler and SequentialSampler; with any other
/// sampler, load_state() rejects a checkpoint that was saved inside a pass.
template <class Loader>
class TorchLoader {
  using Batches = detail::TypedTorchBatches<Loader>;

 public:
  /// The type of a batch, as LibTorch's loader hands it out.
  using Batch = typename Batches::Batch;
  /// Hands out the batches of a pass.
  using Iterator = BatchIterator<Batch>;

  explicit TorchLoader(std::unique_ptr<Loader> loader)
      : engine_(std::make_shared<detail::TorchEngine>(
            std::make_unique<Batches>(std::move(loader)),
            detail::TorchFacts{
                .is_reproducible =
                    detail::TorchLoaderFacts<Loader>::kIsReproducible,
                .has_tensors = NestedTensors<Batch>})) {}
  TorchLoader(TorchLoader&&) noexcept = default;
  TorchLoader& operator=(TorchLoader&&) noexcept = default;
  ~TorchLoader() = default;

  /// Begins a pass. Throws ConfigError inside another pass over this loader.
  Iterator begin() { return begin_after(0); }
  /// Begins a pass after each rank's first `num_batches` batches, which are
  /// read and dropped.
  Iterator begin_after(std::int64_t num_batches) {
    return Iterator(engine(), num_batches);
  }
  /// The end of the pass.
  [[nodiscard]] detail::EndOfPass end() const { return {}; }
  /// LibTorch's loader.
  [[nodiscard]] Loader& inner() { return *batches().loader; }

  /// The epoch of the pass in progress, or else of the next one; the first is
  /// 0.
  [[nodiscard]] std::uint64_t epoch() const { return engine_->epoch(); }
  /// Sets the epoch of the next pass.
  void set_epoch(std::uint64_t epoch) { engine_->set_epoch(epoch); }
  /// The epoch, the number of batches handed out to all ranks together, and the
  /// seed.
  [[nodiscard]] StateDict state_dict() const { return engine_->state_dict(); }
  /// Makes the next pass continue where `state` was taken. Throws
  /// CheckpointError for a state that does not fit, ConfigError inside a pass.
  void load_state_dict(const StateDict& state) {
    engine_->load_state_dict(state);
  }
  /// Why a pass cannot continue from `state`; "" if it can.
  [[nodiscard]] std::string load_complaint(const StateDict& state) const {
    return engine_->load_complaint(state);
  }

  /// Called by prepare(). Throws ConfigError if the order of batches is not the
  /// same on all ranks (enforce_ordering), or if the accelerator's
  /// dataloader_config asks for what such a loader cannot do.
  void attach(detail::LoaderContext context) {
    if constexpr (requires { inner().options().enforce_ordering; }) {
      const auto& options = inner().options();
      if (context.batch_count > 1 && options.workers > 0 &&
          !options.enforce_ordering)
        detail::throw_unordered();
    }
    engine_->attach(std::move(context));
  }

 private:
  template <class Prepared>
  friend class SkippedBatches;

  [[nodiscard]] std::weak_ptr<detail::LoaderEngine> engine() const {
    return engine_->weak_from_this();
  }
  [[nodiscard]] Batches& batches() const {
    return static_cast<Batches&>(engine_->batches());
  }

  detail::MovedCheck<std::shared_ptr<detail::TorchEngine>, "TorchLoader">
      engine_;
};

}  // namespace accelerate
