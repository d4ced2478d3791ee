#include "planning/layout/step_time.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "planning/layout/disk_wait.h"
#include "planning/layout/layer_seconds.h"
#include "planning/pipeline/schedule.h"
#include "planning/simulation/replay.h"

namespace accelerate::detail {

namespace {

// Adds the first rank's times in `run`, multiplied by `factor`.
void add_times(LayoutTimes& times, const Replay& run, double factor) {
  for (const ReplaySpan& span : run.ranks.front()) {
    const double seconds = factor * (span.end - span.begin);
    if (span.is_wait) {
      times.exposed[span.what] += seconds;
    } else if (span.what == "optimizer") {
      times.optimizer += seconds;
    } else {
      times.computing += seconds;
    }
  }
  for (const auto& [kind, seconds] : run.travelling)
    times.travelling[kind] += factor * seconds;
}

template <class Write>
Replay replay_rank(const LayoutCase& of, Write&& write) {
  RankPrograms programs(1);
  const RankResources rank =
      add_rank(programs, of.cluster(), of.layout.num_ranks());
  std::forward<Write>(write)(programs, rank);
  return replay(programs);
}

LayoutTimes simulate_undivided(const LayoutCase& of, const LayerRange& layers) {
  const bool always = of.reduces_always();
  const auto micro_step = [&](bool reduces) {
    return replay_rank(of, [&](RankPrograms& programs, const auto& rank) {
      add_forward(programs, rank, of, layers);
      add_backward(programs, rank, of, layers, reduces);
    });
  };
  const Replay last = micro_step(true);
  const Replay end = replay_rank(of, [&](auto& programs, const auto& rank) {
    add_step_end(programs, rank, of, layers);
  });
  LayoutTimes times;
  times.step_seconds = last.time + end.time;
  add_times(times, last, 1);
  add_times(times, end, 1);
  if (of.layout.num_micro_batches == 1) return times;
  const Replay other = always ? last : micro_step(false);
  const auto others = static_cast<double>(of.layout.num_micro_batches - 1);
  times.step_seconds += others * other.time;
  add_times(times, other, others);
  return times;
}

/// Replays of the parts of a step on a rank of one stage.
struct StageRuns {
  Replay forward;
  Replay backward;
  Replay last_backward;
  Replay end;
};

StageRuns runs_of(const LayoutCase& of, const LayerRange& layers) {
  const auto backward = [&](bool reduces) {
    return replay_rank(of, [&](RankPrograms& programs, const auto& rank) {
      add_backward(programs, rank, of, layers, reduces);
    });
  };
  StageRuns runs;
  runs.forward = replay_rank(of, [&](auto& programs, const auto& rank) {
    add_forward(programs, rank, of, layers);
  });
  runs.backward = backward(of.reduces_always());
  runs.last_backward = backward(true);
  runs.end = replay_rank(of, [&](auto& programs, const auto& rank) {
    add_step_end(programs, rank, of, layers);
  });
  return runs;
}

/// The pipeline of one replica, whose stages take as long as their replays.
class PipelineRun {
 public:
  PipelineRun(const LayoutCase& of, const std::vector<LayerRange>& stages)
      : of_(of),
        schedule_(make_pipeline_schedule(
            of.layout.schedule,
            of.layout.pipeline,
            static_cast<int>(of.layout.num_micro_batches),
            of.layout.num_chunks)),
        programs_(static_cast<std::size_t>(of.layout.pipeline)) {
    using Key = std::tuple<std::int64_t, bool, bool, bool>;
    std::map<Key, std::size_t> known;
    for (const LayerRange& layers : stages) {
      const bool is_dense = of.model.shape.num_experts > 0 &&
          layers.begin < of.model.shape.num_dense_layers;
      const Key key{
          layers.end - layers.begin,
          layers.has_embedding,
          layers.has_head,
          is_dense};
      const auto [place, is_new] = known.emplace(key, runs_.size());
      // Stages with dense layers can differ in how many they have.
      if (is_new || is_dense) {
        place->second = runs_.size();
        runs_.push_back(runs_of(of, layers));
      }
      run_of_.push_back(place->second);
    }
    add_resources();
  }

  LayoutTimes simulate() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (const PipelineAction& action : schedule_.ranks[rank])
        add(static_cast<int>(rank), action);
      double end = 0;
      for (int chunk = 0; chunk < schedule_.num_chunks; ++chunk)
        end += run(static_cast<int>(rank), chunk).end.time;
      compute(static_cast<int>(rank), end, "end");
    }
    const Replay whole = replay(programs_);
    LayoutTimes times;
    times.step_seconds = whole.time;
    const int slowest = add_stages(times);
    times.exposed[traffic::kPipeline] = 0;
    // Counts waits for the slowest rank as the price of dividing the layers.
    times.bubble =
        whole.time - whole.computing_seconds(static_cast<std::size_t>(slowest));
    const auto travelling = whole.travelling.find(traffic::kPipeline);
    if (travelling != whole.travelling.end())
      times.travelling[traffic::kPipeline] = travelling->second;
    return times;
  }

 private:
  const StageRuns& run(int rank, int chunk) const {
    return runs_[run_of_[static_cast<std::size_t>(
        schedule_.stage(rank, chunk))]];
  }

  void add_resources() {
    const ClusterSpeeds& cluster = of_.cluster();
    const int ranks = of_.layout.pipeline;
    if (cluster.measured.shared_processors > 0) {
      // Ranks can use the processor time that idle ranks leave.
      const double share =
          static_cast<double>(cluster.measured.shared_processors) /
          std::min(of_.layout.num_ranks(), cluster.ranks_per_node);
      share_ = share;
      const std::size_t processors = programs_.add_resource(
          {"processors", share * ranks, std::max(1.0, share)});
      for (int rank = 0; rank < ranks; ++rank)
        ranks_.push_back({processors, processors, processors, share});
      return;
    }
    for (int rank = 0; rank < ranks; ++rank)
      ranks_.push_back(add_rank(programs_, cluster, of_.layout.num_ranks()));
  }

  void compute(int rank, double seconds, const char* what) {
    const auto r = static_cast<std::size_t>(rank);
    programs_.compute(r, ranks_[r].processor, seconds * share_, what);
  }

  // The message that `stage` sends for a micro-batch.
  std::size_t message(int stage, int micro_batch, bool is_gradient) {
    const auto key = std::tuple(stage, micro_batch, is_gradient);
    const auto found = messages_.find(key);
    if (found != messages_.end()) return found->second;
    const double bytes = of_.tokens() *
        static_cast<double>(of_.model.shape.hidden_size) * of_.element_bytes();
    const auto sender = static_cast<std::size_t>(stage % schedule_.num_ranks);
    const std::size_t id = programs_.add_message(transfer(
        of_.cluster(),
        ranks_[sender],
        of_.pipeline_stride(),
        bytes,
        traffic::kPipeline));
    messages_.emplace(key, id);
    return id;
  }

  void add(int rank, const PipelineAction& action) {
    using Kind = PipelineActionKind;
    const auto r = static_cast<std::size_t>(rank);
    const int stage = schedule_.stage(rank, action.chunk);
    const int last = schedule_.num_stages() - 1;
    const StageRuns& runs = run(rank, action.chunk);
    const bool is_last = action.micro_batch + 1 == schedule_.num_micro_batches;
    const double backward =
        is_last ? runs.last_backward.time : runs.backward.time;
    if (action.kind == Kind::forward) {
      if (stage > 0)
        programs_.wait(r, message(stage - 1, action.micro_batch, false));
      compute(rank, runs.forward.time, "forward");
      if (stage < last)
        programs_.begin(r, message(stage, action.micro_batch, false));
      return;
    }
    if (action.kind != Kind::backward_weight && stage < last)
      programs_.wait(r, message(stage + 1, action.micro_batch, true));
    compute(
        rank,
        action.kind == Kind::backward ? backward : backward / 2,
        "backward");
    if (action.kind != Kind::backward_weight && stage > 0)
      programs_.begin(r, message(stage, action.micro_batch, true));
  }

  // Adds the times of the rank with the most work, and returns that rank.
  int add_stages(LayoutTimes& times) const {
    const auto others = static_cast<double>(of_.layout.num_micro_batches - 1);
    int slowest = 0;
    double most = -1;
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      double seconds = 0;
      for (int chunk = 0; chunk < schedule_.num_chunks; ++chunk)
        seconds +=
            run(rank, chunk).forward.time + run(rank, chunk).backward.time;
      if (seconds <= most) continue;
      most = seconds;
      slowest = rank;
    }
    for (int chunk = 0; chunk < schedule_.num_chunks; ++chunk) {
      const StageRuns& runs = run(slowest, chunk);
      add_times(times, runs.forward, others + 1);
      add_times(times, runs.backward, others);
      add_times(times, runs.last_backward, 1);
      add_times(times, runs.end, 1);
    }
    return slowest;
  }

  const LayoutCase& of_;
  PipelineSchedule schedule_;
  RankPrograms programs_;
  std::vector<StageRuns> runs_;
  std::vector<std::size_t> run_of_;
  std::vector<RankResources> ranks_;
  std::map<std::tuple<int, int, bool>, std::size_t> messages_;
  /// A rank's share of a processor when all ranks compute.
  double share_ = 1;
};

}  // namespace

namespace {

/// Divides layers into stages, starting with the last, which has the head.
class StageDivision {
 public:
  explicit StageDivision(const LayoutCase& of)
      : num_layers_(of.model.shape.num_layers),
        num_stages_(
            static_cast<std::int64_t>(of.layout.pipeline) *
            of.layout.num_chunks),
        num_dense_(
            of.model.shape.num_experts > 0 ? of.model.shape.num_dense_layers
                                           : of.model.shape.num_layers),
        dense_(forward_seconds(of, of.model.dense_layer)),
        expert_(forward_seconds(of, of.model.expert_layer)),
        head_(head_seconds(of)) {}

  /// Number of layers per stage, last stage first, chosen so that the slowest
  /// stage is as fast as possible.
  std::vector<std::int64_t> run() const {
    double low = 0;
    double high =
        head_ + static_cast<double>(num_layers_) * std::max(dense_, expert_);
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      const bool fits =
          static_cast<std::int64_t>(fill(middle).size()) <= num_stages_;
      (fits ? high : low) = middle;
    }
    return fill(high);
  }

 private:
  // Fills stages with at most `most` seconds each, but at least one layer.
  [[nodiscard]] std::vector<std::int64_t> fill(double most) const {
    std::vector<std::int64_t> counts;
    std::int64_t next = num_layers_;
    double room = most - head_;
    while (next > 0) {
      const auto left = num_stages_ - std::ssize(counts);
      if (left <= 0)
        return std::vector<std::int64_t>(
            static_cast<std::size_t>(num_stages_) + 1);
      // Each of the remaining stages needs a layer.
      const std::int64_t available = next - (left - 1);
      const std::int64_t count = std::clamp<std::int64_t>(
          fitting(next, room), 1, std::max<std::int64_t>(available, 1));
      counts.push_back(count);
      next -= count;
      room = most;
    }
    return counts;
  }

  // How many of the layers before `end` fit into `room` seconds.
  [[nodiscard]] std::int64_t fitting(std::int64_t end, double room) const {
    const auto whole = [](double number) {
      return static_cast<std::int64_t>(std::clamp(number, 0.0, 1e9));
    };
    const std::int64_t experts = end - std::min(end, num_dense_);
    const std::int64_t of_experts =
        expert_ > 0 ? whole(room / expert_ * (1 + 1e-12)) : experts;
    if (of_experts < experts) return of_experts;
    const double rest = room - static_cast<double>(experts) * expert_;
    return experts +
        (dense_ > 0 ? whole(rest / dense_ * (1 + 1e-12)) : num_dense_);
  }

  std::int64_t num_layers_;
  std::int64_t num_stages_;
  std::int64_t num_dense_;
  double dense_;
  double expert_;
  double head_;
};

}  // namespace

std::vector<LayerRange> stages_of(const LayoutCase& of) {
  const std::vector<std::int64_t> counts = StageDivision(of).run();
  std::vector<LayerRange> stages;
  std::int64_t begin = 0;
  for (std::size_t i = counts.size(); i-- > 0;) {
    stages.push_back({begin, begin + counts[i], stages.empty(), i == 0});
    begin += counts[i];
  }
  return stages;
}

LayoutTimes simulate_step(const LayoutCase& of) {
  const std::vector<LayerRange> stages = stages_of(of);
  LayoutTimes times = of.layout.pipeline == 1
      ? simulate_undivided(of, stages.front())
      : PipelineRun(of, stages).simulate();
  double parameters = 0;
  for (const LayerRange& layers : stages) {
    const RankParameters own = rank_parameters(of, layers);
    parameters += own.dense + own.experts;
  }
  times.disk = disk_wait(
      of,
      parameters / of.layout.pipeline,
      times.step_seconds - times.optimizer,
      times.optimizer);
  times.step_seconds += times.disk;
  return times;
}

}  // namespace accelerate::detail
