#include <exception>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/error.h>
#include <accelerate/logger.h>
#include <accelerate/world.h>

#include "base/progress/screen.h"
#include "base/text/text.h"
#include "comm/group/world_impl.h"
#include "comm/monitoring/public_call.h"

namespace accelerate {

namespace {

// Runs `function` on the group's first rank; then, unless it threw, on the
// rest.
void first_rank_first(
    const Group& group,
    const std::function<void()>& function) {
  std::exception_ptr failure;
  std::string reason;
  if (group.rank() == 0) {
    try {
      function();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      // The prefix marks a failure even if its message is empty.
      reason = detail::format("x{}", error.what());
    } catch (...) {
      failure = std::current_exception();
      reason = "xan exception that is not a std::exception";
    }
  }
  {
    const detail::PublicCall call("main_process_first()");
    reason = group.broadcast_bytes(reason, 0);
  }
  if (failure) std::rethrow_exception(failure);
  if (!reason.empty()) {
    throw DistributedError(detail::format(
        "[comm] rank {} went first and failed, so this "
        "rank does not follow: {}",
        group.world_ranks()[0],
        reason.substr(1)));
  }
  if (group.rank() != 0) function();
}

}  // namespace

void World::wait_for_everyone() const {
  const detail::PublicCall call("wait_for_everyone()");
  group().barrier();
}

void World::on_process(int index, const std::function<void()>& function) const {
  if (index < 0 || index >= size()) {
    throw ConfigError(detail::format(
        "[comm] on_process() got rank {} of {}, but ranks count from 0",
        index,
        size()));
  }
  if (rank() == index) function();
}

void World::on_main_process(const std::function<void()>& function) const {
  on_process(0, function);
}

void World::on_last_process(const std::function<void()>& function) const {
  on_process(size() - 1, function);
}

void World::on_local_process(int index, const std::function<void()>& function)
    const {
  if (index < 0) {
    throw ConfigError(detail::format(
        "[comm] on_local_process() got rank {} of a node, "
        "but ranks count from 0",
        index));
  }
  if (local_rank() == index) function();
}

void World::on_local_main_process(const std::function<void()>& function) const {
  on_local_process(0, function);
}

void World::main_process_first(const std::function<void()>& function) const {
  first_rank_first(group(), function);
}

void World::local_main_process_first(
    const std::function<void()>& function) const {
  if (local_size() == size()) return main_process_first(function);
  if (!impl_->node_ranks) {
    // Every supported launcher numbers the ranks of a node consecutively.
    std::vector<int> ranks(static_cast<std::size_t>(local_size()));
    std::iota(ranks.begin(), ranks.end(), rank() - local_rank());
    impl_->node_ranks = new_group(ranks);
  }
  first_rank_first(*impl_->node_ranks, function);
}

NamedLogger World::logger(std::string name, std::optional<LogLevel> level)
    const {
  const LogLevel used = level.value_or(logger().level(name));
  return NamedLogger(
      {.logger = logger(),
       .rank = rank(),
       .size = size(),
       .barrier = [world = *this] { world.wait_for_everyone(); }},
      std::move(name),
      used);
}

void World::print(std::string_view line) const {
  if (is_local_main_process()) detail::write_line_to_standard_output(line);
}

}  // namespace accelerate
