#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/detail/dataset_concepts.h>
#include <accelerate/detail/dataset_engine.h>
#include <accelerate/detail/loaded_batch.h>

namespace accelerate::detail {

/// A batch with the samples that it is made of.
template <class Batch, class Sample>
class SampledBatch final : public HeldBatch<Batch> {
 public:
  std::vector<Sample> samples = {};
};

/// The functions of one dataset and collate function. Those that its kind of
/// dataset does not have are never called.
template <class Dataset, class Collate>
class TypedDataset final : public LoaderDataset {
  static constexpr bool kIsStream = StreamDataset<Dataset>;
  static constexpr bool kGivesBatches = !kIsStream && BatchDataset<Dataset>;

  template <class Samples>
  static constexpr bool kCollatesWithGenerator = requires(
      Collate& collate_function,
      Samples samples,
      at::Generator& generator) {
    collate_function(std::move(samples), generator);
  };

  static auto sample_type() {
    if constexpr (!must_be_dataset<Dataset>() || kGivesBatches) {
      return std::type_identity<char>{};
    } else if constexpr (kIsStream) {
      return std::type_identity<
          std::decay_t<decltype(*std::declval<Dataset&>().next())>>{};
    } else {
      return std::type_identity<std::decay_t<decltype(get_sample(
          std::declval<Dataset&>(),
          0,
          std::declval<const SampleGenerator&>()))>>{};
    }
  }
  using Sample = typename decltype(sample_type())::type;
  using Samples = std::vector<Sample>;

  static auto batch_type() {
    if constexpr (!ReadableDataset<Dataset>) {
      return std::type_identity<char>{};
    } else if constexpr (kGivesBatches) {
      return std::type_identity<std::decay_t<decltype(get_samples(
          std::declval<Dataset&>(),
          std::span<const std::int64_t>(),
          std::declval<const SampleGenerator&>()))>>{};
    } else if constexpr (kCollatesWithGenerator<Samples>) {
      return std::type_identity<std::decay_t<decltype(std::declval<Collate&>()(
          std::declval<Samples>(), std::declval<at::Generator&>()))>>{};
    } else if constexpr (!must_collate<Collate, Samples>()) {
      return std::type_identity<char>{};
    } else {
      return std::type_identity<std::decay_t<decltype(std::declval<Collate&>()(
          std::declval<Samples>()))>>{};
    }
  }

 public:
  using Batch = typename decltype(batch_type())::type;
  using SliceFunction = std::function<
      Batch(const Batch& round, std::int64_t begin, std::int64_t end)>;

  TypedDataset(Dataset its_dataset, Collate collate_function)
      : LoaderDataset(
            {.is_stream = kIsStream,
             .gives_batches = kGivesBatches,
             .is_sharded = says_is_sharded(its_dataset),
             .has_tensors = NestedTensors<Batch>,
             .can_dispatch = Dispatchable<Batch>}),
        dataset(std::move(its_dataset)),
        collate_(std::move(collate_function)) {}

  [[nodiscard]] std::int64_t num_samples() const override {
    if constexpr (SizedDataset<Dataset>) return size_of(dataset);
    return -1;
  }
  [[nodiscard]] std::unique_ptr<LoadedBatch> new_batch() const override {
    return std::make_unique<Made>();
  }
  void collate(LoadedBatch& batch, const SampleGenerator& generator) override {
    Made& made = typed(batch);
    if constexpr (kGivesBatches || !ReadableDataset<Dataset>) {
      return;
    } else if constexpr (kCollatesWithGenerator<Samples>) {
      made.batch.emplace(collate_(std::move(made.samples), generator()));
    } else {
      made.batch.emplace(collate_(std::move(made.samples)));
    }
  }

  void get(
      LoadedBatch& batch,
      std::int64_t index,
      const SampleGenerator& generator) override {
    if constexpr (!kIsStream && !kGivesBatches && ReadableDataset<Dataset>) {
      Samples& samples = typed(batch).samples;
      if (samples.empty()) samples.reserve(batch.read.indices.size());
      samples.push_back(get_sample(dataset, index, generator));
    }
  }
  void get_batch(LoadedBatch& batch, const SampleGenerator& generator)
      override {
    if constexpr (kGivesBatches) {
      typed(batch).batch.emplace(get_samples(
          dataset,
          std::span<const std::int64_t>(batch.read.indices),
          generator));
    }
  }

  void begin_epoch(std::uint64_t epoch) override {
    if constexpr (kIsStream && requires { dataset.set_epoch(epoch); })
      dataset.set_epoch(epoch);
    if constexpr (kIsStream && requires { dataset.reset(); }) dataset.reset();
  }
  bool restore(const StateDict& state) override {
    if constexpr (kIsRestorable) dataset.load_state_dict(state);
    return kIsRestorable;
  }
  [[nodiscard]] std::optional<StateDict> state_dict() const override {
    if constexpr (kIsRestorable) return dataset.state_dict();
    return std::nullopt;
  }
  bool next(LoadedBatch* batch) override {
    if constexpr (kIsStream) {
      auto sample = dataset.next();
      if (!sample) return false;
      if (batch != nullptr) typed(*batch).samples.push_back(*std::move(sample));
    }
    return true;
  }
  void keep_share(
      LoadedBatch& round,
      std::int64_t begin,
      std::int64_t end,
      const LoadedBatch* first) override {
    if constexpr (kIsStream) {
      Samples read = std::exchange(typed(round).samples, {});
      const auto rows = static_cast<std::int64_t>(read.size());
      for (std::int64_t i = begin; i < end; ++i) {
        if (i < rows) {
          typed(round).samples.push_back(
              std::move(read[static_cast<std::size_t>(i)]));
        } else {
          const Samples& others = static_cast<const Made&>(*first).samples;
          typed(round).samples.push_back(
              others[static_cast<std::size_t>(i - rows) % others.size()]);
        }
      }
    }
  }
  [[nodiscard]] std::unique_ptr<LoadedBatch> copy_samples(
      const LoadedBatch& round) const override {
    auto made = std::make_unique<Made>();
    if constexpr (kIsStream)
      made->samples = static_cast<const Made&>(round).samples;
    return made;
  }

  [[nodiscard]] std::unique_ptr<LoadedBatch> slice(
      const LoadedBatch& round,
      std::int64_t begin,
      std::int64_t end) const override {
    if (!slice_function) return nullptr;
    auto made = std::make_unique<HeldBatch<Batch>>();
    made->batch = slice_function(
        *static_cast<const HeldBatch<Batch>&>(round).batch, begin, end);
    return made;
  }

  Dataset dataset;
  SliceFunction slice_function = nullptr;

 private:
  using Made = SampledBatch<Batch, Sample>;
  static constexpr bool kIsRestorable = kIsStream && RestorableDataset<Dataset>;

  static Made& typed(LoadedBatch& batch) { return static_cast<Made&>(batch); }

  Collate collate_;
};

}  // namespace accelerate::detail
