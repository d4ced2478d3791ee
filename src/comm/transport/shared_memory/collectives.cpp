#include "comm/transport/shared_memory/collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/transport/shared_memory/collective.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kSlot = SegmentLayout::kSlotBytes;
// All-reduces of at most so many bytes, of all ranks together, are reduced by
// each rank as a whole: one wait instead of two.
constexpr std::size_t kShort = std::size_t{32} << 10U;

std::uint64_t steps_for(std::size_t bytes, std::size_t per_step) {
  return std::max<std::size_t>((bytes + per_step - 1) / per_step, 1);
}

CollectiveStamp
stamp_of(CollectiveKind kind, std::size_t bytes, int root = -1) {
  return {
      .bytes = bytes, .root = root, .kind = static_cast<std::uint8_t>(kind)};
}

CollectiveStamp stamp_of(
    CollectiveKind kind,
    std::size_t bytes,
    const Combination& how,
    int root = -1) {
  CollectiveStamp stamp = stamp_of(kind, bytes, root);
  stamp.dtype = static_cast<std::uint8_t>(how.dtype);
  stamp.op = static_cast<std::uint8_t>(how.op);
  return stamp;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The bytes of one step.
struct Piece {
  std::size_t begin = 0;
  std::size_t size = 0;
};

Piece piece_of(std::uint64_t step, std::size_t per_step, std::size_t total) {
  const std::size_t begin =
      std::min(static_cast<std::size_t>(step) * per_step, total);
  return {.begin = begin, .size = std::min(per_step, total - begin)};
}

class Barrier final : public Collective {
  Shape begin(Fabric&) override {
    return {.stamp = stamp_of(CollectiveKind::barrier, 0)};
  }
  void write(Fabric&, std::uint64_t, std::byte*) override {}
  void read(Fabric&, std::uint64_t) override {}
};

class Broadcast final : public Collective {
 public:
  Broadcast(std::byte* data, std::size_t bytes, int root)
      : data_(data), bytes_(bytes), root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    return {
        .stamp = stamp_of(CollectiveKind::broadcast, bytes_, root_),
        .num_steps = steps_for(bytes_, kSlot),
        .awaited = fabric.rank() == root_ ? kNobody : root_};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() != root_) return;
    const Piece piece = piece_of(step, kSlot, bytes_);
    copy_bytes(slot, data_ + piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    copy_bytes(data_ + piece.begin, slot_of(fabric, root_, step), piece.size);
  }

  std::byte* data_;
  std::size_t bytes_;
  int root_;
};

class AllGather final : public Collective {
 public:
  AllGather(std::byte* output, const std::byte* input, std::size_t bytes)
      : output_(output), input_(input), bytes_(bytes) {}

 private:
  Shape begin(Fabric&) override {
    return {
        .stamp = stamp_of(CollectiveKind::all_gather, bytes_),
        .num_steps = steps_for(bytes_, kSlot)};
  }
  void write(Fabric&, std::uint64_t step, std::byte* slot) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    copy_bytes(slot, input_ + piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      std::byte* const to =
          output_ + static_cast<std::size_t>(rank) * bytes_ + piece.begin;
      const std::byte* const from = rank == fabric.rank()
          ? input_ + piece.begin
          : slot_of(fabric, rank, step);
      if (to != from) copy_bytes(to, from, piece.size);
    }
  }

  std::byte* output_;
  const std::byte* input_;
  std::size_t bytes_;
};

// A reduction of slots, all of it on the ranks that read: all, or one.
class WholeReduce final : public Collective {
 public:
  WholeReduce(
      CollectiveKind kind,
      std::byte* data,
      std::size_t bytes,
      const Combination& how,
      int root)
      : kind_(kind), data_(data), bytes_(bytes), how_(how), root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    const bool reads = root_ < 0 || fabric.rank() == root_;
    sources_.resize(static_cast<std::size_t>(fabric.size()));
    return {
        .stamp = stamp_of(kind_, bytes_, how_, root_),
        .num_steps = steps_for(bytes_, kSlot),
        .awaited = reads ? kEverybody : kNobody};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() == root_) return;
    const Piece piece = piece_of(step, kSlot, bytes_);
    copy_bytes(slot, data_ + piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    std::byte* const own = data_ + piece.begin;
    for (int rank = 0; rank < fabric.size(); ++rank) {
      sources_[static_cast<std::size_t>(rank)] =
          rank == fabric.rank() ? own : slot_of(fabric, rank, step);
    }
    how_.function(
        own, sources_.data(), fabric.size(), piece.size / how_.element_bytes);
  }

  CollectiveKind kind_;
  std::byte* data_;
  std::size_t bytes_;
  Combination how_;
  int root_;
  std::vector<const void*> sources_;
};

// Each rank reduces its part of a step's elements, and the others copy it. What
// a rank reduces itself does not pass through its slot before.
class PartedAllReduce final : public Collective {
 public:
  PartedAllReduce(std::byte* data, std::size_t bytes, const Combination& how)
      : data_(data), bytes_(bytes), how_(how) {}

 private:
  Shape begin(Fabric& fabric) override {
    sources_.resize(static_cast<std::size_t>(fabric.size()));
    return {
        .stamp = stamp_of(CollectiveKind::all_reduce, bytes_, how_),
        .num_steps = steps_for(bytes_, kSlot),
        .combines = true};
  }

  // The part of `rank`, within the piece.
  [[nodiscard]] Piece
  part_of(const Fabric& fabric, const Piece& piece, int rank) const {
    const auto size = static_cast<std::size_t>(fabric.size());
    // A multiple of the cache line, and so of every element.
    const std::size_t lines =
        (piece.size + size * kCacheLine - 1) / (size * kCacheLine);
    const std::size_t each = lines * kCacheLine;
    return piece_of(static_cast<std::uint64_t>(rank), each, piece.size);
  }

  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    const Piece own = part_of(fabric, piece, fabric.rank());
    const std::byte* const from = data_ + piece.begin;
    copy_bytes(slot, from, own.begin);
    const std::size_t after = own.begin + own.size;
    copy_bytes(slot + after, from + after, piece.size - after);
  }

  void combine(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    const Piece part = part_of(fabric, piece, fabric.rank());
    if (part.size == 0) return;
    std::byte* const own = data_ + piece.begin + part.begin;
    for (int rank = 0; rank < fabric.size(); ++rank) {
      sources_[static_cast<std::size_t>(rank)] = rank == fabric.rank()
          ? own
          : slot_of(fabric, rank, step) + part.begin;
    }
    how_.function(
        own, sources_.data(), fabric.size(), part.size / how_.element_bytes);
    copy_bytes(
        slot_of(fabric, fabric.rank(), step) + part.begin, own, part.size);
  }

  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlot, bytes_);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      if (rank == fabric.rank()) continue;
      const Piece part = part_of(fabric, piece, rank);
      copy_bytes(
          data_ + piece.begin + part.begin,
          slot_of(fabric, rank, step) + part.begin,
          part.size);
    }
  }

  std::byte* data_;
  std::size_t bytes_;
  Combination how_;
  std::vector<const void*> sources_;
};

class ReduceScatter final : public Collective {
 public:
  ReduceScatter(
      std::byte* output,
      const std::byte* input,
      std::size_t bytes,
      const Combination& how)
      : output_(output), input_(input), bytes_(bytes), how_(how) {}

 private:
  Shape begin(Fabric& fabric) override {
    const auto size = static_cast<std::size_t>(fabric.size());
    sources_.resize(size);
    per_step_ = kSlot / size / kCacheLine * kCacheLine;
    return {
        .stamp = stamp_of(CollectiveKind::reduce_scatter, bytes_ * size, how_),
        .num_steps = steps_for(bytes_, per_step_)};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    const Piece piece = piece_of(step, per_step_, bytes_);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      if (rank == fabric.rank()) continue;
      const auto index = static_cast<std::size_t>(rank);
      copy_bytes(
          slot + index * per_step_,
          input_ + index * bytes_ + piece.begin,
          piece.size);
    }
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, per_step_, bytes_);
    const auto own = static_cast<std::size_t>(fabric.rank());
    for (int rank = 0; rank < fabric.size(); ++rank) {
      sources_[static_cast<std::size_t>(rank)] = rank == fabric.rank()
          ? input_ + own * bytes_ + piece.begin
          : slot_of(fabric, rank, step) + own * per_step_;
    }
    how_.function(
        output_ + piece.begin,
        sources_.data(),
        fabric.size(),
        piece.size / how_.element_bytes);
  }

  std::byte* output_;
  const std::byte* input_;
  std::size_t bytes_;
  Combination how_;
  std::size_t per_step_ = 0;
  std::vector<const void*> sources_;
};

}  // namespace

std::unique_ptr<Operation> make_barrier() {
  return std::make_unique<Barrier>();
}

std::unique_ptr<Operation>
make_broadcast(std::byte* data, std::size_t bytes, int root) {
  return std::make_unique<Broadcast>(data, bytes, root);
}

std::unique_ptr<Operation> make_all_gather(
    std::byte* output,
    const std::byte* input,
    std::size_t input_bytes) {
  return std::make_unique<AllGather>(output, input, input_bytes);
}

std::unique_ptr<Operation> make_all_reduce(
    std::byte* data,
    std::size_t bytes,
    const Combination& how,
    int num_ranks) {
  if (bytes * static_cast<std::size_t>(num_ranks) > kShort)
    return std::make_unique<PartedAllReduce>(data, bytes, how);
  return std::make_unique<WholeReduce>(
      CollectiveKind::all_reduce, data, bytes, how, /*root=*/-1);
}

std::unique_ptr<Operation> make_reduce(
    std::byte* data,
    std::size_t bytes,
    const Combination& how,
    int root) {
  return std::make_unique<WholeReduce>(
      CollectiveKind::reduce, data, bytes, how, root);
}

std::unique_ptr<Operation> make_reduce_scatter(
    std::byte* output,
    const std::byte* input,
    std::size_t output_bytes,
    const Combination& how) {
  return std::make_unique<ReduceScatter>(output, input, output_bytes, how);
}

}  // namespace accelerate::detail
