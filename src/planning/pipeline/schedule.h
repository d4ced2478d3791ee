#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// What a rank of a pipeline computes for one micro-batch. A whole backward is
/// `backward`; schedules that postpone the gradients of weights divide it.
enum class PipelineActionKind {
  forward,
  backward,
  backward_input,
  backward_weight,
};

struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::forward;
  /// Which of its chunks of layers the rank computes, from 0.
  int chunk = 0;
  int micro_batch = 0;

  friend bool operator==(const PipelineAction&, const PipelineAction&) =
      default;
};

/// What each rank of a pipeline does, in order. Chunk `c` of rank `r` is stage
/// `c * num_ranks + r` of the model; a stage takes what the one before it gave
/// for the same micro-batch, and gives back the gradient of it.
struct PipelineSchedule {
  int num_ranks = 1;
  int num_chunks = 1;  ///< per rank
  int num_micro_batches = 1;
  std::vector<std::vector<PipelineAction>> ranks;

  [[nodiscard]] int num_stages() const { return num_ranks * num_chunks; }
  [[nodiscard]] int stage(int rank, int chunk) const {
    return chunk * num_ranks + rank;
  }
};

enum class PipelineScheduleKind {
  gpipe,
  one_f_one_b,
  interleaved_1f1b,
  zero_bubble,
};

/// "GPipe", "1F1B", "Interleaved1F1B", "ZBH1", as PyTorch and the papers spell
/// them. Throws ConfigError listing the names for another one.
PipelineScheduleKind parse_pipeline_schedule(std::string_view name);
std::string_view name_of(PipelineScheduleKind kind);

/// The schedule of a kind.
///
/// gpipe: all forwards, then all backwards (Huang et al., 2019). one_f_one_b: as
/// many forwards as stages follow, then a backward after each forward
/// (Narayanan et al., 2021), so that a rank keeps the activations of at most as
/// many micro-batches as there are ranks. interleaved_1f1b: the same with
/// several chunks per rank (Narayanan et al., 2021), which divides the idle time
/// by their number. zero_bubble: ZB-H1 (Qi et al., 2023), 1F1B whose weights'
/// gradients fill the time in which a rank would wait; every rank keeps as many
/// activations as the first one of 1F1B.
///
/// Throws ConfigError for fewer than one rank, chunk or micro-batch; for several
/// chunks in a schedule that has one per rank, or one where there are several;
/// and for micro-batches that the ranks do not divide, where chunks are
/// interleaved.
PipelineSchedule make_pipeline_schedule(
    PipelineScheduleKind kind,
    int num_ranks,
    int num_micro_batches,
    int num_chunks = 1);

/// Why no run of the schedule could end, or what it computes twice or not at
/// all; empty for a schedule that is right.
std::string find_fault(const PipelineSchedule& schedule);

}  // namespace accelerate::detail
