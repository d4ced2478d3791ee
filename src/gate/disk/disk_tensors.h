#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files/scratch_file.h"
#include "base/files/transfer_queue.h"
#include "gate/disk/aligned_memory.h"
#include "gate/gate.h"

namespace accelerate::detail {

/// What tensors in memory are for.
enum class DiskUse {
  read,
  change,  ///< their values are read, and others written
  replace  ///< all their values are written; what they had need not be read
};

/// Tensors that lie in a file while nothing uses them. An operator that takes
/// one brings it into memory by itself, where it stays until other tensors need
/// the room; code that knows what it will use next is faster if it says so
/// (begin_fetch, hold), and code that bypasses gates must hold what it uses.
/// What an operator wrote to is written to the file before its memory is used
/// for anything else. Thread-safe.
class DiskTensors final : public GateKeeper {
 public:
  struct Options {
    std::filesystem::path directory;
    /// "the optimizer state of rank 0", for messages.
    std::string what;
    /// The bytes in memory while no more are held.
    std::uint64_t memory_bytes = 0;
    /// begin_fetch() reads; otherwise only hold() does.
    bool reads_ahead = true;
    /// Tensors are written while others compute; otherwise let_go() waits.
    bool writes_behind = true;
    /// The memory is what a device of this type copies from without waiting;
    /// the CPU: pageable memory.
    c10::Device device = at::kCPU;
  };

  explicit DiskTensors(
      const Options& options,
      std::unique_ptr<TransferQueue> queue = std::make_unique<TransferQueue>());
  ~DiskTensors() override;

  /// Takes over the memory of a dense tensor on the CPU, which is not a view
  /// and has no other keeper. One without elements, or that is kept already, is
  /// left as it is. Throws Error if the disk is full.
  void add(const at::Tensor& tensor);
  /// Returns a new tensor in memory of the host, kept here like one of add(),
  /// whose contents are undefined.
  [[nodiscard]] at::Tensor make(
      at::IntArrayRef sizes,
      const at::TensorOptions& options);
  /// Forgets tensors to which nothing else refers anymore, and frees their
  /// room.
  void forget_unused();
  /// Reserves room on the disk. Throws Error if it is full.
  void reserve(std::uint64_t bytes) { file_.reserve(bytes); }

  /// The next three functions ignore tensors that are not kept here.
  /// Begins to bring tensors into memory, as far as there is room.
  void begin_fetch(std::span<const at::Tensor> tensors);
  /// Waits until the tensors are in memory, where they stay until let_go() was
  /// called as often. Throws Error if they cannot be read.
  void hold(std::span<const at::Tensor> tensors, DiskUse use = DiskUse::read);
  /// They leave memory now, without waiting.
  void let_go(std::span<const at::Tensor> tensors);
  /// Waits until all that left memory is in the file. Throws Error if something
  /// could not be written.
  void flush();

  /// Bytes of the file.
  [[nodiscard]] std::uint64_t num_bytes() const { return file_.size(); }
  /// The most bytes that were in memory at once.
  [[nodiscard]] std::uint64_t most_bytes() const;

  void call(GatedCall& call) override;
  [[nodiscard]] bool may_replace() const override { return false; }
  [[nodiscard]] bool brings_memory() const override { return true; }

 private:
  struct Entry;
  class IdleEntries;
  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] Entry* find(const at::Tensor& tensor) const;
  [[nodiscard]] std::vector<Entry*> find_all(
      std::span<const at::Tensor> tensors) const;
  Entry& make_entry(const at::Tensor& tensor, Lock& lock);
  void put_behind_gate(Entry& entry, const at::Tensor& tensor);
  void hold_entries(std::span<Entry* const> entries, DiskUse use, Lock& lock);
  [[nodiscard]] bool has_room(std::uint64_t bytes) const;
  void begin_read(Entry& entry);
  void finish_read(Entry& entry, Lock& lock);
  void leave(Entry& entry);
  void end_write(Entry& entry, int error);
  void finish_write(const Entry& entry, Lock& lock);
  void finish_writes(Lock& lock);
  void collect_written();
  void make_room(std::uint64_t bytes, Lock& lock);

  Options options_;
  ScratchFile file_;
  mutable std::mutex mutex_;
  AlignedMemory memory_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::size_t> free_numbers_;
  std::unique_ptr<IdleEntries> idle_;
  std::vector<Entry*> being_written_;
  int write_error_ = 0;
  /// Last, so that nothing moves memory that is gone.
  std::unique_ptr<TransferQueue> queue_;
};

/// Holds those of some tensors that lie in files while alive: for code that
/// bypasses gates or needs addresses. For other tensors it does nothing.
class HeldTensors {
 public:
  /// Throws Error if they cannot be read.
  explicit HeldTensors(
      const std::vector<at::Tensor>& tensors,
      DiskUse use = DiskUse::read);
  HeldTensors(const HeldTensors&) = delete;
  HeldTensors& operator=(const HeldTensors&) = delete;
  ~HeldTensors();

 private:
  std::map<DiskTensors*, std::vector<at::Tensor>> by_disk_;
};

/// Begins to bring those of the tensors that lie in files into memory, as far
/// as there is room.
void begin_fetch(const std::vector<at::Tensor>& tensors);

}  // namespace accelerate::detail
