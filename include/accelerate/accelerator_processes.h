#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <c10/core/Device.h>

#include <accelerate/deepspeed.h>
#include <accelerate/detail/handles.h>
#include <accelerate/distributed_type.h>
#include <accelerate/export.h>
#include <accelerate/logger.h>
#include <accelerate/parallel.h>
#include <accelerate/planning.h>
#include <accelerate/precision.h>
#include <accelerate/progress.h>
#include <accelerate/world.h>

namespace accelerate {

namespace detail {
struct Session;
}  // namespace detail

class Pipeline;

/// Facts about an Accelerator's processes, and functions that run on some of
/// them; a base class of Accelerator.
class ACCELERATE_API AcceleratorProcesses {
 public:
  [[nodiscard]] at::Device device() const;
  [[nodiscard]] int num_processes() const;
  [[nodiscard]] int process_index() const;
  [[nodiscard]] int local_process_index() const;
  [[nodiscard]] bool is_main_process() const;
  [[nodiscard]] bool is_local_main_process() const;
  [[nodiscard]] bool is_last_process() const;
  [[nodiscard]] Precision mixed_precision() const;
  [[nodiscard]] const std::string& project_dir() const;
  [[nodiscard]] const World& world() const;
  [[nodiscard]] const Mesh& mesh() const;

  [[nodiscard]] DistributedType distributed_type() const;
  /// True if there are several processes.
  [[nodiscard]] bool use_distributed() const;
  /// True if the type is DistributedType::multi_gpu, as in Accelerate: not on
  /// CPUs, nor with FSDP, DeepSpeed or Megatron-LM.
  [[nodiscard]] bool multi_device() const;
  /// True if FSDP's settings are in use, with fsdp_version 2.
  [[nodiscard]] bool is_fsdp2() const;
  [[nodiscard]] AcceleratorState state() const;
  /// This rank's coordinates in `mesh()`; 0 along an axis that is not in use.
  [[nodiscard]] int tensor_parallel_rank() const;
  [[nodiscard]] int pipeline_parallel_rank() const;
  [[nodiscard]] int context_parallel_rank() const;
  /// The index of this rank's replica.
  [[nodiscard]] int data_parallel_rank() const;
  /// The index of this rank's shard in its replica.
  [[nodiscard]] int data_parallel_shard_rank() const;
  /// True on the ranks that must write their model, or their shards of it, in a
  /// program that does its own saving: the first rank of each node if every
  /// rank has the full model, the ranks of the first replica if it is divided.
  /// The accelerator's own save functions decide for themselves, and are called
  /// on all ranks.
  [[nodiscard]] bool should_save_model() const;
  /// DeepSpeed's options in force, each with its value; empty if DeepSpeed's
  /// settings are not in use.
  [[nodiscard]] const std::optional<DeepSpeedOptions>& deepspeed_plugin() const;

  /// Returns when every rank has called it.
  void wait_for_everyone() const;
  /// Runs `function` on the named rank only; the others return at once.
  void on_main_process(const std::function<void()>& function) const;
  void on_local_main_process(const std::function<void()>& function) const;
  void on_last_process(const std::function<void()>& function) const;
  void on_process(int process_index, const std::function<void()>& function)
      const;
  void on_local_process(
      int local_process_index,
      const std::function<void()>& function) const;
  /// Runs `function` on rank 0 first, then on the others: rank 0 downloads or
  /// unpacks, the others find the files in place. If rank 0 throws, the others
  /// throw DistributedError.
  void main_process_first(const std::function<void()>& function) const;
  /// The same among the ranks of each node.
  void local_main_process_first(const std::function<void()>& function) const;
  /// Writes a line to standard output once per node, on its first rank.
  void print(std::string_view line) const;
  /// The same with a value for each `{}`: print("epoch {}: loss {}", 3, loss).
  template <class First, class... Rest>
  void print(
      detail::MessageText<1 + sizeof...(Rest)> message,
      const First& first,
      const Rest&... rest) const {
    print(std::string_view(detail::format(message, first, rest...)));
  }

  /// A logger for the program's own messages (logger.h). Its level is `level`,
  /// else the one that ACCELERATE_CPP_LOG sets for the name, else log_level.
  [[nodiscard]] NamedLogger logger(
      std::string name,
      std::optional<LogLevel> level = std::nullopt) const;
  /// A progress bar around a range, such as a loader, on each node's first rank
  /// (progress.h):
  ///
  ///     for (auto& batch : accelerator.progress(loader))
  template <class Range>
    requires(!std::is_arithmetic_v<std::remove_cvref_t<Range>>)
  [[nodiscard]] auto progress(
      Range&& range,
      const ProgressOptions& options = {}) const {
    return accelerate::progress(
        std::forward<Range>(range), progress_options(options));
  }
  /// A bar around the numbers below `total`, or one that the caller updates.
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  [[nodiscard]] auto progress(T total, const ProgressOptions& options = {})
      const {
    return accelerate::progress(total, progress_options(options));
  }
  /// Deleted: `main_process_only` is a field of ProgressOptions.
  void progress(bool, const ProgressOptions& = {}) const = delete;

  // Layouts.

  /// Measures how fast these ranks and the links between them are, on all ranks
  /// at once: forward and backward of a layer like those of `shape` with
  /// sequences of that length, an optimizer step, and messages within and
  /// between nodes. Nothing else should run meanwhile. Micro-batches of more
  /// than `most_tokens` tokens, and those for which there is no time left, are
  /// not measured, and are rated like the largest that is. `seconds`: roughly
  /// how long this takes, at least 0; the less time, the fewer calls are timed,
  /// but never fewer than two. Collective; the same on all ranks. Throws
  /// ConfigError for invalid arguments.
  [[nodiscard]] ClusterSpeeds measure_cluster(
      const TransformerShape& shape,
      std::int64_t sequence_length,
      std::int64_t most_tokens = 8192,
      double seconds = 15) const;
  /// The same for layers of medium size.
  [[nodiscard]] ClusterSpeeds measure_cluster(double seconds = 15) const;
  /// Plans how to divide the training of a transformer among ranks, by
  /// simulating steps of many layouts (planning.h). Without options.num_ranks
  /// it plans for these ranks, without options.cluster for the speeds that
  /// measure_cluster() finds. Collective; the same on all ranks.
  [[nodiscard]] LayoutPlan plan(
      const TransformerShape& shape,
      const LayoutPlanOptions& options = {}) const;

 protected:
  explicit AcceleratorProcesses(std::shared_ptr<detail::Session> session)
      : session_(std::move(session)) {}

  [[nodiscard]] ProgressOptions progress_options(
      const ProgressOptions& options) const;

  detail::KeptPtr<detail::Session> session_;

 private:
  /// Reads the session's settings for what PipelineOptions leave unset.
  friend class Pipeline;
};

}  // namespace accelerate
