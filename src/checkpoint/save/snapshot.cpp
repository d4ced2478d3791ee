#include "checkpoint/save/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/process/jobs.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = 2U << 20U;
// Number of bytes that a thread copies in one piece.
constexpr std::size_t kPiece = 8U << 20U;

std::size_t aligned(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

bool is_flat(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
      !tensor.is_neg();
}

// Copies tensors one by one, since states are small.
StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [key, value] : state.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      copy.set(
          key,
          tensor->defined()
              ? tensor->detach().to(
                    at::kCPU, /*non_blocking=*/false, /*copy=*/true)
              : at::Tensor());
    } else if (const auto* inner = std::get_if<StateDict>(&value)) {
      copy.set(key, copy_of(*inner));
    } else if (const auto* list = std::get_if<std::vector<StateDict>>(&value)) {
      std::vector<StateDict> copies;
      for (const StateDict& each : *list) copies.push_back(copy_of(each));
      copy.set(key, std::move(copies));
    } else {
      copy.set(key, value);
    }
  }
  return copy;
}

// Pairs of a copy and its source.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

// Queues the copies on a side stream, after the work already queued on the
// current stream and before later work. Returns an event that completes with
// the copies; null if there are none.
std::unique_ptr<c10::Event> copy_on_side_stream(
    at::Device device,
    const Copies& copies) {
  if (copies.empty()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream main = guard.getStream(device);
  const c10::Stream side = guard.getStreamFromGlobalPool(device);
  c10::Event ready(device.type());
  ready.record(main);
  ready.block(side);
  auto done = std::make_unique<c10::Event>(device.type());
  {
    const c10::StreamGuard on_stream(side);
    for (const auto& [copy, source] : copies) {
      copy.copy_(source, /*non_blocking=*/true);
      guard.recordDataPtrOnStream(source.storage().data_ptr(), side);
    }
  }
  done->record(side);
  done->block(main);
  return done;
}

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t size;
};

// Copies still to be made, grouped by method.
struct PendingCopies {
  std::vector<Piece> pieces;
  Copies on_host;
  Copies from_device;
  // Keeps tensors alive until they are copied.
  std::vector<at::Tensor> sources;
};

void add_pieces(
    std::vector<Piece>& pieces,
    std::byte* to,
    const at::Tensor& source) {
  const auto* const from =
      static_cast<const std::byte*>(source.const_data_ptr());
  for (std::size_t i = 0; i < source.nbytes(); i += kPiece) {
    pieces.push_back({to + i, from + i, std::min(kPiece, source.nbytes() - i)});
  }
}

// Replaces the tensors that this rank writes with tensors in `memory`, whose
// contents are pending, and drops the others.
PendingCopies replace_tensors(CheckpointContents& contents, std::byte* memory) {
  PendingCopies pending;
  for (Section& section : contents.sections) {
    for (SectionEntry& entry : section.entries) {
      if (!entry.is_writer) {
        entry.tensor = at::Tensor();
        continue;
      }
      const at::Tensor source = entry.tensor.detach();
      pending.sources.push_back(source);
      entry.tensor = at::from_blob(
          memory,
          source.sizes(),
          at::TensorOptions().dtype(source.scalar_type()).device(at::kCPU));
      if (is_flat(source)) {
        add_pieces(pending.pieces, memory, source);
      } else {
        (source.is_cpu() ? pending.on_host : pending.from_device)
            .emplace_back(entry.tensor, source);
      }
      memory += aligned(source.nbytes());
    }
  }
  return pending;
}

void copy_pieces(const std::vector<Piece>& pieces) {
  run_jobs(
      pieces.size(),
      num_helpful_threads(pieces.size()),
      [&](std::size_t, std::size_t i) {
        std::memcpy(pieces[i].to, pieces[i].from, pieces[i].size);
      });
}

// The accelerator that holds tensors of the checkpoint; the CPU if none does.
at::Device device_of_tensors(const CheckpointContents& contents) {
  at::Device device = at::kCPU;
  for (const Section& section : contents.sections) {
    for (const SectionEntry& entry : section.entries) {
      if (!entry.tensor.is_cpu()) device = entry.tensor.device();
    }
  }
  return device;
}

}  // namespace

SnapshotMemory::SnapshotMemory() = default;

SnapshotMemory::~SnapshotMemory() {
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

std::uint64_t SnapshotMemory::bytes_for(const CheckpointContents& contents) {
  std::uint64_t total = 0;
  for (const Section& section : contents.sections) {
    for (const SectionEntry& entry : section.entries) {
      if (entry.is_writer) total += aligned(entry.tensor.nbytes());
    }
  }
  return total;
}

void SnapshotMemory::reserve(std::size_t num_bytes) {
  if (num_bytes <= size_) return;
  if (memory_ != nullptr) ::munmap(std::exchange(memory_, nullptr), size_);
  size_ = 0;
  const std::size_t size = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const address = ::mmap(
      nullptr,
      size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (address == MAP_FAILED) {
    throw Error(format(
        "[checkpoint] cannot reserve {} bytes of memory for an asynchronous "
        "save: {}; save synchronously, or set a memory_limit",
        size,
        std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(address);
  size_ = size;
  ::madvise(memory_, size_, MADV_HUGEPAGE);
}

void SnapshotMemory::wait() const {
  if (copied_) copied_->synchronize();
}

void SnapshotMemory::reserve_pinned(std::size_t num_bytes) {
  if (pinned_.defined() && pinned_.nbytes() >= num_bytes) return;
  pinned_ = at::Tensor();
  pinned_ = at::empty(
      {static_cast<std::int64_t>(num_bytes)},
      at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

void SnapshotMemory::take(CheckpointContents& contents) {
  const at::NoGradGuard no_grad;
  const at::Device device = device_of_tensors(contents);
  std::byte* memory = nullptr;
  if (device.is_cpu()) {
    reserve(bytes_for(contents));
    memory = memory_;
  } else {
    reserve_pinned(bytes_for(contents));
    memory = static_cast<std::byte*>(pinned_.data_ptr());
  }
  const PendingCopies pending = replace_tensors(contents, memory);
  copy_pieces(pending.pieces);
  for (const auto& [copy, source] : pending.on_host) copy.copy_(source);
  copied_ = copy_on_side_stream(device, pending.from_device);
  contents.state = copy_of(contents.state);
  contents.rank_state = copy_of(contents.rank_state);
}

}  // namespace accelerate::detail
