#include <accelerate/profiler.h>

#include <exception>
#include <iterator>
#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "track/profiler/profile_session.h"
#include "track/profiler/recorded_cycle.h"

namespace accelerate {

namespace {

constexpr std::int64_t StepTimes::*kFields[] = {
    &StepTimes::rank,
    &StepTimes::num_steps,
    &StepTimes::total_ns,
    &StepTimes::data_ns,
    &StepTimes::forward_ns,
    &StepTimes::backward_ns,
    &StepTimes::optimizer_ns,
    &StepTimes::communication_ns,
    &StepTimes::other_ns,
    &StepTimes::idle_ns,
    &StepTimes::hidden_communication_ns};
static_assert(sizeof(StepTimes) == sizeof(std::int64_t) * std::size(kFields));

constexpr std::string_view kStepPrefix = "ProfilerStep#";

}  // namespace

ProfileResults::ProfileResults(
    std::shared_ptr<const detail::RecordedCycle> cycle)
    : cycle_(std::move(cycle)) {}

std::int64_t ProfileResults::step_num() const { return cycle_->step_num; }

std::vector<std::int64_t> ProfileResults::steps() const {
  std::vector<std::int64_t> steps;
  for (const detail::RecordedEvent& event : cycle_->events) {
    if (event.kind != detail::EventKind::step) continue;
    const std::string number = event.name.substr(kStepPrefix.size());
    steps.push_back(std::stoll(number));
  }
  return steps;
}

std::size_t ProfileResults::num_events() const {
  std::size_t count = 0;
  for (const detail::RecordedEvent& event : cycle_->events)
    count += event.kind != detail::EventKind::part ? 1 : 0;
  return count;
}

void ProfileResults::export_chrome_trace(
    const std::filesystem::path& path) const {
  detail::replace_file(path, chrome_trace_of(*cycle_));
}

Profile::Profile(std::unique_ptr<detail::ProfileSession> session)
    : session_(std::move(session)) {}

Profile::Profile(Profile&& other) noexcept = default;

Profile::~Profile() {
  if (!session_ || session_->has_ended()) return;
  try {
    session_->end();
    session_->write_trace();
  } catch (const std::exception& error) {
    session_->world().logger().log(
        LogLevel::warning,
        "track",
        detail::format("a profile could not be ended: {}", error.what()));
  }
}

void Profile::step() { session_->step(); }

void Profile::stop() {
  if (session_->has_ended()) return;
  std::exception_ptr failure;
  try {
    session_->end();
    session_->write_trace();
  } catch (...) {
    failure = std::current_exception();
  }
  // Ranks that failed do not keep the others waiting.
  if (session_->writes_trace()) session_->world().wait_for_everyone();
  if (failure) std::rethrow_exception(failure);
}

std::int64_t Profile::step_num() const { return session_->step_num(); }

ProfilerAction Profile::current_action() const { return session_->action(); }

ProfileResults Profile::results() const {
  if (session_->cycle() == nullptr) {
    throw ConfigError(
        "[track] a profile has no results before it has recorded any: stop() "
        "it, or wait for the end of a cycle of its schedule");
  }
  return ProfileResults(session_->cycle());
}

std::vector<OperatorAverage> Profile::key_averages(
    const KeyAveragesOptions& options) const {
  return results().key_averages(options);
}

StepTimes Profile::step_times() const { return session_->step_times(); }

std::vector<StepTimes> Profile::gather_step_times() const {
  const StepTimes mine = step_times();
  const World& world = session_->world();
  std::vector<std::int64_t> numbers;
  for (const auto field : kFields) numbers.push_back(mine.*field);
  std::vector<StepTimes> all;
  for (const at::Tensor& of_rank :
       world.group().all_gather(at::tensor(numbers, at::kLong))) {
    StepTimes& row = all.emplace_back();
    const auto* values = of_rank.const_data_ptr<std::int64_t>();
    for (const auto field : kFields) row.*field = *values++;
  }
  session_->report(all);
  return all;
}

ProfileRange::ProfileRange(std::string_view name) {
  if (!at::hasCallbacks()) return;
  auto range =
      std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!range->isActive()) return;
  range->before(name);
  range_ = std::move(range);
}

ProfileRange::~ProfileRange() = default;

}  // namespace accelerate
