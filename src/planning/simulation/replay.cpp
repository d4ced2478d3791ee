#include "planning/simulation/replay.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Instruction = RankPrograms::Instruction;

constexpr double kForever = std::numeric_limits<double>::infinity();

// A rank's computation, or a flow of a message.
struct Task {
  double left = 0;
  std::vector<std::size_t> resources = {};
  bool is_message = false;
  /// Index of the rank or of the message.
  std::size_t owner = 0;
  double rate = 0;
  /// How many turns were queued before its own.
  std::size_t number = 0;
  /// Seconds left of its turn, where tasks take turns.
  double turn = kForever;
};

// A message before its flows begin.
struct Departure {
  double at = 0;
  std::size_t message = 0;
};

struct MessageState {
  int num_begun = 0;
  std::size_t num_flows = 0;
  double begun_at = 0;
  bool is_over = false;
  std::vector<std::size_t> waiting = {};
};

class Replaying {
 public:
  explicit Replaying(const RankPrograms& programs)
      : programs_(programs),
        next_(programs.ranks().size(), 0),
        blocked_since_(programs.ranks().size(), 0),
        messages_(programs.messages().size()),
        users_(programs.resources().size(), 0),
        takes_turns_(std::ranges::any_of(
            programs.resources(),
            [](const SharedResource& each) { return each.turn > 0; })) {
    result_.ranks.resize(programs.ranks().size());
  }

  Replay run() {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) advance(rank);
    while (!tasks_.empty() || !departures_.empty()) {
      share_out();
      pass_time();
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == programs_.ranks()[rank].size()) continue;
      const Instruction& stuck = programs_.ranks()[rank][next_[rank]];
      result_.deadlock = format(
          "rank {} waits forever for a message of kind \"{}\"",
          rank,
          programs_.messages()[stuck.message].kind);
      break;
    }
    return std::move(result_);
  }

 private:
  // Runs the rank's instructions up to the next one that takes time.
  void advance(std::size_t rank) {
    const auto& program = programs_.ranks()[rank];
    while (next_[rank] < program.size()) {
      const Instruction& each = program[next_[rank]];
      switch (each.kind) {
        case Instruction::Kind::compute:
          blocked_since_[rank] = now_;
          add_task({each.amount, {each.resource}, false, rank});
          return;
        case Instruction::Kind::begin:
          begin(each.message);
          break;
        case Instruction::Kind::wait:
          if (!messages_[each.message].is_over) {
            blocked_since_[rank] = now_;
            messages_[each.message].waiting.push_back(rank);
            return;
          }
          break;
      }
      ++next_[rank];
    }
    result_.time = std::max(result_.time, now_);
  }

  void begin(std::size_t message) {
    MessageState& state = messages_[message];
    const SimulatedMessage& what = programs_.messages()[message];
    if (++state.num_begun != what.num_senders) return;
    state.begun_at = now_;
    departures_.push_back({now_ + what.latency, message});
  }

  void depart(std::size_t message) {
    const SimulatedMessage& what = programs_.messages()[message];
    messages_[message].num_flows = what.flows.size();
    for (const Flow& flow : what.flows)
      add_task({flow.amount, flow.resources, true, message});
    if (what.flows.empty()) arrive(message);
  }

  void arrive(std::size_t message) {
    MessageState& state = messages_[message];
    state.is_over = true;
    result_.travelling[programs_.messages()[message].kind] +=
        now_ - state.begun_at;
    for (const std::size_t rank : std::exchange(state.waiting, {}))
      finish_instruction(rank);
  }

  void finish_instruction(std::size_t rank) {
    const Instruction& each = programs_.ranks()[rank][next_[rank]];
    const bool is_wait = each.kind == Instruction::Kind::wait;
    if (now_ > blocked_since_[rank]) {
      result_.ranks[rank].push_back(
          {is_wait,
           is_wait ? programs_.messages()[each.message].kind : each.what,
           blocked_since_[rank],
           now_});
    }
    ++next_[rank];
    advance(rank);
  }

  void add_task(Task task) {
    for (const std::size_t resource : task.resources) ++users_[resource];
    tasks_.push_back(std::move(task));
    begin_turn(tasks_.back());
  }

  // Queues the task behind all that wait for a turn.
  void begin_turn(Task& task) {
    task.number = num_turns_++;
    task.turn = kForever;
    for (const std::size_t index : task.resources) {
      const double turn = programs_.resources()[index].turn;
      if (turn > 0) task.turn = std::min(task.turn, turn);
    }
  }

  void share_out() {
    if (takes_turns_) {
      std::ranges::sort(tasks_, {}, &Task::number);
    }
    std::vector<double> left;
    for (const SharedResource& each : programs_.resources())
      if (takes_turns_) left.push_back(each.capacity);
    for (Task& task : tasks_) {
      task.rate = kForever;
      for (const std::size_t index : task.resources) {
        const SharedResource& resource = programs_.resources()[index];
        task.rate = std::min(
            {task.rate,
             resource.most_per_task,
             resource.turn > 0
                 ? left[index]
                 : resource.capacity / static_cast<double>(users_[index])});
      }
      if (!takes_turns_) continue;
      for (const std::size_t index : task.resources) left[index] -= task.rate;
    }
  }

  // Advances to the next time at which a task ends or a message departs.
  void pass_time() {
    double step = kForever;
    for (const Task& task : tasks_)
      if (task.rate > 0)
        step = std::min({step, task.left / task.rate, task.turn});
    for (const Departure& each : departures_)
      step = std::min(step, each.at - now_);
    step = std::max(step, 0.0);
    now_ += step;
    std::vector<Task> ended;
    for (std::size_t i = 0; i < tasks_.size();) {
      Task& task = tasks_[i];
      const double time_left =
          task.rate > 0 ? task.left / task.rate - step : kForever;
      task.left -= task.rate * step;
      // Tasks that end at the same time up to rounding end now.
      if (time_left > 1e-12 * (1 + now_)) {
        if (task.rate > 0) task.turn -= step;
        if (task.turn <= 1e-12) begin_turn(task);
        ++i;
        continue;
      }
      for (const std::size_t resource : task.resources) --users_[resource];
      ended.push_back(std::move(task));
      tasks_[i] = std::move(tasks_.back());
      tasks_.pop_back();
    }
    std::vector<std::size_t> departed;
    std::erase_if(departures_, [&](const Departure& each) {
      if (each.at > now_ + 1e-15 * (1 + now_)) return false;
      departed.push_back(each.message);
      return true;
    });
    for (const std::size_t message : departed) depart(message);
    for (const Task& task : ended) {
      if (!task.is_message) {
        finish_instruction(task.owner);
      } else if (--messages_[task.owner].num_flows == 0) {
        arrive(task.owner);
      }
    }
    if (!ended.empty()) result_.time = std::max(result_.time, now_);
  }

  const RankPrograms& programs_;
  double now_ = 0;
  std::vector<std::size_t> next_;
  std::vector<double> blocked_since_;
  std::vector<MessageState> messages_;
  /// Number of tasks per resource.
  std::vector<int> users_;
  bool takes_turns_;
  std::size_t num_turns_ = 0;
  std::vector<Task> tasks_;
  std::vector<Departure> departures_;
  Replay result_;
};

}  // namespace

double Replay::computing_seconds(std::size_t rank) const {
  double sum = 0;
  for (const ReplaySpan& span : ranks[rank]) {
    if (!span.is_wait) sum += span.end - span.begin;
  }
  return sum;
}

double Replay::waiting(std::size_t rank, const std::string& kind) const {
  double sum = 0;
  for (const ReplaySpan& span : ranks[rank]) {
    if (span.is_wait && (kind.empty() || span.what == kind))
      sum += span.end - span.begin;
  }
  return sum;
}

double Replay::bubble() const {
  if (time <= 0 || ranks.empty()) return 0;
  double busy = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    busy += computing_seconds(rank);
  return 1 - busy / (time * static_cast<double>(ranks.size()));
}

double Replay::overlap(const std::string& kind) const {
  double sum = 0;
  for (const auto& [each, seconds] : travelling) {
    if (kind.empty() || each == kind) sum += seconds;
  }
  if (sum <= 0) return 0;
  return std::clamp(1 - waiting(0, kind) / sum, 0.0, 1.0);
}

Replay replay(const RankPrograms& programs) {
  return Replaying(programs).run();
}

}  // namespace accelerate::detail
