#include "comm/transport/shared_memory/shared_tensor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>

#include "comm/transport/shared_memory/memory/shared_blocks.h"
#include "comm/transport/shared_memory/operations/collectives.h"

namespace accelerate::detail {

namespace {

using Ticket = std::array<char, 256>;

template <class Container>
HostTensor bytes_in(Container& container) {
  const std::array<std::int64_t, 1> sizes{
      static_cast<std::int64_t>(container.size())};
  const std::array<std::int64_t, 1> strides{1};
  return {
      reinterpret_cast<std::byte*>(container.data()),
      at::kByte,
      sizes,
      strides};
}

void run(ProgressEngine& engine, std::shared_ptr<Operation> operation) {
  engine.begin(operation);
  engine.wait(*operation);
}

std::optional<SharedSegment> map_together(
    ProgressEngine& engine,
    std::size_t bytes) {
  std::optional<SharedSegment> segment;
  Ticket ticket{};
  try {
    if (engine.rank() == 0) {
      segment.emplace(SharedSegment::create(bytes, "accelerate-gradients"));
      const std::string text = segment->ticket();
      std::copy_n(
          text.data(), std::min(text.size(), ticket.size() - 1), ticket.data());
    }
    run(engine, make_broadcast(bytes_in(ticket), 0));
    if (engine.rank() != 0 && ticket[0] != '\0')
      segment.emplace(SharedSegment::open(ticket.data()));
  } catch (const SegmentError&) {
    // In this case rank 0 has not sent its ticket yet, and must send it, even
    // though it is empty.
    if (engine.rank() == 0) run(engine, make_broadcast(bytes_in(ticket), 0));
  }
  std::array<std::uint8_t, 1> own{segment ? std::uint8_t{1} : std::uint8_t{0}};
  std::vector<std::uint8_t> all(static_cast<std::size_t>(engine.size()));
  run(engine, make_all_gather(bytes_in(all).memory, bytes_in(own)));
  if (segment) segment->close_ticket();
  if (std::ranges::find(all, 0) != all.end()) return std::nullopt;
  return segment;
}

}  // namespace

at::Tensor shared_tensor(ProgressEngine& engine, std::int64_t bytes) {
  const auto count = static_cast<std::size_t>(bytes);
  std::optional<SharedSegment> segment =
      map_together(engine, SharedBlock::segment_bytes(count, engine.size()));
  if (!segment) return {};
  auto block = std::make_shared<SharedBlock>(*std::move(segment), count);
  engine.blocks().add(block, engine.size());
  std::byte* const memory = block->part(engine.rank());
  return at::from_blob(
      memory,
      {bytes},
      // A forked process drops only its copy, not the memory its parent uses.
      [block = std::move(block), process = ::getpid()](void*) {
        if (::getpid() == process) block->release();
      },
      at::TensorOptions(at::kByte));
}

}  // namespace accelerate::detail
