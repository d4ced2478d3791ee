#include "comm/group/begun_exchange.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

constexpr int kFirstExchangeTag = kFirstReservedTag + 1;
// A rank that exchanges nothing with another can be this many exchanges ahead
// of it.
constexpr std::uint64_t kExchangesApart = 1 << 16;
constexpr int kMostMessages = 4;  // of an exchange, from one rank to another

// Gives the messages between each two ranks the tags that both derive.
void number(std::vector<PeerMessage>& messages, std::uint64_t exchange) {
  std::map<int, int> counts;
  for (PeerMessage& each : messages) {
    const int place = counts[each.peer]++;
    if (place >= kMostMessages)
      throw InternalError("[comm] an exchange has too many messages");
    each.tag = kFirstExchangeTag + place +
        kMostMessages * static_cast<int>(exchange % kExchangesApart);
  }
}

}  // namespace

struct BegunExchange::State {
  State(const Group& among, std::string name)
      : group(among), what(std::move(name)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    note_in_flight(-num_messages);
    for (Work* const work : {&begun.receives, &begun.sends}) {
      if (*work && !is_known_to_be_complete(*work))
        group.impl()->unfinished.keep(std::move(*work));
    }
  }

  // `exchange`: its number, if it is one.
  void begin(
      std::vector<PeerMessage>& sends,
      std::vector<PeerMessage>& receives,
      std::optional<std::uint64_t> exchange);

  void note_in_flight(int change) const {
    if (change == 0) return;
    StepListener* const listener = group.impl()->world->steps->get();
    if (listener != nullptr) listener->change_in_flight(change);
  }

  // Calls a function of the transport, and names its failures.
  template <class Body>
  void guard(Body&& body) const {
    const at::NoGradGuard no_grad;
    try {
      std::forward<Body>(body)();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      GroupImpl& impl = *group.impl();
      if (throw_failure) throw_failure(error);
      if (!sequence)
        fail_collective(impl, what.c_str(), ++impl.sequence, error);
      fail_collective(
          impl,
          what.c_str(),
          *sequence,
          error,
          note ? note->number() : *sequence);
    }
  }

  void wait_for(Work& work) const {
    if (!work) return;
    const WorldCore& world = *group.impl()->world;
    const StepPartScope part(world.steps.get(), StepPart::communication);
    // A collective has a note of its own.
    std::optional<BoardWaitScope> wait;
    if (!sequence) wait.emplace(world.notes(), what.c_str(), peers);
    guard([&] { work->wait(); });
    work.reset();
  }

  Group group;
  std::string what;
  BegunMessages begun = {};
  // Messages have peers, as world ranks.
  std::vector<int> peers = {};
  int num_messages = 0;
  ThrowFailure throw_failure = nullptr;
  // A collective has a number, and an entry on the board.
  std::optional<std::uint64_t> sequence = {};
  std::optional<NotedCallScope> note = {};
};

BegunExchange::BegunExchange() = default;
BegunExchange::BegunExchange(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
BegunExchange::BegunExchange(BegunExchange&&) noexcept = default;
BegunExchange& BegunExchange::operator=(BegunExchange&&) noexcept = default;
BegunExchange::~BegunExchange() = default;

void BegunExchange::State::begin(
    std::vector<PeerMessage>& sends,
    std::vector<PeerMessage>& receives,
    std::optional<std::uint64_t> exchange) {
  GroupImpl& impl = *group.impl();
  const auto on_device = [](const PeerMessage& message) {
    return !message.tensor.is_cpu();
  };
  // An operation of all ranks, even of those without messages.
  const bool is_collective = exchange &&
      impl.connection->facts().has_exchange &&
      (std::ranges::any_of(sends, on_device) ||
       std::ranges::any_of(receives, on_device));
  const auto is_empty = [](const PeerMessage& message) {
    return message.tensor.numel() == 0;
  };
  for (auto* const each : {&receives, &sends}) {
    if (!is_collective) std::erase_if(*each, is_empty);
    if (exchange && !is_collective) number(*each, *exchange);
    for (const PeerMessage& message : *each) {
      if (is_empty(message)) continue;
      ++num_messages;
      const int peer = impl.peer_in_world(message.peer);
      if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    }
  }
  if (peers.empty() && !is_collective) return;
  guard([&] {
    Connection& connection = *impl.connection;
    begun = exchange ? connection.exchange(sends, receives)
                     : connection.begin_each(sends, receives);
    connection.run_in_background();
  });
  note_in_flight(num_messages);
}

BegunExchange BegunExchange::messages(
    const Group& group,
    std::string what,
    std::vector<PeerMessage> sends,
    std::vector<PeerMessage> receives,
    ThrowFailure throw_failure) {
  auto state = std::make_unique<State>(group, std::move(what));
  state->throw_failure = std::move(throw_failure);
  state->begin(sends, receives, std::nullopt);
  return BegunExchange(std::move(state));
}

BegunExchange BegunExchange::exchange(
    const Group& group,
    std::string what,
    std::vector<PeerMessage> sends,
    std::vector<PeerMessage> receives,
    ThrowFailure throw_failure) {
  auto state = std::make_unique<State>(group, std::move(what));
  state->throw_failure = std::move(throw_failure);
  state->begin(sends, receives, group.impl()->num_exchanges++);
  return BegunExchange(std::move(state));
}

template <class Begin>
BegunExchange BegunExchange::begin_collective(
    const Group& group,
    const char* name,
    const at::Tensor& what,
    Begin&& begin) {
  if (group.size() == 1 || what.numel() == 0) return {};
  GroupImpl& impl = *group.impl();
  auto state = std::make_unique<State>(group, name);
  state->sequence = ++impl.sequence;
  if (impl.calls) {
    const at::IntArrayRef sizes = what.sizes();
    state->note.emplace(
        impl.calls.get(),
        NotedCall{
            .operation = name,
            .dtype = c10::toString(what.scalar_type()),
            .shape = {sizes.data(), sizes.size()}});
  }
  state->guard([&] {
    if (impl.world->debug) {
      check_agreement(
          impl,
          name,
          format("{} {}", c10::toString(what.scalar_type()), what.sizes()));
    }
    state->begun.receives = std::forward<Begin>(begin)(*impl.connection);
  });
  return BegunExchange(std::move(state));
}

BegunExchange BegunExchange::all_reduce(
    const Group& group,
    const at::Tensor& tensor) {
  return begin_collective(group, "all_reduce", tensor, [&](Connection& c) {
    return c.all_reduce(tensor, ReduceOp::sum);
  });
}

BegunExchange BegunExchange::reduce_scatter(
    const Group& group,
    const at::Tensor& output,
    const at::Tensor& input) {
  return begin_collective(group, "reduce_scatter", input, [&](Connection& c) {
    return c.reduce_scatter(output, input, ReduceOp::sum);
  });
}

BegunExchange BegunExchange::all_gather(
    const Group& group,
    const at::Tensor& output,
    const at::Tensor& input) {
  return begin_collective(group, "all_gather", input, [&](Connection& c) {
    return c.all_gather(output, input);
  });
}

void BegunExchange::together(
    const Group& group,
    const std::function<void()>& begin_all) {
  if (group.size() == 1) return begin_all();
  GroupImpl& impl = *group.impl();
  try {
    impl.connection->together(begin_all);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_communication_failure(impl, error)) throw;
    fail_collective(impl, "operations begun together", impl.sequence, error);
  }
}

bool BegunExchange::is_complete() const {
  const auto is_done = [](const Work& work) {
    return !work || work->isCompleted();
  };
  return !state_ ||
      (is_done(state_->begun.receives) && is_done(state_->begun.sends));
}

void BegunExchange::run_in_background() {
  if (state_) state_->group.impl()->connection->run_in_background();
}

void BegunExchange::wait_for_receives() {
  if (state_) state_->wait_for(state_->begun.receives);
}

void BegunExchange::wait() {
  // The state ends even if the wait fails; the group then keeps the rest.
  const std::unique_ptr<State> state = std::move(state_);
  if (!state) return;
  state->wait_for(state->begun.receives);
  state->wait_for(state->begun.sends);
}

bool connects_devices(const Group& group, at::Device device) {
  const std::shared_ptr<Connection>& connection = group.impl()->connection;
  return !device.is_cpu() && connection != nullptr &&
      connection->facts().has_exchange &&
      connection->facts().has_device(device.type());
}

}  // namespace accelerate::detail
