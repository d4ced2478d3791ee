#include "planning/pipeline/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using ActionKind = PipelineActionKind;

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineTimes& times)
      : schedule_(schedule),
        times_(times),
        next_(schedule.ranks.size(), 0),
        free_at_(schedule.ranks.size(), 0),
        forward_end_(cells(), kNever),
        input_end_(cells(), kNever) {
    result_.ranks.resize(schedule.ranks.size());
  }

  PipelineSimulation run() {
    // Each pass runs the ready actions of every rank; actions depend only on
    // actions that ran, so the order of passes does not change the times.
    while (advance_all()) {
    }
    check_end();
    if (!result_.deadlock.empty()) return std::move(result_);
    for (const double end : free_at_)
      result_.time = std::max(result_.time, end);
    measure_bubble();
    result_.most_kept = most_kept(schedule_);
    return std::move(result_);
  }

 private:
  static constexpr double kNever = -1;

  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(schedule_.num_stages()) *
        static_cast<std::size_t>(schedule_.num_micro_batches);
  }
  [[nodiscard]] std::size_t cell(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) *
        static_cast<std::size_t>(schedule_.num_micro_batches) +
        static_cast<std::size_t>(micro_batch);
  }

  bool advance_all() {
    bool has_moved = false;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      while (next_[rank] < actions.size() &&
             try_run(rank, actions[next_[rank]])) {
        ++next_[rank];
        has_moved = true;
      }
    }
    return has_moved;
  }

  // When the action's input is available; kNever if that is not yet known.
  [[nodiscard]] double ready_at(int stage, const PipelineAction& action) const {
    const int i = action.micro_batch;
    const auto after = [&](double end, int other) {
      return end == kNever ? kNever : end + transfer(stage, other);
    };
    switch (action.kind) {
      case ActionKind::forward:
        return stage == 0 ? 0
                          : after(forward_end_[cell(stage - 1, i)], stage - 1);
      case ActionKind::backward_weight:
        return input_end_[cell(stage, i)];
      default:
        if (forward_end_[cell(stage, i)] == kNever) return kNever;
        if (stage + 1 == schedule_.num_stages())
          return forward_end_[cell(stage, i)];
        return after(input_end_[cell(stage + 1, i)], stage + 1);
    }
  }

  [[nodiscard]] double transfer(int stage, int other) const {
    return schedule_.rank_of(stage) == schedule_.rank_of(other)
        ? 0
        : times_.transfer;
  }

  [[nodiscard]] double length_of(int stage, ActionKind kind) const {
    const double factor = times_.stage_factors.empty()
        ? 1
        : times_.stage_factors[static_cast<std::size_t>(stage)];
    switch (kind) {
      case ActionKind::forward:
        return factor * times_.forward;
      case ActionKind::backward_input:
        return factor * times_.backward_input;
      case ActionKind::backward_weight:
        return factor * times_.backward_weight;
      case ActionKind::backward:
        break;
    }
    return factor * (times_.backward_input + times_.backward_weight);
  }

  bool try_run(std::size_t rank, const PipelineAction& action) {
    const int stage = schedule_.stage(static_cast<int>(rank), action.chunk);
    const double ready = ready_at(stage, action);
    if (ready == kNever) return false;
    const double begin = std::max(ready, free_at_[rank]);
    const double end = begin + length_of(stage, action.kind);
    free_at_[rank] = end;
    if (action.kind == ActionKind::forward) {
      forward_end_[cell(stage, action.micro_batch)] = end;
    } else if (action.kind != ActionKind::backward_weight) {
      input_end_[cell(stage, action.micro_batch)] = end;
    }
    result_.ranks[rank].push_back(
        {.action = action, .begin = begin, .end = end});
    return true;
  }

  void check_end() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      if (next_[rank] == actions.size()) continue;
      const PipelineAction& action = actions[next_[rank]];
      result_.deadlock = format(
          "rank {} waits forever for micro-batch {} of its chunk {}",
          rank,
          action.micro_batch,
          action.chunk);
      return;
    }
  }

  void measure_bubble() {
    double busy = 0;
    for (const auto& spans : result_.ranks) {
      for (const PipelineSpan& span : spans) busy += span.end - span.begin;
    }
    const double all =
        result_.time * static_cast<double>(schedule_.ranks.size());
    result_.bubble = all > 0 ? 1 - busy / all : 0;
  }

  const PipelineSchedule& schedule_;
  const PipelineTimes& times_;
  std::vector<std::size_t> next_;
  std::vector<double> free_at_;
  std::vector<double> forward_end_;
  std::vector<double> input_end_;
  PipelineSimulation result_;
};

// The text that stands for one unit of an action's time.
std::string symbol_of(const PipelineAction& action) {
  const std::string number = std::to_string(action.micro_batch);
  switch (action.kind) {
    case ActionKind::forward:
      return "F" + number;
    case ActionKind::backward:
      return "B" + number;
    case ActionKind::backward_input:
      return "I" + number;
    case ActionKind::backward_weight:
      break;
  }
  return "W" + number;
}

}  // namespace

std::vector<int> most_kept(const PipelineSchedule& schedule) {
  const std::vector<double> most = most_kept(
      schedule,
      std::vector<PipelineKept>(
          static_cast<std::size_t>(schedule.num_stages())));
  return {most.begin(), most.end()};
}

std::vector<double> most_kept(
    const PipelineSchedule& schedule,
    const std::vector<PipelineKept>& kept) {
  std::vector<double> found;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    double now = 0, most = 0;
    for (const PipelineAction& action : schedule.ranks[rank]) {
      const PipelineKept& stage = kept[static_cast<std::size_t>(
          schedule.stage(static_cast<int>(rank), action.chunk))];
      switch (action.kind) {
        case ActionKind::forward:
          now += stage.activations;
          break;
        case ActionKind::backward:
          now -= stage.activations;
          break;
        case ActionKind::backward_input:
          now += stage.for_weights - stage.activations;
          break;
        case ActionKind::backward_weight:
          now -= stage.for_weights;
          break;
      }
      most = std::max(most, now);
    }
    found.push_back(most);
  }
  return found;
}

PipelineSimulation simulate_pipeline(
    const PipelineSchedule& schedule,
    const PipelineTimes& times) {
  return Simulation(schedule, times).run();
}

std::string draw_pipeline(const PipelineSchedule& schedule) {
  const PipelineSimulation simulation = simulate_pipeline(schedule, {});
  const std::size_t width = 2 +
      std::to_string(schedule.num_micro_batches - 1).size() +
      (schedule.num_chunks > 1 ? 1 : 0);
  std::string text;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    std::string line = format("rank {}: ", rank);
    const std::size_t origin = line.size();
    for (const PipelineSpan& span : simulation.ranks[rank]) {
      const auto begin = static_cast<std::size_t>(std::lround(span.begin));
      const auto end = static_cast<std::size_t>(std::lround(span.end));
      line.resize(origin + begin * width, ' ');
      std::string cell = symbol_of(span.action);
      if (schedule.num_chunks > 1)
        cell += static_cast<char>('a' + span.action.chunk % 26);
      cell.resize((end - begin) * width, ' ');
      line += cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace accelerate::detail
