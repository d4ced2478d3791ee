#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <accelerate/world.h>

#include "base/text/text.h"
#include "comm/collectives/run_collective.h"
#include "comm/transport/disagreement.h"

namespace accelerate {

namespace {

using detail::CallSite;

at::Tensor from_text(std::string_view text) {
  at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::ranges::copy(text, bytes.data_ptr<std::uint8_t>());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  const auto* const data =
      reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>());
  return {data, static_cast<std::size_t>(bytes.numel())};
}

// Travels before bytes: their number, and a mark. A rank that makes another call
// may send tensors of the same size.
constexpr std::int64_t kMark = 0x7365747962656361;  // "acebytes"

at::Tensor head_of(std::string_view bytes) {
  return at::tensor(
      {static_cast<std::int64_t>(bytes.size()), kMark}, at::kLong);
}

// Returns the number of bytes that group rank `from` announces.
std::int64_t num_bytes_in(
    const detail::GroupImpl& group,
    const char* operation,
    const at::Tensor& head,
    int from) {
  const auto* const words = head.const_data_ptr<std::int64_t>();
  if (words[1] == kMark) return words[0];
  C10_THROW_ERROR(
      DistBackendError,
      detail::describe_disagreement(
          {std::to_string(group.peer_in_world(group.rank)), operation},
          {std::to_string(group.peer_in_world(from)), "something else"}));
}

}  // namespace

std::string
Group::broadcast_bytes(std::string_view bytes, int src, CallSite site) const {
  detail::require_rank(*impl_, "broadcast_bytes", src);
  if (size() == 1) return std::string(bytes);
  return detail::run_collective(
      *impl_,
      {"broadcast_bytes", site, src},
      detail::format("from {}", src),
      [&] {
        const at::Tensor head = head_of(bytes);
        impl_->connection->broadcast(head, src)->wait();
        const std::int64_t count =
            num_bytes_in(*impl_, "broadcast_bytes", head, src);
        const at::Tensor content =
            rank() == src ? from_text(bytes) : at::empty({count}, at::kByte);
        if (count > 0) impl_->connection->broadcast(content, src)->wait();
        return to_text(content);
      });
}

std::vector<std::string> Group::all_gather_bytes(
    std::string_view bytes,
    CallSite site) const {
  if (size() == 1) return {std::string(bytes)};
  return detail::run_collective(*impl_, {"all_gather_bytes", site}, "", [&] {
    const at::Tensor heads = at::empty({size(), 2}, at::kLong);
    impl_->connection->all_gather(heads, head_of(bytes))->wait();
    std::vector<std::int64_t> lengths;
    for (int peer = 0; peer < size(); ++peer)
      lengths.push_back(
          num_bytes_in(*impl_, "all_gather_bytes", heads[peer], peer));
    const std::int64_t longest = *std::ranges::max_element(lengths);
    const at::Tensor padded = at::zeros({longest}, at::kByte);
    padded.narrow(0, 0, static_cast<std::int64_t>(bytes.size()))
        .copy_(from_text(bytes));
    const at::Tensor output = at::empty({size() * longest}, at::kByte);
    if (longest > 0) impl_->connection->all_gather(output, padded)->wait();
    std::vector<std::string> all;
    for (int peer = 0; peer < size(); ++peer) {
      all.push_back(to_text(output.narrow(
          0, peer * longest, lengths[static_cast<std::size_t>(peer)])));
    }
    return all;
  });
}

std::string Group::scatter_bytes(
    std::span<const std::string> parts,
    int src,
    CallSite site) const {
  detail::require_rank(*impl_, "scatter_bytes", src);
  if (rank() == src)
    detail::require_parts(*impl_, "scatter_bytes", parts.size());
  if (size() == 1) return parts[0];
  std::vector<at::Tensor> mine(
      static_cast<std::size_t>(size()), at::empty({0}, at::kByte));
  if (rank() == src) {
    std::ranges::transform(parts, mine.begin(), from_text);
  }
  return to_text(
      all_to_all(mine, site)[static_cast<std::size_t>(src)].contiguous());
}

}  // namespace accelerate
