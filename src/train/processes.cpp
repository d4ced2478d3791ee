#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/DeviceAccelerator.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/standard_output.h"
#include "base/text.h"
#include "train/session.h"

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
    }
  }
  reason = group.broadcast_bytes(reason, 0);
  if (failure) std::rethrow_exception(failure);
  if (!reason.empty()) {
    throw DistributedError(detail::format(
        "[train] rank {} went first and failed, so this rank does not follow: "
        "{}",
        group.world_ranks()[0],
        reason.substr(1)));
  }
  if (group.rank() != 0) function();
}

}  // namespace

void Accelerator::wait_for_everyone() const { world().group().barrier(); }

void Accelerator::on_main_process(const std::function<void()>& function) const {
  on_process(0, function);
}

void Accelerator::on_local_main_process(
    const std::function<void()>& function) const {
  on_local_process(0, function);
}

void Accelerator::on_last_process(const std::function<void()>& function) const {
  on_process(num_processes() - 1, function);
}

void Accelerator::on_process(int index, const std::function<void()>& function)
    const {
  if (index < 0 || index >= num_processes()) {
    throw ConfigError(detail::format(
        "[train] on_process was asked for rank {} of {}; ranks count from 0",
        index,
        num_processes()));
  }
  if (process_index() == index) function();
}

void Accelerator::on_local_process(
    int index,
    const std::function<void()>& function) const {
  if (local_process_index() == index) function();
}

void Accelerator::main_process_first(
    const std::function<void()>& function) const {
  first_rank_first(world().group(), function);
}

void Accelerator::local_main_process_first(
    const std::function<void()>& function) const {
  if (world().local_size() == world().size())
    return main_process_first(function);
  if (!session_->local_group) {
    // Every supported launcher numbers the ranks of a node consecutively.
    std::vector<int> ranks(static_cast<std::size_t>(world().local_size()));
    std::iota(
        ranks.begin(), ranks.end(), world().rank() - world().local_rank());
    session_->local_group = world().new_group(ranks);
  }
  first_rank_first(*session_->local_group, function);
}

void Accelerator::print(std::string_view line) const {
  if (is_main_process()) detail::write_line_to_standard_output(line);
}

void Accelerator::free_memory() const {
  session_->checkpoints->saver.wait();
  session_->checkpoints->loaders.clear();
  for (const auto& model : session_->models) {
    model->strategies.clear();
    model->table = {};
    model->module.reset();
  }
  // Schedules refer to their optimizers, so they go first.
  for (const auto& scheduler : session_->schedulers) {
    scheduler->schedule = nullptr;
    scheduler->owner = nullptr;
  }
  for (const auto& optimizer : session_->optimizers) {
    optimizer->inner = nullptr;
    optimizer->owner = nullptr;
  }
  if (at::accelerator::isAccelerator(device().type()))
    at::accelerator::emptyCache();
}

void Accelerator::finish() const {
  session_->checkpoints->saver.wait();
  wait_for_everyone();
  free_memory();
}

}  // namespace accelerate
