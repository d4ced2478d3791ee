#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/data_loader.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/loader_link.h>
#include <accelerate/detail/torch_order.h>
#include <accelerate/error.h>
#include <accelerate/nested.h>

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
  // A dataset of examples, or one mapped by a transform of single examples.
  static constexpr bool kGivesSamples = requires {
    typename Dataset::ExampleType;
  } || requires { typename Dataset::TransformType::OutputType; };
};

template <class T>
struct IsVector : std::false_type {};
template <class T, class A>
struct IsVector<std::vector<T, A>> : std::true_type {};

/// Number of samples in a batch. A batch that is neither a list nor a nested
/// value counts as one.
template <bool gives_samples, class Batch>
std::int64_t num_samples_of(const Batch& batch) {
  if constexpr (
      IsVector<Batch>::value && (gives_samples || !NestedTensors<Batch>)) {
    return static_cast<std::int64_t>(batch.size());
  } else if constexpr (NestedTensors<Batch>) {
    return find_batch_size(batch).value_or(1);
  } else {
    return 1;
  }
}

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
class TorchLoader : public detail::LoaderLink<TorchLoader<Loader>> {
  using Facts = detail::TorchLoaderFacts<Loader>;

 public:
  explicit TorchLoader(std::unique_ptr<Loader> loader)
      : loader_(std::move(loader)) {}

  using Batch = std::decay_t<decltype(*std::declval<Loader&>().begin())>;

  class Iterator {
   public:
    Iterator(TorchLoader& owner, std::int64_t num_skipped)
        : owner_(owner.place()) {
      owner.order_.begin_pass([&] {
        at_.emplace(owner.loader_->begin());
        end_.emplace(owner.loader_->end());
      });
      try {
        fills_up_ = owner.order_.fills_up();
        skip(num_skipped);
        fetch_round();
        hand_out();
      } catch (...) {
        end();
        throw;
      }
    }
    ~Iterator() { end(); }
    Iterator(Iterator&& other) noexcept
        : owner_(std::move(other.owner_)),
          at_(std::move(other.at_)),
          end_(std::move(other.end_)),
          fills_up_(other.fills_up_),
          first_round_(std::move(other.first_round_)),
          next_(std::move(other.next_)),
          next_remainder_(other.next_remainder_),
          batch_(std::move(other.batch_)) {
      other.batch_.reset();
    }
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    Batch& operator*() {
      if (!batch_) detail::throw_no_batch();
      return *batch_;
    }
    Batch* operator->() { return &**this; }
    Iterator& operator++() {
      batch_.reset();
      if (!owner_.is_released()) hand_out();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return !batch_.has_value(); }

   private:
    [[nodiscard]] detail::TorchOrder& order() const {
      return owner_.require().order_;
    }
    [[nodiscard]] int batch_count() const {
      return order().context().batch_count;
    }

    // The next batch of all ranks; nothing at the end.
    std::optional<Batch> read() {
      if (*at_ == *end_) return std::nullopt;
      std::optional<Batch> batch(std::move(**at_));
      ++*at_;
      const bool is_in_first_round =
          static_cast<int>(first_round_.size()) < batch_count();
      if (is_in_first_round && fills_up_ && batch_count() > 1) keep(*batch);
      return batch;
    }

    // The loop may write to the batch that it gets.
    void keep(const Batch& batch) {
      first_round_.push_back(batch);
      if constexpr (NestedTensors<Batch>) {
        visit_tensors(
            first_round_.back(), TensorVisitor{[](at::Tensor& tensor) {
              if (tensor.defined()) tensor = tensor.clone();
            }});
      }
    }

    void skip(std::int64_t num_rounds) {
      std::int64_t left = order().first() + num_rounds * batch_count();
      while (left > 0 && read()) --left;
      order().skip_rounds(num_rounds);
    }

    // Reads one round ahead, because only then is the last batch known to be
    // the last.
    void fetch_round() {
      next_.reset();
      next_remainder_ = 0;
      const int count = batch_count();
      const int mine = order().context().batch_rank;
      std::int64_t num_samples = 0;
      int place = 0;
      for (; place < count; ++place) {
        std::optional<Batch> batch = read();
        if (!batch) break;
        num_samples += detail::num_samples_of<Facts::kGivesSamples>(*batch);
        if (place == mine) next_ = std::move(batch);
      }
      if (place == 0 || place == count || !fills_up_) return;
      // Fills up the ranks that remain with the first batches, in order.
      next_remainder_ = num_samples;
      if (place <= mine) {
        next_ = first_round_
            [static_cast<std::size_t>(mine - place) % first_round_.size()];
      }
    }

    void hand_out() {
      batch_ = std::move(next_);
      if (!batch_) return end();
      const std::int64_t remainder = next_remainder_;
      fetch_round();
      const detail::LoaderContext& context = order().context();
      if constexpr (NestedTensors<Batch>) {
        if (order().places_batches()) {
          *batch_ = send_to_device(
              *std::move(batch_),
              context.device,
              context.defaults.non_blocking);
        }
      }
      detail::divide_sequences(context, context.defaults.sequences, *batch_);
      order().announce(!next_.has_value(), remainder);
    }

    void end() {
      if (TorchLoader* const owner = owner_.get()) owner->order_.end_pass();
      owner_.release();
    }

    using Position = decltype(std::declval<Loader&>().begin());
    /// Null once the pass has ended.
    detail::LoaderPlace<TorchLoader> owner_;
    std::optional<Position> at_;
    std::optional<Position> end_;
    bool fills_up_ = true;
    std::vector<Batch> first_round_;
    std::optional<Batch> next_;
    /// Number of real samples in the round of `next_` if it was filled up.
    std::int64_t next_remainder_ = 0;
    std::optional<Batch> batch_;
  };

  /// Begins a pass. Throws ConfigError inside another pass over this loader.
  Iterator begin() { return begin_after(0); }
  /// Begins a pass after each rank's first `num_batches` batches, which are
  /// read and dropped.
  Iterator begin_after(std::int64_t num_batches) {
    return Iterator(*this, num_batches);
  }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }
  [[nodiscard]] Loader& inner() { return *loader_; }

  /// The epoch of the pass in progress, or else of the next one; the first is
  /// 0.
  [[nodiscard]] std::uint64_t epoch() const { return order_.epoch(); }
  /// Sets the epoch of the next pass.
  void set_epoch(std::uint64_t epoch) { order_.set_epoch(epoch); }
  /// The epoch, the number of batches handed out to all ranks together, and the
  /// seed.
  [[nodiscard]] StateDict state_dict() const { return order_.state_dict(); }
  /// Makes the next pass continue where `state` was taken. Throws
  /// CheckpointError for a state that does not fit, ConfigError inside a pass.
  void load_state_dict(const StateDict& state) {
    order_.load_state_dict(state);
  }
  /// Why a pass cannot continue from `state`; "" if it can.
  [[nodiscard]] std::string load_complaint(const StateDict& state) const {
    return order_.load_complaint(state);
  }

  /// Called by prepare(). Throws ConfigError if the order of batches is not the
  /// same on all ranks (enforce_ordering), or if the accelerator's
  /// dataloader_config asks for what such a loader cannot do.
  void attach(detail::LoaderContext context) {
    if constexpr (requires { loader_->options().enforce_ordering; }) {
      const auto& options = loader_->options();
      if (context.batch_count > 1 && options.workers > 0 &&
          !options.enforce_ordering)
        detail::throw_unordered();
    }
    detail::require_sequences(context.defaults.sequences, NestedTensors<Batch>);
    const std::shared_ptr<detail::LoaderSlot> slot = context.slot;
    order_.attach(std::move(context), Facts::kIsReproducible);
    this->link(slot);
  }

 private:
  detail::MovedCheck<std::unique_ptr<Loader>, "TorchLoader"> loader_;
  detail::TorchOrder order_;
};

}  // namespace accelerate
