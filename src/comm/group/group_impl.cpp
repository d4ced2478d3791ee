#include "comm/group/group_impl.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/monitoring/board_diagnosis.h"
#include "comm/rendezvous/store.h"
#include "comm/transport/adapters/adapters.h"
#include "comm/transport/disagreement.h"
#include "launch/board/rank_activity.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a rank that saw a failure waits for the others to report it. It
// names those that do not.
constexpr milliseconds kDiagnosisTime{2000};
constexpr milliseconds kLookInterval{20};

// The most common reason why ranks make different calls.
constexpr std::string_view kUnevenLoops =
    "if a loop gave them different numbers of batches, let the loader fill "
    "them up (even_batches) or use join_uneven_inputs()";

constexpr std::string_view kDifferentCalls = "the ranks made different calls";

std::string seconds(milliseconds time) {
  return format("{} s", std::chrono::duration<double>(time).count());
}

bool is_timeout(const std::string& text) {
  const std::string lower = to_lower(text);
  return lower.find("timeout") != std::string::npos ||
      lower.find("timed out") != std::string::npos;
}

// What the ranks of a group report about the same failed collective.
struct Reports {
  // Each rank's call, and in the next line also where it was made; empty
  // without a board.
  std::vector<std::string> calls;
  std::vector<int> missing;  // ranks that did not report in time
};

Reports exchange_reports(const GroupImpl& group, std::uint64_t sequence) {
  const WorldBoard* const board = group.world->board.get();
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      format("failed/{}/{}", group.name, sequence),
      own_client(group.world->store));
  store->set(
      std::to_string(group.rank),
      board == nullptr ? std::string()
                       : describe_newest_call(*board, group.name));
  Reports reports;
  const auto deadline = steady_clock::now() + kDiagnosisTime;
  for (int peer = 0; peer < group.size; ++peer) {
    const int rank = group.peer_in_world(peer);
    const std::string key = std::to_string(peer);
    bool has_come = false;
    while (!has_come) {
      const auto left = std::chrono::duration_cast<milliseconds>(
          deadline - steady_clock::now());
      const bool is_last =
          left <= kLookInterval || (board != nullptr && is_gone(*board, rank));
      has_come =
          wait_for_key(*store, key, is_last ? milliseconds(0) : kLookInterval);
      if (is_last) break;
    }
    if (!has_come) reports.missing.push_back(rank);
    reports.calls.push_back(has_come ? store->get_to_str(key) : "");
  }
  return reports;
}

// Empty if all ranks made the same call, or some do not report theirs.
std::string list_of_different_calls(
    const GroupImpl& group,
    const Reports& reports) {
  std::vector<std::string> lines{std::string(kDifferentCalls)};
  std::set<std::string> different;
  for (std::size_t peer = 0; peer < reports.calls.size(); ++peer) {
    const std::vector<std::string> call = split(reports.calls[peer], '\n');
    if (call.size() != 2) return {};
    different.insert(call[0]);
    lines.push_back(format(
        "rank {}: {}", group.peer_in_world(static_cast<int>(peer)), call[1]));
  }
  return different.size() > 1 ? join(lines, "\n  ") : std::string();
}

std::optional<std::string> find_cause_on_board(
    const GroupImpl& group,
    const std::string& text) {
  if (group.world->board == nullptr) return std::nullopt;
  auto cause = diagnose_by_board(
      *group.world->board,
      group.name,
      group.world_ranks,
      group.peer_in_world(group.rank),
      is_timeout(text));
  if (!cause || !is_timeout(text)) return cause;
  return format(
      "{}; {}; raise timeout_seconds if it is only slow", *cause, kUnevenLoops);
}

std::string diagnose(
    const GroupImpl& group,
    std::uint64_t sequence,
    const std::string& text) {
  if (auto cause = find_cause_on_board(group, text)) return std::move(*cause);
  // Asking would only delay the error: the other rank may fail in a later call.
  if (is_disagreement(text)) {
    return format("{}: {}", kDifferentCalls, kUnevenLoops);
  }
  Reports reports;
  try {
    reports = exchange_reports(group, sequence);
  } catch (const std::exception&) {
    return "rank 0, which keeps the store, is gone";
  }
  const std::vector<int>& missing = reports.missing;
  if (missing.empty()) {
    const std::string calls = list_of_different_calls(group, reports);
    if (!calls.empty()) return format("{}\n  {}", calls, kUnevenLoops);
    return format(
        "every rank is still running, so they disagreed about the operation or "
        "its sizes: {}; run again with --debug to see how they differ",
        kUnevenLoops);
  }
  // A rank may have gone since the board was looked at.
  if (auto cause = find_cause_on_board(group, text)) return std::move(*cause);
  const std::string peers = describe_ranks(missing);
  if (is_timeout(text)) {
    return format(
        "{} did not arrive within {}: stopped, stuck, or executing a different "
        "call; {}; raise timeout_seconds if it is only slow",
        peers,
        seconds(group.world->timeout),
        kUnevenLoops);
  }
  return format(
      "{}{} ended or closed the connection; look at its "
      "own output for the reason",
      peers,
      missing.size() == 1 ? " has" : " have");
}

}  // namespace

void note_calls(GroupImpl& group) {
  const std::shared_ptr<WorldBoard>& board = group.world->board;
  if (board != nullptr && group.calls == nullptr) {
    group.calls = NotedCalls::make(
        {.board = board,
         .group = group.name,
         .size = group.size,
         .world_ranks = group.world_ranks,
         .compares = !group.connection->facts().compares_calls});
  }
  group.process_group =
      as_process_group(group.connection, group.store, group.calls);
  group.process_group->setGroupName(group.name);
  group.process_group->setGroupDesc(group.name);
}

GroupImpl::~GroupImpl() {
  // Peers that lose the connection look for the rank that has left.
  BoardWriter* const notes = world == nullptr ? nullptr : world->notes();
  if (notes != nullptr && name == "world") notes->finish();
  // ProcessGroup first: it refers to the connection.
  process_group.reset();
  connection.reset();
}

std::shared_ptr<GroupImpl> make_group(
    std::shared_ptr<WorldCore> world,
    std::string name,
    int rank,
    std::vector<int> world_ranks) {
  auto group = std::make_shared<GroupImpl>();
  group->name = std::move(name);
  group->rank = rank;
  group->size = static_cast<int>(world_ranks.size());
  group->world_ranks = std::move(world_ranks);
  group->world = std::move(world);
  if (group->size == 1) return group;

  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      "group/" + group->name, own_client(group->world->store));
  // Every rank announces itself before any waits for a connection, so that
  // missing ranks can be named.
  store->set(format("here/{}", rank), std::string("1"));
  const auto deadline = steady_clock::now() + group->world->timeout;
  const BoardWaitScope wait(
      group->world->notes(), "making a group", group->world_ranks);
  std::vector<int> missing;
  for (int peer = 0; peer < group->size; ++peer) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - steady_clock::now());
    if (!wait_for_key(
            *store, format("here/{}", peer), std::max(left, milliseconds(0)))) {
      missing.push_back(group->peer_in_world(peer));
    }
  }
  if (!missing.empty()) {
    throw DistributedError(format(
        "[comm] group \"{}\" needs {} ranks, but {} did not arrive within {}",
        group->name,
        group->size,
        describe_ranks(missing),
        seconds(group->world->timeout)));
  }
  try {
    group->connection = adapted(group->world->transport->connect(
        {.store = store,
         .name = group->name,
         .rank = group->rank,
         .world_ranks = group->world_ranks,
         .timeout = group->world->timeout,
         .logger = group->world->logger,
         .hang_threshold = group->world->hang_threshold}));
    group->store = store;
    note_calls(*group);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(format(
        "[comm] the ranks of group \"{}\" could not connect: {}",
        group->name,
        first_line_of(error)));
  }
  return group;
}

void require_intact(const Group& group, const char* operation) {
  const GroupImpl& impl = *group.impl();
  if (impl.connection == nullptr) return;
  try {
    impl.connection->require_intact();
  } catch (const std::exception& error) {
    fail_collective(impl, operation, impl.sequence, error);
  }
}

void require_intact(const World& world) {
  const auto& transport = world.group().impl()->world->transport;
  if (transport == nullptr) return;
  const auto failure = transport->failure_on_devices();
  if (!failure) return;
  throw DistributedError(format(
      "[comm] an operation between devices has failed, so what depends on it "
      "is undefined: {}",
      *failure));
}

bool is_communication_failure(
    const GroupImpl& group,
    const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return false;
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  return group.world && group.world->transport &&
      group.world->transport->describe_failure(error).has_value();
}

void fail_collective(
    const GroupImpl& group,
    const char* operation,
    std::uint64_t sequence,
    const std::exception& error,
    std::optional<std::uint64_t> number) {
  const std::string text =
      group.world->transport->describe_failure(error).value_or(
          first_line_of(error));
  // Other exceptions are this rank's own: it runs out of memory, say.
  const bool is_of_ranks = is_communication_failure(group, error);
  std::string cause = format("its own exception: {}", text);
  if (is_of_ranks) {
    cause = diagnose(group, sequence, text);
    // A list of all ranks' calls says more than the transport does.
    const bool lists_calls = is_disagreement(text) &&
        cause.starts_with(format("{}\n", kDifferentCalls));
    if (!lists_calls) cause += format(" ({})", text);
  }
  const std::string message = format(
      "[comm] {}{} of group \"{}\" failed on rank {}: {}",
      operation,
      number ? format(" number {}", *number) : std::string(),
      group.name,
      group.peer_in_world(group.rank),
      cause);
  if (BoardWriter* const notes = group.world->notes()) notes->fail(message);
  throw DistributedError(message);
}

void check_agreement(
    const GroupImpl& group,
    const char* operation,
    const std::string& detail) {
  constexpr std::int64_t kWidth = 256;
  std::string mine = format("{} {}", operation, detail);
  mine.resize(kWidth - 1, '\0');
  mine.push_back('\0');
  const at::Tensor input = at::empty({kWidth}, at::kByte);
  std::ranges::copy(mine, input.data_ptr<std::uint8_t>());
  const at::Tensor output = at::empty({group.size * kWidth}, at::kByte);
  group.connection->all_gather(output, input)->wait();
  std::vector<std::string> all;
  bool equal = true;
  for (int peer = 0; peer < group.size; ++peer) {
    const auto* const begin =
        reinterpret_cast<const char*>(output.data_ptr<std::uint8_t>()) +
        peer * kWidth;
    equal = equal && std::equal(mine.begin(), mine.end(), begin);
    all.push_back(format(
        "rank {}: {}", group.peer_in_world(peer), std::string(begin).c_str()));
  }
  if (equal) return;
  throw DistributedError(format(
      "[comm] the ranks of group \"{}\" disagree about collective number {}:\n "
      " {}",
      group.name,
      group.sequence.load(),
      join(all, "\n  ")));
}

}  // namespace accelerate::detail
