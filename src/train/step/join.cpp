#include <accelerate/accelerator.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "train/session/session.h"

namespace accelerate {

void detail::require_no_join(const Session& session, std::string_view what) {
  if (!session.join.is_open) return;
  throw ConfigError(format(
      "[train] {} over all ranks, but inside join_uneven_inputs() some may "
      "have run out of data; call it outside",
      what));
}

namespace {

using detail::format;
using detail::JoinEvent;
using detail::Session;

void require_joinable(const Session& session) {
  std::vector<std::string> complaints;
  if (session.join.is_open) {
    complaints.emplace_back(
        "[train] join_uneven_inputs() must not be called inside itself");
  }
  if (session.scaling.scaler) {
    complaints.emplace_back(
        "[train] join_uneven_inputs() cannot be used with fp16, whose loss "
        "scale all ranks decide together at each step; use bf16 or no, or "
        "even_batches");
  }
  for (const auto& model : session.prepared.models) {
    if (const auto& complaint = model->strategies.traits().join_complaint)
      complaints.push_back(*complaint);
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

// Changes the session for the duration of a join, and restores it even after an
// exception.
class JoinScope {
 public:
  JoinScope(Session& session, const JoinOptions& options)
      : session_(session), even_batches_before_(session.join.even_batches) {
    session.join.is_open = true;
    if (options.even_batches) session.join.even_batches = options.even_batches;
    if (session.world.size() == 1) return;
    if (!session.join.group) {
      std::vector<int> all(static_cast<std::size_t>(session.world.size()));
      std::iota(all.begin(), all.end(), 0);
      session.join.group = session.world.new_group(all);
    }
    session.join.round = std::make_unique<detail::JoinRound>(
        *session.join.group, options.divide_by_initial_world_size);
    for (const auto& scheduler : session.prepared.schedulers)
      scheduler->journal.clear();
    int number = 0;
    for (const auto& model : session.prepared.models)
      model->strategies.begin_join(*session.join.round, number++);
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope() {
    session_.join.even_batches = even_batches_before_;
    session_.join.is_open = false;
    if (!session_.join.round) return;
    for (const auto& model : session_.prepared.models)
      model->strategies.end_join();
    session_.join.round.reset();
  }

 private:
  Session& session_;
  std::optional<bool> even_batches_before_;
};

void send_model(
    const detail::PreparedModel& model,
    const Group& group,
    int from) {
  const at::NoGradGuard no_grad;
  for (const detail::Parameter& row : model.table.rows()) {
    group.broadcast(row.local.detach(), from);
    if (!row.local.is_same(row.tensor)) row.tensor.detach().copy_(row.local);
  }
  for (const at::Tensor& buffer : model.module->buffers()) {
    if (buffer.defined() && !model.table.leaves_out(buffer))
      group.broadcast(buffer, from);
  }
}

void send_optimizer(
    torch::optim::Optimizer& optimizer,
    const Group& group,
    int from) {
  std::string bytes;
  if (group.rank() == from) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream out;
    archive.save_to(out);
    bytes = std::move(out).str();
  }
  bytes = group.broadcast_bytes(bytes, from);
  if (group.rank() == from) return;
  std::istringstream in(std::move(bytes));
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  optimizer.load(archive);
}

// Repeats the steps of rank `from` that this rank missed.
void send_schedule(
    detail::PreparedScheduler& scheduler,
    const Group& group,
    int from) {
  const auto journal = broadcast_object(scheduler.journal, group, from);
  for (std::size_t i = scheduler.journal.size(); i < journal.size(); ++i) {
    detail::take_step(scheduler, journal[i]);
  }
}

// Takes part in the averaging of active ranks until none are left, then copies
// the state of the rank that continued longest.
void shadow_until_done(Session& session) {
  detail::JoinRound& round = *session.join.round;
  while (const std::optional<JoinEvent> event = round.announce(std::nullopt)) {
    session.prepared.models.at(static_cast<std::size_t>(event->model))
        ->strategies.shadow(*event);
  }
  const Group& group = round.group();
  // All ranks ended in the same step, so none missed anything.
  if (round.num_active() == group.size()) return;
  const int from = round.first_active();
  for (const auto& model : session.prepared.models) {
    if (model->module && !model->evaluation_mode)
      send_model(*model, group, from);
  }
  // Schedules change their optimizers, whose state is overwritten afterwards.
  for (const auto& scheduler : session.prepared.schedulers) {
    if (scheduler->schedule) send_schedule(*scheduler, group, from);
  }
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner != nullptr)
      send_optimizer(*optimizer->inner, group, from);
  }
}

// Ranks whose data end at different places of a window would end their next ones
// at different times. All begin a new one, which drops the gradients of the
// unfinished ones.
void align_windows(Session& session) {
  detail::StepClock& clock = session.clock;
  if (clock.window() == 1) return;
  const int position = clock.position();
  const auto positions =
      session.join.round->group().all_gather(at::full({}, position, at::kLong));
  const bool are_equal = std::ranges::all_of(positions, [&](const auto& other) {
    return other.template item<std::int64_t>() == position;
  });
  if (are_equal) return;
  clock.restart_window();
  session.window.progress = {};
  if (position == 0) return;
  session.world.logger().log(
      LogLevel::warning,
      "train",
      format(
          "the body of join_uneven_inputs() ended on rank {} after {} of the "
          "{} micro-steps of a window, and elsewhere on other ranks; the "
          "gradients of these {} are dropped; end bodies with a window, as a "
          "prepared loader's last batch does",
          session.world.rank(),
          position,
          clock.window(),
          position));
  for (const auto& model : session.prepared.models) {
    if (model->module)
      detail::drop_gradients(*model, model->module->parameters(), true);
  }
  for (const auto& optimizer : session.prepared.optimizers)
    detail::use_gradients(*optimizer);
}

}  // namespace

void Accelerator::join_uneven_inputs(
    const std::function<void()>& body,
    const JoinOptions& options) const {
  Session& session = *session_;
  require_joinable(session);
  const JoinScope scope(session, options);
  body();
  if (!session.join.round) return;
  shadow_until_done(session);
  align_windows(session);
}

}  // namespace accelerate
