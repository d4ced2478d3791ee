#include "comm/transport/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/rendezvous/store.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often NCCL is polled for whether it has accepted a call, since it has no
// callbacks. It accepts most calls in microseconds, and connects in seconds.
constexpr milliseconds kPollInterval{1};
constexpr milliseconds kMostSpinning{2};
// How often a rank that waits for NCCL looks whether another has aborted.
constexpr milliseconds kLookInterval{100};
// How often a rank that waits for the first one's id looks for ranks that ended.
constexpr milliseconds kRankInterval{20};
// How long a rank that leaves waits for its device, and for those of its other
// groups once one has failed.
constexpr milliseconds kMostLeaving{5000};
constexpr milliseconds kLeavingAfterFailure{100};

// In the group's store: why a rank has aborted, the newest operation that each
// has begun, if it takes long.
constexpr const char* kAborted = "nccl/aborted";
std::string begun_key(int rank) { return format("nccl/begun/{}", rank); }

std::string as_text(const NcclUniqueId& id) {
  return {id.bytes, sizeof(id.bytes)};
}

NcclUniqueId as_id(const std::string& text) {
  NcclUniqueId id{};
  if (text.size() != sizeof(id.bytes))
    throw NcclError("the first rank's NCCL could not begin");
  std::memcpy(id.bytes, text.data(), sizeof(id.bytes));
  return id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(
    std::shared_ptr<const NcclLibrary> library,
    c10::Device device,
    ConnectRequest request,
    std::function<RankIsGone()> watch_ranks,
    std::shared_ptr<FirstFailure> first_failure)
    : library_(std::move(library)),
      device_(device),
      request_(std::move(request)),
      watch_ranks_(std::move(watch_ranks)),
      first_failure_(std::move(first_failure)),
      departures_(request_) {}

NcclCommunicator::~NcclCommunicator() { leave(); }

NcclUniqueId NcclCommunicator::agree_on_id() {
  constexpr const char* kKey = "nccl/id";
  if (request_.rank == 0) {
    NcclUniqueId id{};
    const int code = library_->get_unique_id(&id);
    // The others wait for an answer, even for a failure.
    request_.store->set(
        kKey, code == NcclLibrary::kSuccess ? as_text(id) : std::string());
    library_->check(code, "ncclGetUniqueId");
    return id;
  }
  const auto deadline = steady_clock::now() + request_.timeout;
  while (!wait_for_key(*request_.store, kKey, kRankInterval)) {
    departures_.require_all_ranks();
    if (const auto reason = reason_of_others()) throw NcclError(*reason);
    if (steady_clock::now() < deadline) continue;
    throw NcclError(format(
        "rank {} did not connect to NCCL: it timed out after {} ms",
        request_.world_ranks.front(),
        request_.timeout.count()));
  }
  return as_id(request_.store->get_to_str(kKey));
}

void NcclCommunicator::connect() {
  if (watch_ranks_) departures_.watch(watch_ranks_());
  const NcclUniqueId id = agree_on_id();
  const c10::impl::VirtualGuardImpl guard(device_.type());
  stream_ = guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/true);
  ready_.emplace(device_.type());
  NcclConfig config;
  NcclLibrary::Communicator made = nullptr;
  const int code = library_->init(
      &made,
      static_cast<int>(request_.world_ranks.size()),
      id,
      request_.rank,
      &config);
  {
    const std::lock_guard lock(mutex_);
    communicator_ = made;
  }
  finish_call(code, "ncclCommInitRankConfig");
}

void NcclCommunicator::finish_call(int code, const char* operation) {
  const auto begin = steady_clock::now();
  auto next_look = begin + kLookInterval;
  while (code == NcclLibrary::kInProgress) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw NcclError(*failure_);
      library_->check(
          library_->get_async_error(communicator_, &code), operation);
    }
    if (code != NcclLibrary::kInProgress) break;
    const auto waited = steady_clock::now() - begin;
    if (waited > request_.timeout) {
      throw NcclError(format(
          "NCCL's {} timed out after {} ms",
          operation,
          request_.timeout.count()));
    }
    if (waited < kMostSpinning) {
      std::this_thread::yield();
    } else {
      departures_.require_all_ranks();
      if (steady_clock::now() >= next_look) {
        next_look += kLookInterval;
        if (const auto reason = reason_of_others()) throw NcclError(*reason);
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  library_->check(code, operation);
}

NcclCommunicator::Begun NcclCommunicator::begin(
    const char* operation,
    const std::function<int(NcclLibrary::Communicator, void* stream)>& issue) {
  throw_if_failed();
  const c10::DeviceGuard guard(device_);
  try {
    if (!stream_) connect();
    const c10::impl::VirtualGuardImpl streams(device_.type());
    ready_->record(streams.getStream(device_));
    ready_->block(*stream_);
    int code = NcclLibrary::kSuccess;
    {
      // The communicator must not be aborted meanwhile.
      const std::lock_guard lock(mutex_);
      if (failure_) throw NcclError(*failure_);
      code = issue(communicator_, stream_->native_handle());
    }
    if (is_together()) {
      library_->check(code, operation);
      return {++num_begun_, joint_end_};
    }
    finish_call(code, operation);
    auto done = std::make_shared<c10::Event>(device_.type());
    done->record(*stream_);
    return {++num_begun_, std::move(done)};
  } catch (const std::exception& error) {
    // NCCL must not lose a communicator between the operations of together().
    if (!is_together()) fail(first_line_of(error));
    throw;
  }
}

void NcclCommunicator::together(const std::function<void()>& begin_all) {
  throw_if_failed();
  const c10::DeviceGuard guard(device_);
  try {
    if (!stream_) connect();
    std::shared_ptr<c10::Event> end;
    int code = NcclLibrary::kSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw NcclError(*failure_);
      library_->check(library_->group_start(), "ncclGroupStart");
      joint_end_ = std::make_shared<c10::Event>(device_.type());
      std::exception_ptr failure;
      try {
        begin_all();
      } catch (...) {
        failure = std::current_exception();
      }
      end = std::exchange(joint_end_, nullptr);
      code = library_->group_end();
      if (failure) std::rethrow_exception(failure);
    }
    finish_call(code, "ncclGroupEnd");
    end->record(*stream_);
  } catch (const std::exception& error) {
    fail(first_line_of(error));
    throw;
  }
}

std::optional<std::string> NcclCommunicator::failure(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (failure_ || communicator_ == nullptr) return failure_;
  int code = NcclLibrary::kSuccess;
  try {
    library_->check(
        library_->get_async_error(communicator_, &code),
        "ncclCommGetAsyncError");
    library_->check(code, "operation");
  } catch (const NcclError& error) {
    return error.what();
  }
  const std::optional<int> lost = departures_.lost_rank(number);
  return lost ? std::optional(format("rank {} has gone", *lost)) : std::nullopt;
}

void NcclCommunicator::leave() {
  const milliseconds most =
      first_failure_->text() ? kLeavingAfterFailure : kMostLeaving;
  const auto deadline = steady_clock::now() + std::min(request_.timeout, most);
  int code = NcclLibrary::kInProgress;
  for (bool is_first = true; steady_clock::now() < deadline; is_first = false) {
    {
      const std::lock_guard lock(mutex_);
      if (communicator_ == nullptr) return;
      if (is_first) {
        code = library_->finalize(communicator_);
      } else {
        library_->get_async_error(communicator_, &code);
      }
      if (code == NcclLibrary::kSuccess) {
        library_->destroy(std::exchange(communicator_, nullptr));
        break;
      }
      if (code != NcclLibrary::kInProgress) break;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  if (code == NcclLibrary::kSuccess) {
    departures_.leave(num_begun_);
  } else {
    fail("this rank has left the group");
  }
}

void NcclCommunicator::fail(const std::string& reason) {
  // Noted before anything reads what operations leave that are ended.
  if (num_begun_ > 0) first_failure_->note(reason);
  abort(reason);
}

void NcclCommunicator::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = reason;
    if (communicator_ != nullptr)
      library_->abort(std::exchange(communicator_, nullptr));
  }
  // NCCL need not tell the others, which may also still wait to connect.
  try {
    if (request_.store->check({kAborted})) return;
    request_.store->set(
        kAborted,
        format(
            "rank {} has ended the group: {}",
            request_.world_ranks[static_cast<std::size_t>(request_.rank)],
            reason));
  } catch (const std::exception&) {
    // The store has gone, which the others notice.
  }
}

std::optional<std::string> NcclCommunicator::reason_of_others() const {
  if (!request_.store->check({kAborted})) return std::nullopt;
  return request_.store->get_to_str(kAborted);
}

std::optional<std::string> NcclCommunicator::look_for_others(
    std::uint64_t number) {
  try {
    // It may have begun later ones, too.
    const std::uint64_t newest = std::max(number, num_begun_.load());
    if (std::exchange(num_told_, newest) != newest)
      request_.store->set(begun_key(request_.rank), std::to_string(newest));
    return reason_of_others();
  } catch (const std::exception& error) {
    return format("the store has gone: {}", first_line_of(error));
  }
}

std::vector<int> NcclCommunicator::late_ranks(std::uint64_t number) const {
  std::vector<int> late;
  for (int rank = 0; rank < std::ssize(request_.world_ranks); ++rank) {
    if (rank == request_.rank) continue;
    const std::string key = begun_key(rank);
    const bool has_begun = request_.store->check({key}) &&
        std::stoull(request_.store->get_to_str(key)) >= number;
    if (!has_begun) late.push_back(rank);
  }
  return late;
}

std::string NcclCommunicator::describe(const std::vector<int>& late) const {
  if (late.empty()) return "all ranks have begun it";
  std::vector<std::string> names;
  for (const int rank : late) {
    names.push_back(format(
        "rank {}", request_.world_ranks[static_cast<std::size_t>(rank)]));
  }
  return format(
      "{} {} not begun it",
      join(names, ", "),
      late.size() == 1 ? "has" : "have");
}

std::string NcclCommunicator::describe_late(std::uint64_t number) const {
  return describe(late_ranks(number));
}

void NcclCommunicator::warn_of_late(
    const std::string& operation,
    std::uint64_t number) const {
  const std::vector<int> late = late_ranks(number);
  const bool is_first = std::ranges::count_if(late, [&](int rank) {
                          return rank < request_.rank;
                        }) == request_.rank;
  if (late.empty() || !is_first) return;
  request_.logger.log(
      LogLevel::warning,
      "comm",
      format(
          "rank {} has waited {} s for {}, operation {} of group \"{}\" on "
          "devices: {}",
          request_.world_ranks[static_cast<std::size_t>(request_.rank)],
          static_cast<double>(request_.hang_threshold.count()) / 1000,
          operation,
          number,
          request_.name,
          describe(late)));
}

void NcclCommunicator::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw NcclError(*failure_);
}

}  // namespace accelerate::detail
