#include "comm/agreement/store_group.h"

#include <algorithm>
#include <array>
#include <optional>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "comm/monitoring/world_board.h"
#include "comm/rendezvous/store.h"

namespace accelerate::detail {

namespace {

std::string packed(const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& value : values) {
    all += format("{}:{}", value.size(), value);
  }
  return all;
}

// Returns nothing if `all` is not what packed() made from `count` values.
std::optional<std::vector<std::string>> unpacked(
    std::string_view all,
    std::size_t count) {
  std::vector<std::string> values;
  while (!all.empty() && values.size() < count) {
    const std::size_t colon = all.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto size = parse_int(all.substr(0, colon));
    all.remove_prefix(colon + 1);
    if (!size || *size < 0 ||
        static_cast<unsigned long long>(*size) > all.size()) {
      return std::nullopt;
    }
    values.emplace_back(all.substr(0, static_cast<std::size_t>(*size)));
    all.remove_prefix(static_cast<std::size_t>(*size));
  }
  if (!all.empty() || values.size() != count) return std::nullopt;
  return values;
}

}  // namespace

StoreGroup::StoreGroup(
    const World& world,
    std::string name,
    std::vector<int> ranks)
    : board_(world.group().impl()->world->board),
      timeout_(world.timeout()),
      ranks_(std::move(ranks)),
      program_thread_(world.group().impl()->world->program_thread),
      rank_(world.rank()) {
  const auto me = std::ranges::find(ranks_, world.rank());
  if (me == ranks_.end()) {
    throw InternalError(
        "[comm] this rank must be in its own store group, but is not");
  }
  prefix_ = format("store_group/{}", std::move(name));
  place_ = static_cast<std::size_t>(me - ranks_.begin());
  if (ranks_.size() > 1) {
    store_ = c10::make_intrusive<c10d::PrefixStore>(
        prefix_, own_client(world.store()));
  }
}

std::string StoreGroup::wait_for(
    const std::string& key,
    int world_rank,
    const std::string& what) {
  constexpr std::chrono::milliseconds kCheckInterval{400};
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  const std::array peers{world_rank};
  std::vector<WaitingCall> waits;
  const BoardWaitScope wait(
      board_ == nullptr ? nullptr : &board_->writer(), what.c_str(), peers);
  try {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      if (wait_for_key(*store_, key, std::min(left, kCheckInterval))) {
        const std::vector<std::uint8_t> bytes = store_->get(key);
        return {bytes.begin(), bytes.end()};
      }
      if (std::chrono::steady_clock::now() >= deadline) break;
      if (is_cancelled_) {
        throw DistributedError(
            format("[comm] waiting in {} was cancelled on this rank", what));
      }
      look_at_others(key, world_rank, what, waits);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(format(
        "[comm] the store was lost in {}; rank 0, which serves it, has "
        "probably ended ({})",
        what,
        std::string_view(error.what()).substr(0, 200)));
  }
  throw DistributedError(format(
      "[comm] rank {} did not reach {} within {} s: it has ended, is stuck, or "
      "is executing a different call; all ranks must make this call",
      world_rank,
      what,
      std::chrono::duration<double>(timeout_).count()));
}

void StoreGroup::look_at_others(
    const std::string& key,
    int awaited,
    const std::string& what,
    std::vector<WaitingCall>& waits) {
  try {
    require_no_circle(awaited, what, waits);
    if (check_) check_(what);
  } catch (const DistributedError& error) {
    // The other rank wrote it, and moved on, after this one had last looked.
    if (store_->check({key})) return;
    if (board_ != nullptr) board_->writer().fail(error.what());
    throw;
  }
}

void StoreGroup::require_no_circle(
    int awaited,
    const std::string& what,
    std::vector<WaitingCall>& waits) {
  if (!ends_circular_waits_ || board_ == nullptr ||
      std::this_thread::get_id() != program_thread_)
    return;
  const std::vector<WaitingCall> before = std::exchange(
      waits,
      find_circular_wait(read_activities(board_->board()), rank_, awaited));
  if (waits.empty() || !is_same_wait(before, waits)) return;
  throw DistributedError(describe_circular_wait(waits, rank_, what));
}

void StoreGroup::forget(const std::string& key) {
  try {
    store_->deleteKey(key);
  } catch (const std::exception&) {
    // A store that cannot delete keys keeps a few more bytes.
  }
}

std::vector<std::string> StoreGroup::gather(
    const std::string& value,
    const std::string& what) {
  if (ranks_.size() == 1) return {value};
  const std::uint64_t number = count_++;
  if (!is_leader()) {
    store_->set(
        format("{}/{}", number, place_),
        std::vector<std::uint8_t>(value.begin(), value.end()));
    return {};
  }
  std::vector<std::string> values{value};
  for (std::size_t i = 1; i < ranks_.size(); ++i) {
    const std::string key = format("{}/{}", number, i);
    values.push_back(wait_for(key, ranks_[i], what));
    forget(key);
  }
  // All ranks have reached this call, so they have read earlier broadcasts.
  for (const std::string& key : unread_) forget(key);
  unread_.clear();
  return values;
}

std::string StoreGroup::broadcast(
    const std::string& value,
    const std::string& what) {
  if (ranks_.size() == 1) return value;
  const std::string key = format("{}/all", count_++);
  if (!is_leader()) return wait_for(key, ranks_.front(), what);
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  unread_.push_back(key);
  return value;
}

std::vector<std::string> StoreGroup::all_gather(
    const std::string& value,
    const std::string& what) {
  const std::vector<std::string> values = gather(value, what);
  if (ranks_.size() == 1) return values;
  const std::uint64_t number = count_;
  const std::string all = broadcast(packed(values), what);
  auto result = unpacked(all, ranks_.size());
  if (!result) {
    throw DistributedError(format(
        "[comm] the store's key \"{}/{}/all\" holds {} bytes that rank {} did "
        "not write in {}: another program writes to this store; give each "
        "launch a port of its own (main_process_port)",
        prefix_,
        number,
        all.size(),
        ranks_.front(),
        what));
  }
  return std::move(*result);
}

}  // namespace accelerate::detail
