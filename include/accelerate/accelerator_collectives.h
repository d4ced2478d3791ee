#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/accelerator_loaders.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/parallel.h>
#include <accelerate/step_options.h>
#include <accelerate/world.h>

namespace accelerate {

struct MetricRanks;

/// Collectives on values of all ranks, for metrics and decisions; a base class
/// of Accelerator. Functions on samples run over the ranks that read different
/// data, `mesh().batch_group()`. With replicas and shards, that is every rank;
/// where several ranks share a batch (as with tensor parallelism), they have
/// the same values, and each sample counts once.
class ACCELERATE_API AcceleratorCollectives : public AcceleratorLoaders {
 public:
  /// Returns the values of all batches, concatenated along dimension 0 in the
  /// order of batch ranks, on every rank.
  template <class T>
  T gather(const T& value) const {
    return accelerate::gather(value, mesh().batch_group());
  }
  /// The same for a braced list of tensors.
  template <class T>
  std::vector<T> gather(std::initializer_list<T> values) const {
    return accelerate::gather(values, mesh().batch_group());
  }
  /// Like gather(), without the samples that the loader repeated to fill the
  /// last batch. Call it on every batch, inside the loop over the loader. Ranks
  /// can have different numbers of rows; values that are not rows of the batch
  /// (0-d losses, say) are all kept as long as there are fewer of them than
  /// samples. Lists beside the tensors are treated like them.
  template <class T>
  T gather_for_metrics(const T& value) const {
    static_assert(
        NestedTensors<T>,
        "gather_for_metrics() takes tensors, or a std::vector with one object "
        "for each sample");
    T all = accelerate::gather(value, mesh().batch_group());
    if constexpr (NestedTensors<T>) {
      const std::int64_t remainder = loader_remainder();
      if (remainder > 0) {
        keep_first_rows(detail::parts_of(all), remainder);
      }
    }
    return all;
  }
  /// The same for a list: tensors are gathered one by one. Objects (objects.h),
  /// one for each sample, are joined into one list; so are tensors with
  /// `use_gather_object`, which throws ConfigError for a type of your own that
  /// has visit_tensors() but not object_to_bytes().
  template <class T>
  std::vector<T> gather_for_metrics(
      const std::vector<T>& values,
      const GatherForMetricsOptions& options = {}) const {
    if constexpr (NestedTensors<std::vector<T>>) {
      if (!options.use_gather_object)
        return gather_for_metrics<std::vector<T>>(values);
    }
    if constexpr (NestedTensors<std::vector<T>> && !Transferable<T>) {
      refuse_gather_object();
    } else {
      std::vector<T> all = gather_object(values);
      const std::int64_t remainder = loader_remainder();
      if (remainder > 0 && static_cast<std::int64_t>(all.size()) > remainder)
        all.erase(all.begin() + remainder, all.end());
      return all;
    }
  }
  /// Returns the lists of all batches, concatenated, on every rank. See
  /// objects.h for what can be sent.
  template <class T>
  std::vector<T> gather_object(const std::vector<T>& objects) const {
    return accelerate::gather_object(objects, mesh().batch_group());
  }
  template <class T>
  std::vector<T> gather_object(std::initializer_list<T> objects) const {
    return accelerate::gather_object(objects, mesh().batch_group());
  }
  template <class T>
  std::vector<T> gather_object(const T& object) const {
    return accelerate::gather_object(object, mesh().batch_group());  // refused
  }
  /// Returns the object of process `from_process` on every process.
  template <class T>
  [[nodiscard]] T broadcast_object(const T& object, int from_process = 0)
      const {
    return accelerate::broadcast_object(object, world().group(), from_process);
  }
  /// Returns the list of process `from_process` on every process.
  template <class T>
  [[nodiscard]] std::vector<T> broadcast_object_list(
      const std::vector<T>& objects,
      int from_process = 0) const {
    return accelerate::broadcast_object_list(
        objects, world().group(), from_process);
  }
  /// Returns the tensors of process `from_process` on every process.
  template <class T>
  T broadcast(const T& value, int from_process = 0) const {
    return accelerate::broadcast(value, world().group(), from_process);
  }
  /// Returns the sum (the default, as in Accelerate), mean, maximum or other
  /// reduction over all batches, on every rank. The free reduce() takes the
  /// mean unless told otherwise.
  template <class T>
  T reduce(
      const T& value,
      std::optional<ReduceOp> op = ReduceOp::sum,
      double scale = 1.0) const {
    return accelerate::reduce(value, mesh().batch_group(), op, scale);
  }
  /// Pads every tensor along `dim` to the largest size of any batch, so that
  /// they can be gathered.
  template <class T>
  T pad_across_processes(
      const T& value,
      std::int64_t dim = 0,
      double pad_index = 0,
      bool pad_first = false) const {
    return accelerate::pad_across_processes(
        value, mesh().batch_group(), dim, pad_index, pad_first);
  }
  /// Asks all ranks to stop at their next check; any rank can call it.
  void set_trigger() const;
  /// True if any rank has set the trigger since the last check that returned
  /// true. Collective.
  [[nodiscard]] bool check_trigger() const;
  /// True on all ranks, in the same call, if the process of any rank has been
  /// told to end (AcceleratorOptions::preemption_signals). Call it at the end
  /// of every step, or every few steps, on all ranks alike; if it is true, save
  /// and leave the loop within the time that the launcher (`--grace_seconds`),
  /// Slurm or Kubernetes grants. Communicates one number. From the first call
  /// on, these signals no longer end the process.
  [[nodiscard]] bool check_preemption() const;

  /// Lets metrics be constructed from an Accelerator: `Mean loss(accelerator)`.
  /// See metrics.h.
  operator MetricRanks() const;

  /// Returns this rank's share of a list, a tensor, or a map of them that every
  /// rank has in full. See nested.h. Ranks that share a batch get the same
  /// share.
  template <class T>
  T split_between_processes(const T& items, bool apply_padding = false) const {
    constexpr bool can_split = requires {
      accelerate::split_between_processes(items, Group(), apply_padding);
    };
    static_assert(
        can_split,
        "split_between_processes() splits a std::vector, a tensor, or a map of "
        "these; put the items into a std::vector");
    if constexpr (can_split) {
      return accelerate::split_between_processes(
          items, mesh().batch_group(), apply_padding);
    } else {
      return items;
    }
  }

 protected:
  using AcceleratorLoaders::AcceleratorLoaders;

  /// Whether this process has been told to end, which check_preemption() asks
  /// all ranks. Does not communicate.
  [[nodiscard]] bool is_told_to_end() const;
  [[nodiscard]] std::int64_t loader_remainder() const;
  [[noreturn]] static void refuse_gather_object();
  static void keep_first_rows(
      const detail::NestedParts& parts,
      std::int64_t rows);

 private:
  // Asks the ranks about more than one thing at a time.
  friend class ElasticContext;
};

}  // namespace accelerate
