#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text/text.h"
#include "comm/transport/shared_memory/operations/collective.h"
#include "comm/transport/shared_memory/operations/failure.h"
#include "comm/transport/shared_memory/operations/steps.h"

namespace accelerate::detail {

namespace {

// Copies between two places of this rank, through `scratch` if neither is
// contiguous.
void copy_between(
    const HostMemory& to,
    std::size_t to_begin,
    const HostMemory& from,
    std::size_t from_begin,
    std::size_t bytes,
    std::vector<std::byte>& scratch) {
  std::byte* const source = from.contiguous();
  std::byte* const target = to.contiguous();
  if (bytes == 0) return;
  if (source != nullptr) {
    if (source + from_begin != target + (target == nullptr ? 0 : to_begin))
      to.copy_in(to_begin, source + from_begin, bytes);
  } else if (target != nullptr) {
    from.copy_out(target + to_begin, from_begin, bytes);
  } else {
    scratch.resize(bytes);
    from.copy_out(scratch.data(), from_begin, bytes);
    to.copy_in(to_begin, scratch.data(), bytes);
  }
}

class Barrier final : public Collective {
 public:
  explicit Barrier(const CollectiveStamp& stamp) : stamp_(stamp) {}

 private:
  Shape begin(Fabric&) override { return {.stamp = stamp_}; }
  void write(Fabric&, std::uint64_t, std::byte*) override {}
  void read(Fabric&, std::uint64_t) override {}

  CollectiveStamp stamp_;
};

class Broadcast final : public Collective {
 public:
  Broadcast(const HostTensor& data, int root)
      : data_(data.memory),
        stamp_(data.stamp(CollectiveKind::broadcast, root)),
        root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    return {
        .stamp = stamp_,
        .num_steps = num_pieces(data_.bytes(), kSlotBytes),
        .awaited = fabric.rank() == root_ ? kNoRank : root_};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() != root_) return;
    const Piece piece = piece_of(step, kSlotBytes, data_.bytes());
    data_.copy_out(slot, piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlotBytes, data_.bytes());
    data_.copy_in(piece.begin, slot_of(fabric, root_, step), piece.size);
  }

  HostMemory data_;
  CollectiveStamp stamp_;
  int root_;
};

class AllGather final : public Collective {
 public:
  AllGather(const HostMemory& output, const HostTensor& input)
      : output_(output),
        input_(input.memory),
        stamp_(input.stamp(CollectiveKind::all_gather)) {}

 private:
  Shape begin(Fabric&) override {
    return {
        .stamp = stamp_, .num_steps = num_pieces(input_.bytes(), kSlotBytes)};
  }
  void write(Fabric&, std::uint64_t step, std::byte* slot) override {
    const Piece piece = piece_of(step, kSlotBytes, input_.bytes());
    input_.copy_out(slot, piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlotBytes, input_.bytes());
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const std::size_t to = index_of(rank) * input_.bytes() + piece.begin;
      if (rank == fabric.rank()) {
        copy_between(output_, to, input_, piece.begin, piece.size, scratch_);
      } else {
        output_.copy_in(to, slot_of(fabric, rank, step), piece.size);
      }
    }
  }

  HostMemory output_;
  HostMemory input_;
  CollectiveStamp stamp_;
  std::vector<std::byte> scratch_;
};

class Gather final : public Collective {
 public:
  Gather(std::vector<HostMemory> outputs, const HostTensor& input, int root)
      : outputs_(std::move(outputs)),
        input_(input.memory),
        stamp_(input.stamp(CollectiveKind::gather, root)),
        root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    return {
        .stamp = stamp_,
        .num_steps = num_pieces(input_.bytes(), kSlotBytes),
        .awaited = fabric.rank() == root_ ? kAllRanks : kNoRank};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() == root_) return;
    const Piece piece = piece_of(step, kSlotBytes, input_.bytes());
    input_.copy_out(slot, piece.begin, piece.size);
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, kSlotBytes, input_.bytes());
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const HostMemory& output = outputs_[index_of(rank)];
      if (rank == root_) {
        copy_between(
            output, piece.begin, input_, piece.begin, piece.size, scratch_);
      } else {
        output.copy_in(piece.begin, slot_of(fabric, rank, step), piece.size);
      }
    }
  }

  std::vector<HostMemory> outputs_;
  HostMemory input_;
  CollectiveStamp stamp_;
  int root_;
  std::vector<std::byte> scratch_;
};

class Scatter final : public Collective {
 public:
  Scatter(const HostTensor& output, std::vector<HostMemory> inputs, int root)
      : output_(output.memory),
        inputs_(std::move(inputs)),
        stamp_(output.stamp(CollectiveKind::scatter, root)),
        root_(root) {}

 private:
  Shape begin(Fabric& fabric) override {
    share_ = share_of_slot(fabric);
    return {
        .stamp = stamp_,
        .num_steps = num_pieces(output_.bytes(), share_),
        .awaited = fabric.rank() == root_ ? kNoRank : root_};
  }
  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    if (fabric.rank() != root_) return;
    const Piece piece = piece_of(step, share_, output_.bytes());
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const HostMemory& input = inputs_[index_of(rank)];
      if (rank == root_) {
        copy_between(
            output_, piece.begin, input, piece.begin, piece.size, scratch_);
      } else {
        input.copy_out(
            slot + place_in_slot(fabric, root_, rank), piece.begin, piece.size);
      }
    }
  }
  void read(Fabric& fabric, std::uint64_t step) override {
    const Piece piece = piece_of(step, share_, output_.bytes());
    const std::byte* const slot = slot_of(fabric, root_, step);
    output_.copy_in(
        piece.begin,
        slot + place_in_slot(fabric, root_, fabric.rank()),
        piece.size);
  }

  HostMemory output_;
  std::vector<HostMemory> inputs_;
  CollectiveStamp stamp_;
  int root_;
  std::size_t share_ = 0;
  std::vector<std::byte> scratch_;
};

class AllToAll final : public Collective {
 public:
  AllToAll(
      const HostTensor& output,
      const HostTensor& input,
      std::vector<std::size_t> output_bytes,
      std::vector<std::size_t> input_bytes)
      : output_(output.memory),
        input_(input.memory),
        stamp_(input.stamp(CollectiveKind::all_to_all)),
        output_bytes_(std::move(output_bytes)),
        input_bytes_(std::move(input_bytes)) {
    // Ranks may send different amounts.
    stamp_.bytes = stamp_.num_dims = 0;
    stamp_.sizes = {};
    std::size_t begin = 0;
    for (const std::size_t bytes : output_bytes_)
      output_begins_.push_back(std::exchange(begin, begin + bytes));
    begin = 0;
    for (const std::size_t bytes : input_bytes_)
      input_begins_.push_back(std::exchange(begin, begin + bytes));
  }

 private:
  // In the first step, a part begins with its total number of bytes in all
  // steps.
  static constexpr std::size_t kHeader = kCacheLine;

  Shape begin(Fabric& fabric) override {
    share_ = share_of_slot(fabric);
    const std::size_t longest = *std::ranges::max_element(input_bytes_);
    return {.stamp = stamp_, .note = {.longest = longest}};
  }

  std::uint64_t settle(Fabric& fabric, std::uint64_t) override {
    std::uint64_t longest = *std::ranges::max_element(input_bytes_);
    for (int rank = 0; rank < fabric.size(); ++rank) {
      if (rank == fabric.rank()) continue;
      longest = std::max(longest, note_of(fabric, rank).longest);
      std::uint64_t sent = 0;
      std::memcpy(&sent, part_from(fabric, rank, 0), sizeof sent);
      const std::size_t expected = output_bytes_[index_of(rank)];
      if (sent == expected) continue;
      throw DisagreementError(
          rank,
          format("all_to_all expecting {} bytes of that rank", expected),
          format("all_to_all sending it {} bytes", sent));
    }
    return num_pieces(kHeader + longest, share_);
  }

  // The bytes of a part that are sent in this step.
  [[nodiscard]] Piece piece(std::uint64_t step, std::size_t total) const {
    Piece found = piece_of(step, share_, kHeader + total);
    const std::size_t header = step == 0 ? kHeader : 0;
    found.size -= std::min(found.size, header);
    found.begin -= std::min(found.begin, kHeader - header);
    return found;
  }

  std::byte* part_from(Fabric& fabric, int rank, std::uint64_t step) const {
    return slot_of(fabric, rank, step) +
        place_in_slot(fabric, rank, fabric.rank());
  }

  void write(Fabric& fabric, std::uint64_t step, std::byte* slot) override {
    for (int rank = 0; rank < fabric.size(); ++rank) {
      const std::size_t total = input_bytes_[index_of(rank)];
      const Piece now = piece(step, total);
      const std::size_t begin = input_begins_[index_of(rank)] + now.begin;
      if (rank == fabric.rank()) {
        copy_between(
            output_,
            output_begins_[index_of(rank)] + now.begin,
            input_,
            begin,
            std::min(now.size, output_bytes_[index_of(rank)]),
            scratch_);
        continue;
      }
      std::byte* to = slot + place_in_slot(fabric, fabric.rank(), rank);
      if (step == 0) {
        const std::uint64_t bytes = total;
        std::memcpy(to, &bytes, sizeof bytes);
        to += kHeader;
      }
      input_.copy_out(to, begin, now.size);
    }
  }

  void read(Fabric& fabric, std::uint64_t step) override {
    // Begins with the neighbour, so that not all ranks read the same slot at
    // once.
    for (int distance = 1; distance < fabric.size(); ++distance) {
      const int rank = (fabric.rank() + distance) % fabric.size();
      const Piece now = piece(step, output_bytes_[index_of(rank)]);
      output_.copy_in(
          output_begins_[index_of(rank)] + now.begin,
          part_from(fabric, rank, step) + (step == 0 ? kHeader : 0),
          now.size);
    }
  }

  HostMemory output_;
  HostMemory input_;
  CollectiveStamp stamp_;
  std::vector<std::size_t> output_bytes_;
  std::vector<std::size_t> input_bytes_;
  std::vector<std::size_t> output_begins_;
  std::vector<std::size_t> input_begins_;
  std::size_t share_ = 0;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Operation> make_barrier(const CollectiveStamp& stamp) {
  return std::make_unique<Barrier>(stamp);
}

std::unique_ptr<Operation> make_broadcast(const HostTensor& data, int root) {
  return std::make_unique<Broadcast>(data, root);
}

std::unique_ptr<Operation> make_all_gather(
    const HostMemory& output,
    const HostTensor& input) {
  return std::make_unique<AllGather>(output, input);
}

std::unique_ptr<Operation> make_gather(
    std::vector<HostMemory> outputs,
    const HostTensor& input,
    int root) {
  return std::make_unique<Gather>(std::move(outputs), input, root);
}

std::unique_ptr<Operation> make_scatter(
    const HostTensor& output,
    std::vector<HostMemory> inputs,
    int root) {
  return std::make_unique<Scatter>(output, std::move(inputs), root);
}

std::unique_ptr<Operation> make_all_to_all(
    const HostTensor& output,
    const HostTensor& input,
    std::vector<std::size_t> output_bytes,
    std::vector<std::size_t> input_bytes) {
  return std::make_unique<AllToAll>(
      output, input, std::move(output_bytes), std::move(input_bytes));
}

}  // namespace accelerate::detail
