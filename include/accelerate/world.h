#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/call_site.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/message_text.h>
#include <accelerate/export.h>
#include <accelerate/log.h>

namespace accelerate {

class NamedLogger;  // logger.h

namespace detail {
struct GroupImpl;
struct StoreImpl;
class Transport;
struct WorldImpl;
}  // namespace detail

/// Reductions of the values of several ranks. For booleans, sum, max and bit_or
/// are true if any value is; product, min and bit_and if all are. `bit_xor`
/// is the exclusive or of the bits. `mean` needs floating-point or complex
/// values.
enum class ReduceOp { sum, mean, product, min, max, bit_and, bit_or, bit_xor };

/// Ranks that communicate. A cheap handle: copies refer to the same group.
///
/// Every collective must be called by all ranks of the group, in the same
/// order, with tensors of the same dtype on the same kind of device; shapes
/// must agree unless a function says otherwise. With one rank, each is the
/// identity. Every LibTorch dtype is supported (except arithmetic on packed
/// 4-bit floats), as are non-contiguous, 0-d and empty tensors. Nothing is
/// recorded by autograd.
///
/// Callers leave out `site`, the place that errors and reports of hanging ranks
/// name.
///
/// A group must not be used by two threads at once: make another group for
/// overlapping communication (`World::new_group`).
///
/// Throws DistributedError, naming the operation, its number and the peers, if
/// a peer is gone or does not respond within the timeout; the group is unusable
/// afterwards. Throws ConfigError for a tensor or operation that is not
/// supported, before anything is sent.
class ACCELERATE_API Group {
 public:
  /// A group of this process alone.
  Group();
  explicit Group(std::shared_ptr<detail::GroupImpl> impl);

  /// This process's rank in the group.
  [[nodiscard]] int rank() const;
  /// Number of ranks in the group.
  [[nodiscard]] int size() const;
  /// The members' ranks in the world, in the group's order.
  [[nodiscard]] const std::vector<int>& world_ranks() const;

  /// Replaces `tensor` by the reduction over all ranks.
  void all_reduce(
      const at::Tensor& tensor,
      ReduceOp op = ReduceOp::sum,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Replaces `tensor` by the reduction on rank `dst`; elsewhere it keeps its
  /// values.
  void reduce(
      const at::Tensor& tensor,
      int dst,
      ReduceOp op = ReduceOp::sum,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Replaces the values of `tensor` by those of rank `src`.
  void broadcast(
      const at::Tensor& tensor,
      int src,
      detail::CallSite site = detail::CallSite::current()) const;

  /// Returns one tensor per rank, each of this tensor's shape.
  [[nodiscard]] std::vector<at::Tensor> all_gather(
      const at::Tensor& tensor,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Returns one tensor per rank; shapes, even numbers of dimensions, may
  /// differ.
  [[nodiscard]] std::vector<at::Tensor> all_gather_uneven(
      const at::Tensor& tensor,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Returns one tensor per rank on rank `dst`, an empty list elsewhere.
  [[nodiscard]] std::vector<at::Tensor> gather(
      const at::Tensor& tensor,
      int dst,
      detail::CallSite site = detail::CallSite::current()) const;

  /// Reduces `tensor`, divides it along dimension 0 into `size()` equal chunks,
  /// and returns this rank's chunk.
  [[nodiscard]] at::Tensor reduce_scatter(
      const at::Tensor& tensor,
      ReduceOp op = ReduceOp::sum,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Fills `output` with this rank's element of `parts` on rank `src`. `parts`
  /// is read on `src` only, and has one tensor per rank, each of `output`'s
  /// shape.
  void scatter(
      const at::Tensor& output,
      std::span<const at::Tensor> parts,
      int src,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Sends `parts[r]` to rank r, and returns what the ranks sent to this one.
  /// Sizes may differ along dimension 0 only.
  [[nodiscard]] std::vector<at::Tensor> all_to_all(
      std::span<const at::Tensor> parts,
      detail::CallSite site = detail::CallSite::current()) const;

  /// A message is received by the recv() with the same tag, a number of 30
  /// bits; messages with one tag arrive in the order in which they were sent.
  void send(const at::Tensor& tensor, int dst, int tag = 0) const;
  /// Replaces the values of `tensor` by those that rank `src` sends.
  void recv(const at::Tensor& tensor, int src, int tag = 0) const;

  /// Returns when every rank has called it.
  void barrier(detail::CallSite site = detail::CallSite::current()) const;
  /// Returns when every rank has called it, or throws an error that names every
  /// rank that did not arrive within `timeout`. Slower: all ranks answer to
  /// rank 0.
  void monitored_barrier(
      std::chrono::milliseconds timeout,
      detail::CallSite site = detail::CallSite::current()) const;

  /// Moves bytes of any length. For objects, see gather_object() and
  /// broadcast_object() in objects.h.
  [[nodiscard]] std::string broadcast_bytes(
      std::string_view bytes,
      int src,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Returns what each rank gave, in the order of ranks.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(
      std::string_view bytes,
      detail::CallSite site = detail::CallSite::current()) const;
  /// Returns this rank's element of `parts`, which is read on rank `src` only.
  [[nodiscard]] std::string scatter_bytes(
      std::span<const std::string> parts,
      int src,
      detail::CallSite site = detail::CallSite::current()) const;

  [[nodiscard]] const std::shared_ptr<detail::GroupImpl>& impl() const {
    return impl_;
  }

 private:
  detail::KeptPtr<detail::GroupImpl> impl_;
};

/// A small shared dictionary through which ranks find each other. A cheap
/// handle. Keys are strings, values any bytes. Throws DistributedError if the
/// store is gone or `get` waits longer than the timeout.
class ACCELERATE_API Store {
 public:
  /// A TCP store. The rank that serves it listens on `port` (0 for a free one,
  /// see port()); the others connect, waiting for the server. Throws
  /// ConfigError if the port is taken.
  static Store tcp(
      const std::string& host,
      int port,
      bool is_server,
      std::chrono::milliseconds timeout = std::chrono::seconds(300));
  /// A store in a file that all ranks can access and that does not exist yet.
  static Store file(const std::string& path, int num_ranks);
  /// A store for threads of this process.
  static Store in_memory();

  /// Sets the value of a key, or replaces it.
  void set(const std::string& key, std::string_view value) const;
  /// Waits until the key exists.
  [[nodiscard]] std::string get(const std::string& key) const;
  /// Whether the key exists; does not wait.
  [[nodiscard]] bool has(const std::string& key) const;
  /// Adds to a counter that starts at 0; returns the new value.
  std::int64_t add(const std::string& key, std::int64_t amount) const;

  /// This store, with `prefix` before every key.
  [[nodiscard]] Store with_prefix(const std::string& prefix) const;
  /// The port on which a TCP store listens; 0 for others.
  [[nodiscard]] int port() const;

  explicit Store(std::shared_ptr<detail::StoreImpl> impl);
  [[nodiscard]] const std::shared_ptr<detail::StoreImpl>& impl() const {
    return impl_;
  }

 private:
  detail::KeptPtr<detail::StoreImpl> impl_;
};

/// The rank of this process and how it reaches the others. Unset fields take
/// the launcher's values: this project's, torchrun, Accelerate's, MPI or Slurm
/// (docs/guides/launch.md); without a launcher, there is a single rank.
struct WorldOptions {
  // The rank's place; unset: as the launcher says.

  /// This process's number in the world, from 0. Set both this and `size`, or
  /// neither.
  std::optional<int> rank = std::nullopt;
  /// Number of ranks of the world.
  std::optional<int> size = std::nullopt;
  /// This process's number on its machine, from 0, which selects its device. If
  /// `rank` and `size` are set, they are the defaults of this and local_size.
  std::optional<int> local_rank = std::nullopt;
  /// Number of ranks on this machine.
  std::optional<int> local_size = std::nullopt;

  // How ranks find each other, and how they communicate.

  /// Host and port of the TCP store that rank 0 serves.
  std::optional<std::string> address = std::nullopt;
  /// The port of that store.
  std::optional<int> port = std::nullopt;
  /// Use this store instead of a TCP store: a file, or memory among threads.
  std::optional<Store> store = std::nullopt;
  /// Name of the transport between the ranks. "shared_memory": memory that the
  /// ranks of one machine map together; connecting throws DistributedError,
  /// saying why, if ranks cannot. "gloo": TCP, available everywhere.
  /// "automatic": the first for groups of ranks on one machine, else the
  /// second; tensors on CUDA devices travel by NCCL if every rank has it and a
  /// device of its own, else through host memory, with a warning. "nccl": as
  /// automatic, but connecting throws ConfigError, saying why, instead of
  /// warning. Unset: as the launcher says, else automatic. World throws
  /// ConfigError listing the names for another one.
  std::optional<std::string> transport = std::nullopt;

  // The device.

  /// A kind of accelerator without an index is the one of this local rank.
  /// Unset: what `cpu` or the launcher says, else the accelerator of this local
  /// rank if there is one, else the CPU.
  std::optional<at::Device> device = std::nullopt;
  /// True: use the CPU even if there is an accelerator. False: use the
  /// accelerator even if the launcher was told to use the CPU. `device`
  /// overrides it. Unset: as the launcher says.
  std::optional<bool> cpu = std::nullopt;

  // Waiting, and reports of ranks that hang.

  /// How long start-up, and every collective, waits for an unresponsive peer.
  /// Raise it if one rank works alone for longer; lower it to fail sooner.
  /// Unset: as the launcher says, else 10 minutes on CUDA devices, else 30.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Number of seconds that ranks wait for others on their machine before a
  /// report names those that hold them up, and what they are doing; 0: never.
  /// Nothing else happens before `timeout`, unless on_hang says so. Raise it if
  /// calls regularly take longer, because one rank evaluates meanwhile, say.
  /// Unset: as the launcher says, else 10.
  std::optional<double> hang_seconds = std::nullopt;
  /// What follows such a report: "warn": nothing more. "stacks": the stacks of
  /// the ranks that hold up the others. "kill": they are killed as well, so
  /// that the launcher can restart the group. World throws ConfigError for
  /// another string. Unset: as the launcher says, else "stacks".
  std::optional<std::string> on_hang = std::nullopt;

  // Checks and messages.

  /// Compare operation, dtype and shape between ranks before each collective,
  /// to find a rank that does something else. Costs a second collective each
  /// time. Unset: as the launcher says.
  std::optional<bool> debug = std::nullopt;
  /// Unset: lines on standard error, from the launcher's log_level upwards.
  std::optional<Logger> logger = std::nullopt;
  /// A transport of the program's own instead of a named one. For tests: its
  /// class is private and may change.
  std::shared_ptr<detail::Transport> own_transport = nullptr;
};

/// This process and its peers: ranks, device, store and the group of all ranks.
/// A cheap handle; the last copy, and the last Group made from it, close the
/// connections. Construction is collective. Several can exist in one process,
/// even as one rank per thread over an in-memory store; such a program needs
/// TORCH_FR_BUFFER_SIZE=0 in its environment, because LibTorch's flight
/// recorder is not thread-safe when several groups are created at once.
class ACCELERATE_API World {
 public:
  /// Connects to the other ranks, and makes the device the calling thread's
  /// current one, so that tensors of "cuda" are on this rank's. Throws
  /// ConfigError for variables or options that contradict each other,
  /// DistributedError naming the ranks that did not arrive.
  explicit World(const WorldOptions& options = {});

  /// This process's rank, from 0.
  [[nodiscard]] int rank() const;
  /// Number of ranks, on all machines.
  [[nodiscard]] int size() const;
  /// This process's number on its node, from 0.
  [[nodiscard]] int local_rank() const;
  /// Number of ranks on this node.
  [[nodiscard]] int local_size() const;
  /// The device of this rank.
  [[nodiscard]] at::Device device() const;
  /// How long collectives wait for a peer.
  [[nodiscard]] std::chrono::milliseconds timeout() const;
  /// The launcher whose variables gave the rank: "torch", "Slurm", "none",
  /// "options" ….
  [[nodiscard]] const std::string& launcher() const;

  /// The group of all ranks.
  [[nodiscard]] const Group& group() const;
  /// The store through which the ranks found each other.
  [[nodiscard]] const Store& store() const;
  [[nodiscard]] const Logger& logger() const;
  /// A logger for the program's own messages (logger.h). Its level is `level`,
  /// else the one that ACCELERATE_CPP_LOG sets for the name, else log_level.
  [[nodiscard]] NamedLogger logger(
      std::string name,
      std::optional<LogLevel> level = std::nullopt) const;

  /// Makes a group of some ranks. Must be called by exactly these ranks, each
  /// with the same list; calling again with the same list makes a new, separate
  /// group.
  [[nodiscard]] Group new_group(const std::vector<int>& world_ranks) const;

  // The same facts and control of processes as Accelerator has, under the names
  // of Accelerate's PartialState.

  /// Number of ranks, on all machines.
  [[nodiscard]] int num_processes() const { return size(); }
  /// This process's rank, from 0.
  [[nodiscard]] int process_index() const { return rank(); }
  /// This process's number on its node, from 0.
  [[nodiscard]] int local_process_index() const { return local_rank(); }
  /// True on rank 0.
  [[nodiscard]] bool is_main_process() const { return rank() == 0; }
  /// True on the first rank of each node.
  [[nodiscard]] bool is_local_main_process() const { return local_rank() == 0; }
  /// True on the rank with the highest number.
  [[nodiscard]] bool is_last_process() const { return rank() == size() - 1; }
  /// True if there is more than one rank.
  [[nodiscard]] bool use_distributed() const { return size() > 1; }

  /// Returns when every rank has called it.
  void wait_for_everyone() const;
  /// Runs `function` on the named rank only; the others return at once. Throws
  /// ConfigError if there is no such rank.
  void on_process(int process_index, const std::function<void()>& function)
      const;
  /// Runs `function` on rank 0 only.
  void on_main_process(const std::function<void()>& function) const;
  /// Runs `function` on the last rank only.
  void on_last_process(const std::function<void()>& function) const;
  /// Runs `function` on the rank with this local index on each node; nodes with
  /// fewer ranks do not run it. Throws ConfigError for a negative number.
  void on_local_process(
      int local_process_index,
      const std::function<void()>& function) const;
  /// Runs `function` on the first rank of each node.
  void on_local_main_process(const std::function<void()>& function) const;
  /// Runs `function` on rank 0 first, then on the others: rank 0 downloads or
  /// unpacks, the others find the files in place. If rank 0 throws, the others
  /// throw DistributedError. All ranks must call it.
  void main_process_first(const std::function<void()>& function) const;
  /// Runs `function` on the first rank of each node first, then on the others.
  void local_main_process_first(const std::function<void()>& function) const;
  /// Returns this rank's share of a list, a tensor, or a map of them that every
  /// rank has in full. Needs nested.h, which describes it.
  template <class T>
  [[nodiscard]] T split_between_processes(
      const T& items,
      bool apply_padding = false) const;
  /// Writes a line to standard output once per node, on its first rank.
  void print(std::string_view line) const;
  /// Writes a line with a value for each `{}`: print("epoch {}: loss {}", 3,
  /// loss).
  template <class First, class... Rest>
  void print(
      detail::MessageText<1 + sizeof...(Rest)> message,
      const First& first,
      const Rest&... rest) const {
    print(std::string_view(detail::format(message, first, rest...)));
  }

 private:
  detail::KeptPtr<detail::WorldImpl> impl_;
};

}  // namespace accelerate
