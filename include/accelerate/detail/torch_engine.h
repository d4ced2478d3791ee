#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <accelerate/detail/handles.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_context.h>
#include <accelerate/detail/loader_engine.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// Throws the ConfigError about a loader whose workers return batches out of
/// order.
[[noreturn]] ACCELERATE_API void throw_unordered();

/// A torch::data loader with its type erased.
class ACCELERATE_API TorchBatches {
 public:
  TorchBatches();
  TorchBatches(const TorchBatches&) = delete;
  TorchBatches& operator=(const TorchBatches&) = delete;
  virtual ~TorchBatches();

  /// Begins a pass, in which the sampler draws its order.
  virtual void begin() = 0;
  virtual void end() noexcept = 0;
  /// The next batch of the pass; null at the end.
  virtual std::unique_ptr<LoadedBatch> next() = 0;
  /// Another batch with the same tensors.
  [[nodiscard]] virtual std::unique_ptr<LoadedBatch> copy(
      const LoadedBatch& batch) const = 0;
  [[nodiscard]] virtual std::int64_t num_samples(
      const LoadedBatch& batch) const = 0;
};

/// What follows from the type of a torch::data loader.
struct TorchFacts {
  /// Whether the sampler's order depends on the default generator only.
  bool is_reproducible = false;
  bool has_tensors = false;
};

/// The engine of a TorchLoader.
class ACCELERATE_API TorchEngine final : public LoaderEngine {
 public:
  TorchEngine(std::unique_ptr<TorchBatches> batches, const TorchFacts& facts);
  ~TorchEngine() override;

  void begin_pass() override;
  void skip(std::int64_t num_rounds) override;
  std::unique_ptr<LoadedBatch> next() override;
  void end_pass() noexcept override;
  [[nodiscard]] std::uint64_t epoch() const override;
  void set_epoch(std::uint64_t epoch) override;
  [[nodiscard]] StateDict state_dict() const override;
  [[nodiscard]] std::string load_complaint(
      const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;

  void attach(LoaderContext context);
  [[nodiscard]] TorchBatches& batches() const;

 private:
  struct State;
  OwnedPtr<State> state_;
};

}  // namespace accelerate::detail
