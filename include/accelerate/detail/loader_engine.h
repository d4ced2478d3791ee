#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/loader_slot.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace accelerate::detail {

/// The part of a loader that does not depend on the type of its batches. The
/// loader owns it; it keeps its address when the loader moves.
class ACCELERATE_API LoaderEngine
    : public std::enable_shared_from_this<LoaderEngine> {
 public:
  LoaderEngine();
  LoaderEngine(const LoaderEngine&) = delete;
  LoaderEngine& operator=(const LoaderEngine&) = delete;
  /// Clears the loader's slot.
  virtual ~LoaderEngine();

  /// Throws ConfigError inside a pass.
  virtual void begin_pass() = 0;
  /// Skips this rank's first batches of the pass. Called once, first.
  virtual void skip(std::int64_t num_batches) = 0;
  /// The next batch of this rank; null at the end.
  virtual std::unique_ptr<LoadedBatch> next() = 0;
  virtual void end_pass() noexcept = 0;

  [[nodiscard]] virtual std::uint64_t epoch() const = 0;
  virtual void set_epoch(std::uint64_t epoch) = 0;
  [[nodiscard]] virtual StateDict state_dict() const = 0;
  virtual void load_state_dict(const StateDict& state) = 0;
  [[nodiscard]] virtual std::string load_complaint(
      const StateDict& state) const;

 protected:
  /// Points `slot` at this engine, and clears an earlier slot.
  void link(std::shared_ptr<LoaderSlot> slot);

 private:
  std::shared_ptr<LoaderSlot> slot_;
};

/// The rest of a pass over a loader; it survives moving the loader.
class ACCELERATE_API LoaderPass {
 public:
  LoaderPass(std::weak_ptr<LoaderEngine> loader, std::int64_t num_skipped);
  LoaderPass(LoaderPass&& other) noexcept;
  LoaderPass& operator=(LoaderPass&&) = delete;
  ~LoaderPass();

  /// Throws ConfigError after the end.
  [[nodiscard]] LoadedBatch& batch() const;
  [[nodiscard]] bool has_batch() const { return batch_ != nullptr; }
  /// Throws ConfigError if the loader is gone.
  void advance();

 private:
  void end() noexcept;

  std::weak_ptr<LoaderEngine> loader_;
  bool has_ended_ = false;
  std::unique_ptr<LoadedBatch> batch_;
};

/// The end iterator of every loader.
struct EndOfPass {};

}  // namespace accelerate::detail
