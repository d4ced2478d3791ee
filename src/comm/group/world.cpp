#include <accelerate/world.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/progress/screen.h"
#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "comm/group/rank_device.h"
#include "comm/group/world_impl.h"
#include "comm/monitoring/board_diagnosis.h"
#include "comm/rendezvous/generation_store.h"
#include "comm/rendezvous/hosted_store.h"
#include "comm/rendezvous/store.h"
#include "comm/rendezvous/timeout.h"
#include "comm/transport/transports.h"
#include "config/environment.h"
#include "config/rank_variables.h"
#include "config/settings.h"
#include "config/user_variables.h"
#include "launch/elastic/elastic_seat.h"

namespace accelerate {

namespace detail {

namespace {

RankVariables find_identity(
    const WorldOptions& options,
    const Environment& environment) {
  const bool is_explicit = options.rank || options.size;
  RankVariables identity =
      is_explicit ? RankVariables{} : read_rank_variables(environment);
  if (is_explicit) {
    if (!options.rank || !options.size) {
      throw ConfigError(
          "[launch] WorldOptions must set both rank and size, "
          "or neither, but sets one");
    }
    identity.launcher = "options";
    identity.rank = *options.rank;
    identity.size = *options.size;
    identity.local_rank = options.local_rank.value_or(identity.rank);
    identity.local_size = options.local_size.value_or(identity.size);
  }
  if (options.local_rank) identity.local_rank = *options.local_rank;
  if (options.local_size) identity.local_size = *options.local_size;
  if (options.address) identity.address = *options.address;
  if (options.port) identity.port = *options.port;
  if (identity.size < 1 || identity.rank < 0 ||
      identity.rank >= identity.size || identity.local_rank < 0 ||
      identity.local_size < 1 || identity.local_rank >= identity.local_size ||
      identity.local_size > identity.size) {
    throw ConfigError(format(
        "[launch] rank {} of {} with local rank {} of {} is impossible; ranks "
        "count from 0",
        identity.rank,
        identity.size,
        identity.local_rank,
        identity.local_size));
  }
  return identity;
}

// In an elastic group, ranks are renumbered when some leave or are replaced,
// but a process keeps its seat, and so its device.
DevicePlace device_place(
    const WorldOptions& options,
    const RankVariables& identity) {
  const bool has_seat = identity.generation > 0 && !options.local_rank;
  return {
      .index = has_seat ? identity.board_page : identity.local_rank,
      .num_processes = identity.local_size};
}

void make_current(at::Device device) {
  if (!device.has_index() || !at::accelerator::isAccelerator(device.type()) ||
      !c10::impl::hasDeviceGuardImpl(device.type()))
    return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

std::chrono::milliseconds choose_timeout(
    const WorldOptions& options,
    const Settings& settings,
    at::Device device) {
  if (options.timeout) return *options.timeout;
  const auto seconds = settings.number("timeout_seconds");
  if (!seconds) return default_timeout(device.type());
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

Store open_store(
    const WorldOptions& options,
    const RankVariables& identity,
    std::chrono::milliseconds timeout) {
  if (options.store) return *options.store;
  const bool is_server = identity.rank == 0 && !identity.agent_hosts_store;
  const Store store = is_server
      ? hosted_store(identity.address, identity.port, timeout)
      : Store::tcp(identity.address, identity.port, false, timeout);
  return identity.store_prefix.empty()
      ? store
      : store.with_prefix(identity.store_prefix);
}

// In an elastic group, no rank waits for ranks of a broken generation.
Store store_of_generation(const Store& store, const RankVariables& identity) {
  if (identity.generation == 0 || identity.board.empty()) return store;
  try {
    const auto board = std::make_shared<Board>(Board::open(identity.board));
    if (board->header().generation.load() == 0) return store;
    const auto generation = static_cast<std::uint32_t>(identity.generation);
    return Store(std::make_shared<StoreImpl>(StoreImpl{
        c10::make_intrusive<GenerationStore>(
            store.impl()->store,
            [board, generation] { return is_broken(*board, generation); }),
        store.port()}));
  } catch (const SegmentError&) {
    // In that case, the launcher does not replace ranks either.
    return store;
  }
}

// A replacement process belongs to no generation before its run_elastic().
void require_generation(const RankVariables& identity) {
  if (identity.generation > 0 || identity.first_generation <= 1) return;
  throw ConfigError(
      "[launch] this process takes the place of a rank that has ended, or "
      "joins a group that grows, and makes a World (or an Accelerator) outside "
      "run_elastic(), which the other ranks do not; make all of them in "
      "the function that run_elastic() calls");
}

std::string worlds_key(int rank) { return format("worlds/{}", rank); }

// Gives each world its own keys. All ranks make their worlds over one store in
// the same order.
Store store_of_world(const Store& store, std::int64_t number) {
  return number == 1 ? store : store.with_prefix(format("world{}", number));
}

// Names the ranks that have made fewer worlds than this one, which has waited
// for them; empty if none has, or if the store does not know.
std::string
describe_fewer_worlds(const Store& store, int size, std::int64_t number) {
  std::string text;
  try {
    for (int rank = 0; rank < size; ++rank) {
      const std::int64_t made = store.add(worlds_key(rank), 0);
      if (made >= number) continue;
      text +=
          format("{}rank {} has made {}", text.empty() ? "" : ", ", rank, made);
    }
  } catch (const Error&) {
    return {};
  }
  return text;
}

// Connects the group of all ranks of world number `number` over `store`.
std::shared_ptr<GroupImpl> connect_all(
    const Store& store,
    std::int64_t number,
    const std::shared_ptr<WorldCore>& core,
    const RankVariables& identity,
    std::vector<int> ranks) {
  try {
    return make_group(core, "world", identity.rank, std::move(ranks));
  } catch (const DistributedError& error) {
    const std::string fewer =
        describe_fewer_worlds(store, identity.size, number);
    if (number == 1 || fewer.empty()) throw;
    throw DistributedError(format(
        "{}. This is World number {} of rank {}, but {}: all ranks must make "
        "the same number of Worlds (and Accelerators) in the same order",
        error.what(),
        number,
        identity.rank,
        fewer));
  }
}

HangMonitorOptions hang_monitor_options(
    const WorldOptions& options,
    const Settings& settings,
    const Environment& environment) {
  if (options.hang_seconds && !(*options.hang_seconds >= 0)) {
    throw ConfigError(format(
        "[launch] WorldOptions::hang_seconds must be a number of seconds, or 0 "
        "for no reports, but is {}",
        *options.hang_seconds));
  }
  const double seconds =
      options.hang_seconds.value_or(*settings.number("hang_seconds"));
  return {
      .threshold =
          std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)),
      .on_hang =
          parse_on_hang(options.on_hang.value_or(*settings.text("on_hang"))),
      .path = environment.get("PATH").value_or("")};
}

// Joins the launcher's board, or otherwise one of the ranks' own, which the
// first rank of each machine makes before it connects. Worlds after the first
// always have their own.
void join_board(
    WorldCore& core,
    const RankVariables& identity,
    std::int64_t number) {
  if (number == 1 && !identity.board.empty()) {
    core.board = launcher_board(identity, core.logger);
  } else if (identity.size > 1 && identity.local_rank == 0) {
    core.board = make_world_board(core.store, identity, core.logger);
  }
}

// Called when all ranks are connected.
void use_board(
    WorldCore& core,
    const RankVariables& identity,
    const WorldOptions& options,
    HangMonitorOptions monitoring,
    std::int64_t number) {
  const bool is_launchers = number == 1 && !identity.board.empty();
  if (!is_launchers && identity.size > 1 && identity.local_rank != 0)
    core.board = find_world_board(core.store, identity, core.logger);
  if (core.board == nullptr) return;
  core.steps->monitor = core.board->monitor();
  core.board->writer().enter(RankPhase::between);
  std::optional<std::chrono::milliseconds> threshold;
  std::optional<std::uint32_t> on_hang;
  if (options.hang_seconds) threshold = monitoring.threshold;
  if (options.on_hang) on_hang = static_cast<std::uint32_t>(monitoring.on_hang);
  core.board->writer().set_hang_options(threshold, on_hang);
  if (!is_launchers && identity.local_rank == 0)
    core.board->start_hang_monitor(std::move(monitoring), core.logger);
}

// Makes the logger that log_level, log_levels and log_format describe.
Logger logger_of(const Settings& settings, const Environment& environment) {
  const bool has_colors = ProgressScreen::of_standard_error().is_terminal() &&
      terminal_variables(environment).wants_colors;
  Logger logger(
      standard_error_sink(
          {.json = settings.text("log_format") == "json",
           .colors = has_colors}),
      parse_log_level(*settings.text("log_level")));
  logger.set_levels(parse_log_levels(settings.text("log_levels").value_or("")));
  return logger;
}

// Ranks that have ended, by the world's board.
RankIsGone watch_ranks(const std::weak_ptr<WorldCore>& core) {
  const auto world = core.lock();
  const auto board = world ? world->board : nullptr;
  if (board == nullptr) return nullptr;
  return [board](int rank) { return has_ended(*board, rank); };
}

std::shared_ptr<Transport> start_transport(
    const WorldOptions& options,
    const TransportRow& row,
    const WorldImpl& world,
    const Environment& environment) {
  if (options.own_transport) return options.own_transport;
  const RankVariables& identity = world.identity;
  return row.make(
      {.is_single_node = identity.local_size == identity.size,
       .node = identity.rank - identity.local_rank,
       .local_size = identity.local_size,
       .main_address = identity.address,
       .device = world.device,
       .environment = environment,
       .watch_ranks = [core = std::weak_ptr(world.core)] {
         return watch_ranks(core);
       }});
}

}  // namespace
}  // namespace detail

World::World(const WorldOptions& options)
    : impl_(std::make_shared<detail::WorldImpl>()) {
  const detail::Environment environment = detail::Environment::current();
  const detail::Settings settings = detail::launch_settings(environment);
  impl_->core->settings = settings;
  impl_->identity = detail::find_identity(options, environment);
  const detail::RankVariables& identity = impl_->identity;
  detail::require_generation(identity);
  const detail::TransportRow& transport = detail::choose_transport(
      options.transport ? options.transport : settings.text("transport"));

  detail::WorldCore& core = *impl_->core;
  core.logger = options.logger ? *options.logger
                               : detail::logger_of(settings, environment);
  core.logger.set_rank(identity.size > 1 ? identity.rank : -1);
  core.debug = options.debug.value_or(settings.boolean("debug"));
  impl_->device = detail::choose_device(
      options, settings, environment, detail::device_place(options, identity));
  detail::make_current(impl_->device);
  core.timeout = detail::choose_timeout(options, settings, impl_->device);

  detail::HangMonitorOptions monitoring =
      detail::hang_monitor_options(options, settings, environment);
  core.hang_threshold = monitoring.threshold;
  std::vector<int> all(static_cast<std::size_t>(identity.size));
  std::iota(all.begin(), all.end(), 0);
  if (identity.size == 1) {
    if (options.store) core.store = *options.store;
    detail::join_board(core, identity, 1);
    detail::use_board(core, identity, options, std::move(monitoring), 1);
    impl_->all_ranks =
        Group(detail::make_group(impl_->core, "world", 0, std::move(all)));
    return;
  }
  const Store store = detail::store_of_generation(
      detail::open_store(options, identity, core.timeout), identity);
  const std::int64_t number = store.add(detail::worlds_key(identity.rank), 1);
  core.store = detail::store_of_world(store, number);
  core.transport =
      detail::start_transport(options, transport, *impl_, environment);
  detail::join_board(core, identity, number);
  const std::shared_ptr<detail::GroupImpl> world =
      detail::connect_all(store, number, impl_->core, identity, std::move(all));
  detail::use_board(core, identity, options, std::move(monitoring), number);
  detail::note_calls(*world);
  impl_->all_ranks = Group(world);
}

int World::rank() const { return impl_->identity.rank; }

int World::size() const { return impl_->identity.size; }

int World::local_rank() const { return impl_->identity.local_rank; }

int World::local_size() const { return impl_->identity.local_size; }

at::Device World::device() const { return impl_->device; }

std::chrono::milliseconds World::timeout() const {
  return impl_->core->timeout;
}

const std::string& World::launcher() const { return impl_->identity.launcher; }

const Group& World::group() const { return impl_->all_ranks; }

const Store& World::store() const { return impl_->core->store; }

const Logger& World::logger() const { return impl_->core->logger; }

Group World::new_group(const std::vector<int>& world_ranks) const {
  std::vector<std::string> names;
  for (const int member : world_ranks) {
    if (member < 0 || member >= size()) {
      throw ConfigError(detail::format(
          "[comm] new_group() got rank {} of a world of {}", member, size()));
    }
    names.push_back(std::to_string(member));
  }
  const auto found = std::ranges::find(world_ranks, rank());
  if (found == world_ranks.end()) {
    throw ConfigError(detail::format(
        "[comm] rank {} called new_group() for the ranks {}, to which it does "
        "not belong; only members may call it",
        rank(),
        detail::join(names, ", ")));
  }
  std::vector<int> sorted = world_ranks;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    throw ConfigError(detail::format(
        "[comm] new_group() must get each rank once, but got {}",
        detail::join(names, ", ")));
  }
  const int number = impl_->group_counts[world_ranks]++;
  const std::string name =
      detail::format("ranks {} #{}", detail::join(names, "-"), number);
  return Group(detail::make_group(
      impl_->core,
      name,
      static_cast<int>(found - world_ranks.begin()),
      world_ranks));
}

}  // namespace accelerate
