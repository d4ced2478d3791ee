#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/transport/shared_memory/operations/collective.h"
#include "comm/transport/shared_memory/operations/steps.h"

namespace accelerate::detail {

namespace {

// In all-reduces of at most this many bytes, summed over all ranks, every rank
// reduces all of the data: one wait instead of two.
constexpr std::size_t kShort = std::size_t{32} << 10U;
// Number of bytes reduced and then copied while in the cache.
constexpr std::size_t kCached = std::size_t{16} << 10U;

CollectiveStamp stamp_of(
    const HostTensor& data,
    CollectiveKind kind,
    const Combination& how,
    int root = -1) {
  CollectiveStamp stamp = data.stamp(kind, root);
  stamp.op = static_cast<std::uint8_t>(how.op);
  return stamp;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Combines `bytes` of the ranks' `sources`.
void combine_bytes(
    const Combination& how,
    std::byte* to,
    const std::vector<const void*>& sources,
    std::size_t bytes) {
  how.function(
      to,
      sources.data(),
      static_cast<int>(sources.size()),
      bytes / how.element_bytes);
}

// A reduction in which every reading rank (all, or one) reduces all of the
// slots.
class WholeReduce final : public Collective {
 public:
  WholeReduce(
      CollectiveKind kind,
      const HostTensor& data,
      const Combination& how,
      int root)
      : data_(data.memory),
        stamp_(stamp_of(data, kind, how, root)),
        how_(how),
        root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    const bool reads = root_ < 0 || fabric.rank() == root_;
    sources_.resize(index_of(fabric.size()));
    return {
        .stamp = stamp_,
        .num_steps = num_pieces(data_.bytes(), kSlotBytes),
        .awaited = reads ? kAllRanks : kNoRank};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() == root_) return;
    const Piece piece = piece_of(step, kSlotBytes, data_.bytes());
    data_.copy_out(slot, piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlotBytes, data_.bytes());
    std::byte* own = data_.contiguous();
    if (own != nullptr) {
      own += piece.begin;
    } else {
      scratch_.resize(piece.size);
      own = scratch_.data();
      data_.copy_out(own, piece.begin, piece.size);
    }
    for (int rank = 0; rank < fabric.size(); ++rank) {
      sources_[index_of(rank)] =
          rank == fabric.rank() ? own : slot_of(fabric, rank, step);
    }
    combine_bytes(how_, own, sources_, piece.size);
    if (data_.contiguous() == nullptr)
      data_.copy_in(piece.begin, own, piece.size);
  }

  HostMemory data_;
  CollectiveStamp stamp_;
  Combination how_;
  int root_;
  std::vector<const void*> sources_;
  std::vector<std::byte> scratch_;
};

// Each rank reduces its part of a step's elements, and the others copy the
// result. A rank does not write the part that it reduces itself to its slot
// first. Ranks whose data is in memory that all ranks map (SharedBlocks) copy
// nothing: the others read the data and write the results there. If all ranks'
// data is, the second step is the last.
class PartedAllReduce final : public Collective {
 public:
  PartedAllReduce(const HostTensor& data, const Combination& how)
      : data_(data.memory),
        stamp_(stamp_of(data, CollectiveKind::all_reduce, how)),
        how_(how) {}

 private:
  Shape begin(Fabric& fabric) override {
    sources_.resize(index_of(fabric.size()));
    const std::byte* const data = data_.contiguous();
    if (data != nullptr)
      place_ = fabric.blocks().locate(fabric.rank(), data, data_.bytes());
    return {
        .stamp = stamp_,
        .note = place_,
        .num_steps = num_pieces(data_.bytes(), kSlotBytes),
        .combines = true};
  }

  std::uint64_t settle(Fabric& fabric, std::uint64_t num_steps) override {
    mapped_.resize(index_of(fabric.size()));
    all_are_mapped_ = true;
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const CollectiveNote& note =
          rank == fabric.rank() ? place_ : note_of(fabric, rank);
      mapped_[index_of(rank)] = fabric.blocks().find(rank, note);
      all_are_mapped_ = all_are_mapped_ && mapped_[index_of(rank)] != nullptr;
    }
    return all_are_mapped_ ? std::min<std::uint64_t>(num_steps, 2) : num_steps;
  }

  [[nodiscard]] bool is_mapped() const { return place_.block >= 0; }

  [[nodiscard]] Piece piece(std::uint64_t step) const {
    if (all_are_mapped_ && step == 1)
      return {.begin = kSlotBytes, .size = data_.bytes() - kSlotBytes};
    return piece_of(step, kSlotBytes, data_.bytes());
  }

  // The part of `rank`, within the piece.
  static Piece part_of(const Fabric& fabric, const Piece& piece, int rank) {
    const std::size_t size = index_of(fabric.size());
    // A multiple of the cache line, and so of every element.
    const std::size_t lines =
        (piece.size + size * kCacheLine - 1) / (size * kCacheLine);
    return piece_of(
        static_cast<std::uint64_t>(rank), lines * kCacheLine, piece.size);
  }

  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (is_mapped()) return;
    const Piece now = piece(step);
    const Piece own = part_of(fabric, now, fabric.rank());
    const bool is_contiguous = data_.contiguous() != nullptr;
    // Strided data is reduced in the slot.
    const std::size_t skipped = is_contiguous ? own.size : 0;
    const std::size_t after = own.begin + skipped;
    data_.copy_out(slot, now.begin, own.begin);
    data_.copy_out(slot + after, now.begin + after, now.size - after);
  }

  void combine(Fabric& fabric, std::uint64_t step) override {
    const Piece now = piece(step);
    const Piece part = part_of(fabric, now, fabric.rank());
    for (std::size_t at = 0; at < part.size; at += kCached) {
      combine_some(
          fabric,
          step,
          now.begin,
          part.begin + at,
          std::min(kCached, part.size - at));
    }
  }

  // Reduces `bytes` that begin at `begin` of the piece at `piece_begin`.
  void combine_some(
      Fabric& fabric,
      std::uint64_t step,
      std::size_t piece_begin,
      std::size_t begin,
      std::size_t bytes) {
    const int me = fabric.rank();
    std::byte* const slot = slot_of(fabric, me, step) + begin;
    std::byte* const own = data_.contiguous() != nullptr
        ? data_.contiguous() + piece_begin + begin
        : slot;
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const std::byte* const mapped = mapped_[index_of(rank)];
      sources_[index_of(rank)] = rank == me ? own
          : mapped != nullptr               ? mapped + piece_begin + begin
                              : slot_of(fabric, rank, step) + begin;
    }
    combine_bytes(how_, own, sources_, bytes);
    if (own == slot) data_.copy_in(piece_begin + begin, own, bytes);
    if (!all_are_mapped_ && own != slot) copy_bytes(slot, own, bytes);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      std::byte* const mapped = mapped_[index_of(rank)];
      if (rank != me && mapped != nullptr)
        copy_bytes(mapped + piece_begin + begin, own, bytes);
    }
  }

  void read(Fabric& fabric, std::uint64_t step) override {
    if (is_mapped()) return;
    const Piece now = piece(step);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      if (rank == fabric.rank()) continue;
      const Piece part = part_of(fabric, now, rank);
      data_.copy_in(
          now.begin + part.begin,
          slot_of(fabric, rank, step) + part.begin,
          part.size);
    }
  }

  HostMemory data_;
  CollectiveStamp stamp_;
  Combination how_;
  CollectiveNote place_;
  // The ranks' data; null for ranks whose data passes through slots.
  std::vector<std::byte*> mapped_;
  bool all_are_mapped_ = false;
  std::vector<const void*> sources_;
};

class ReduceScatter final : public Collective {
 public:
  ReduceScatter(
      const HostMemory& output,
      const HostTensor& input,
      const Combination& how)
      : output_(output),
        input_(input.memory),
        stamp_(stamp_of(input, CollectiveKind::reduce_scatter, how)),
        how_(how) {}

 private:
  Shape begin(Fabric& fabric) override {
    sources_.resize(index_of(fabric.size()));
    per_step_ = share_of_slot(fabric);
    return {
        .stamp = stamp_, .num_steps = num_pieces(output_.bytes(), per_step_)};
  }

  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    const Piece piece = piece_of(step, per_step_, output_.bytes());
    for (int rank = 0; rank < fabric.size(); ++rank) {
      if (rank == fabric.rank()) continue;
      input_.copy_out(
          slot + place_in_slot(fabric, fabric.rank(), rank),
          index_of(rank) * output_.bytes() + piece.begin,
          piece.size);
    }
  }

  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, per_step_, output_.bytes());
    const int me = fabric.rank();
    const std::size_t begin = index_of(me) * output_.bytes() + piece.begin;
    std::byte* const input = input_.contiguous();
    std::byte* const output = output_.contiguous();
    if (input == nullptr || output == nullptr) scratch_.resize(piece.size);
    if (input == nullptr) input_.copy_out(scratch_.data(), begin, piece.size);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      sources_[index_of(rank)] = rank != me
          ? slot_of(fabric, rank, step) + place_in_slot(fabric, rank, me)
          : input != nullptr ? input + begin
                             : scratch_.data();
    }
    std::byte* const to =
        output != nullptr ? output + piece.begin : scratch_.data();
    combine_bytes(how_, to, sources_, piece.size);
    if (output == nullptr) output_.copy_in(piece.begin, to, piece.size);
  }

  HostMemory output_;
  HostMemory input_;
  CollectiveStamp stamp_;
  Combination how_;
  std::size_t per_step_ = 0;
  std::vector<const void*> sources_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Operation>
make_all_reduce(const HostTensor& data, const Combination& how, int num_ranks) {
  if (data.memory.bytes() * index_of(num_ranks) > kShort)
    return std::make_unique<PartedAllReduce>(data, how);
  return std::make_unique<WholeReduce>(
      CollectiveKind::all_reduce, data, how, /*root=*/-1);
}

std::unique_ptr<Operation>
make_reduce(const HostTensor& data, const Combination& how, int root) {
  return std::make_unique<WholeReduce>(CollectiveKind::reduce, data, how, root);
}

std::unique_ptr<Operation> make_reduce_scatter(
    const HostMemory& output,
    const HostTensor& input,
    const Combination& how) {
  return std::make_unique<ReduceScatter>(output, input, how);
}

}  // namespace accelerate::detail
