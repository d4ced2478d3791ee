// NCCL's entry points for ranks that are threads of one process, on the pretend
// device: operations run in the order of its streams, once all ranks have
// reached them. Without LibTorch, as the real library.
#include "support/fake_nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "support/pretend_stream.h"

namespace accelerate::testing {
namespace {

// Results.
constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

constexpr int kVersion = 22809;

enum Dtype {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kHalf = 6,
  kFloat = 7,
  kDouble = 8,
  kBFloat16 = 9
};
enum Op { kSum, kProduct, kMax, kMin, kMean };

std::size_t size_of(int dtype) {
  switch (dtype) {
    case kInt8:
    case kUint8:
      return 1;
    case kHalf:
    case kBFloat16:
      return 2;
    case kInt32:
    case kFloat:
      return 4;
    default:
      return 8;
  }
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_half(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
std::uint16_t to_half(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

template <class T>
T combine(T a, T b, int op) {
  switch (op) {
    case kProduct:
      return static_cast<T>(a * b);
    case kMax:
      return std::max(a, b);
    case kMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

// Reduces in double or int64, from rank 0 on, and rounds once.
template <class T, class Wide, class Read, class Write>
void reduce_as(
    const std::vector<const void*>& inputs,
    void* output,
    std::size_t begin,
    std::size_t count,
    int op,
    Read&& read,
    Write&& write) {
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum{};
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      const Wide value = read(static_cast<const T*>(inputs[rank])[begin + i]);
      sum = rank == 0 ? value : combine(sum, value, op);
    }
    if (op == kMean) sum = sum / static_cast<Wide>(inputs.size());
    static_cast<T*>(output)[i] = write(sum);
  }
}

void reduce_plain(
    const std::vector<const void*>& inputs,
    void* output,
    std::size_t begin,
    std::size_t count,
    int dtype,
    int op) {
  const auto plain = [&]<class T, class Wide>(T, Wide) {
    reduce_as<T, Wide>(
        inputs,
        output,
        begin,
        count,
        op,
        [](T value) { return static_cast<Wide>(value); },
        [](Wide value) { return static_cast<T>(value); });
  };
  switch (dtype) {
    case kInt8:
      return plain(std::int8_t{}, std::int64_t{});
    case kUint8:
      return plain(std::uint8_t{}, std::int64_t{});
    case kInt32:
      return plain(std::int32_t{}, std::int64_t{});
    case kInt64:
      return plain(std::int64_t{}, std::int64_t{});
    case kFloat:
      return plain(float{}, float{});
    case kDouble:
      return plain(double{}, double{});
    case kHalf:
      return reduce_as<std::uint16_t, float>(
          inputs, output, begin, count, op, &from_half, &to_half);
    default:
      return reduce_as<std::uint16_t, float>(
          inputs, output, begin, count, op, &from_bfloat16, &to_bfloat16);
  }
}

std::mutex faults_mutex;
FakeNcclFaults current_faults;
FakeNcclFaults faults() {
  const std::lock_guard lock(faults_mutex);
  return current_faults;
}
std::atomic<int> num_communicators = 0;
std::atomic<int> num_starts = 0;

enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter };

// What all ranks must agree on.
struct Call {
  Kind kind = Kind::all_reduce;
  std::size_t count = 0;
  int dtype = 0;
  int op = 0;
  int root = 0;
  bool operator==(const Call&) const = default;
};

struct Side {
  const void* input = nullptr;
  void* output = nullptr;
  const PretendStream* stream = nullptr;
  bool is_queued = false;
  bool has_come = false;
};

// An operation of all ranks, or a message between two.
struct Operation {
  explicit Operation(std::size_t num_sides) : sides(num_sides) {}

  Call call;
  std::vector<Side> sides;
  std::vector<std::size_t> ranks;  // of the sides
  std::function<void(Operation&)> run;
  bool differs = false;
  bool hangs = false;
  bool fails = false;
  bool is_done = false;
};

void run_collective(Operation& operation) {
  const Call& call = operation.call;
  std::vector<Side>& sides = operation.sides;
  const std::size_t bytes = call.count * size_of(call.dtype);
  std::vector<const void*> inputs;
  for (const Side& side : sides) inputs.push_back(side.input);
  std::vector<std::vector<std::byte>> results(sides.size());
  const auto root = static_cast<std::size_t>(call.root);
  for (std::size_t rank = 0; rank < sides.size(); ++rank) {
    std::vector<std::byte>& result = results[rank];
    switch (call.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        if (call.kind == Kind::reduce && rank != root) break;
        result.resize(bytes);
        reduce_plain(inputs, result.data(), 0, call.count, call.dtype, call.op);
        break;
      case Kind::broadcast:
        result.resize(bytes);
        std::memcpy(result.data(), inputs[root], bytes);
        break;
      case Kind::all_gather:
        result.resize(bytes * sides.size());
        for (std::size_t peer = 0; peer < sides.size(); ++peer)
          std::memcpy(result.data() + peer * bytes, inputs[peer], bytes);
        break;
      case Kind::reduce_scatter:
        result.resize(bytes);
        reduce_plain(
            inputs,
            result.data(),
            rank * call.count,
            call.count,
            call.dtype,
            call.op);
        break;
    }
  }
  for (std::size_t rank = 0; rank < sides.size(); ++rank) {
    if (!results[rank].empty())
      std::memcpy(
          sides[rank].output, results[rank].data(), results[rank].size());
  }
}

void run_message(Operation& operation) {
  std::memcpy(
      operation.sides[1].output,
      operation.sides[0].input,
      operation.call.count * size_of(operation.call.dtype));
}

// The ranks of one communicator.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t size = 0;
  std::vector<bool> is_connected;
  // Ranks whose communicators were aborted or destroyed.
  std::vector<bool> has_left;
  std::map<std::size_t, std::shared_ptr<Operation>> collectives;
  std::map<std::tuple<int, int, std::size_t>, std::shared_ptr<Operation>>
      messages;
};

std::mutex cliques_mutex;
std::map<std::string, std::weak_ptr<Clique>> cliques;

struct Communicator {
  std::shared_ptr<Clique> clique;
  std::size_t rank = 0;
  // What this rank has begun; guarded by the clique's mutex.
  std::size_t num_operations = 0;
  std::map<std::tuple<int, int, bool>, std::size_t> num_messages;
  std::set<const PretendStream*> streams;
  // Set by ncclCommFinalize.
  std::thread finalizer;
  std::atomic<bool> is_finalizing = false;
  std::atomic<bool> is_final = false;
};

// Waits for an operation at which this rank has come. The others' streams need
// not run until then.
void take_part(
    const std::shared_ptr<Clique>& clique,
    const std::shared_ptr<Operation>& operation,
    std::size_t rank) {
  std::unique_lock lock(clique->mutex);
  Operation& own = *operation;
  const auto have_all_come = [&own] {
    return std::all_of(
        own.sides.begin(), own.sides.end(), [](const Side& each) {
          return each.has_come;
        });
  };
  // A rank that has left may have freed its memory.
  const bool have_all_stayed = std::ranges::none_of(
      own.ranks, [&](std::size_t each) { return clique->has_left[each]; });
  if (!own.differs && !own.hangs && have_all_come() && !own.is_done &&
      have_all_stayed) {
    own.run(own);
    own.is_done = true;
    clique->changed.notify_all();
    return;
  }
  // The others' streams are run by threads of their own, as by devices.
  std::vector<std::thread> devices;
  std::vector<bool> is_running(own.sides.size());
  const auto is_over = [&] { return own.is_done || clique->has_left[rank]; };
  while (!is_over()) {
    for (std::size_t peer = 0; peer < own.sides.size(); ++peer) {
      const Side& other = own.sides[peer];
      if (is_running[peer] || !other.is_queued || other.has_come) continue;
      is_running[peer] = true;
      devices.emplace_back([stream = other.stream] { stream->run(stream); });
    }
    clique->changed.wait(lock);
  }
  lock.unlock();
  for (std::thread& device : devices) device.detach();
}

// One rank's part of an operation.
struct Part {
  std::shared_ptr<Clique> clique;
  std::shared_ptr<Operation> operation;
  Call call;
  std::size_t side = 0;
  std::size_t rank = 0;
  Side own;
};

// Runs parts side by side on their stream.
void queue_parts(const std::vector<Part>& parts) {
  if (parts.empty()) return;
  ++num_starts;
  for (const Part& part : parts) {
    const std::lock_guard lock(part.clique->mutex);
    Operation& operation = *part.operation;
    const bool is_first = std::none_of(
        operation.sides.begin(), operation.sides.end(), [](const Side& each) {
          return each.stream != nullptr;
        });
    if (is_first) operation.call = part.call;
    // The real library hangs, or mixes values.
    operation.differs = operation.differs || operation.call != part.call;
    operation.sides[part.side] = part.own;
  }
  const PretendStream* const stream = parts.front().own.stream;
  auto* const owned = new std::vector<Part>(parts);
  stream->enqueue(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::vector<Part>> taken(
            static_cast<std::vector<Part>*>(argument));
        for (const Part& part : *taken) {
          const std::lock_guard lock(part.clique->mutex);
          part.operation->sides[part.side].has_come = true;
        }
        for (const Part& part : *taken)
          take_part(part.clique, part.operation, part.rank);
      },
      owned);
  // Only now, so that others can run it.
  for (const Part& part : parts) {
    const std::lock_guard lock(part.clique->mutex);
    part.operation->sides[part.side].is_queued = true;
    part.clique->changed.notify_all();
  }
}

// Operations between ncclGroupStart and ncclGroupEnd.
thread_local int group_depth = 0;
thread_local std::vector<Part> grouped;

void queue_or_group(Part part) {
  if (group_depth > 0) {
    grouped.push_back(std::move(part));
  } else {
    queue_parts({std::move(part)});
  }
}

int begin(Communicator& communicator, const Call& call, Side own) {
  const std::shared_ptr<Clique> clique = communicator.clique;
  const FakeNcclFaults wrong = faults();
  Part part{
      .clique = clique,
      .operation = nullptr,
      .call = call,
      .side = communicator.rank,
      .rank = communicator.rank,
      .own = own};
  {
    const std::lock_guard lock(clique->mutex);
    if (clique->has_left[communicator.rank]) return kInvalidArgument;
    communicator.streams.insert(own.stream);
    const std::size_t number = ++communicator.num_operations;
    auto& found = clique->collectives[number];
    if (found == nullptr) {
      found = std::make_shared<Operation>(clique->size);
      found->run = &run_collective;
      for (std::size_t rank = 0; rank < clique->size; ++rank)
        found->ranks.push_back(rank);
      found->hangs = wrong.hanging_operation == static_cast<int>(number);
    }
    part.operation = found;
    if (wrong.fails_all ||
        wrong.failing_operation == static_cast<int>(number)) {
      found->hangs = true;
      found->fails = true;
    }
  }
  queue_or_group(std::move(part));
  return kSuccess;
}

int begin_message(
    Communicator& communicator,
    bool sends,
    int peer,
    const Call& call,
    Side own) {
  const std::shared_ptr<Clique> clique = communicator.clique;
  const int rank = static_cast<int>(communicator.rank);
  const std::pair<int, int> ends =
      sends ? std::pair(rank, peer) : std::pair(peer, rank);
  Part part{
      .clique = clique,
      .operation = nullptr,
      .call = call,
      .side = sends ? std::size_t{0} : std::size_t{1},
      .rank = communicator.rank,
      .own = own};
  {
    const std::lock_guard lock(clique->mutex);
    if (clique->has_left[communicator.rank]) return kInvalidArgument;
    communicator.streams.insert(own.stream);
    const std::size_t number =
        ++communicator.num_messages[{ends.first, ends.second, sends}];
    auto& found = clique->messages[{ends.first, ends.second, number}];
    if (found == nullptr) {
      found = std::make_shared<Operation>(2);
      found->run = &run_message;
      found->ranks = {
          static_cast<std::size_t>(ends.first),
          static_cast<std::size_t>(ends.second)};
    }
    part.operation = found;
  }
  queue_or_group(std::move(part));
  return kSuccess;
}

void leave(Communicator* communicator) {
  {
    const std::lock_guard lock(communicator->clique->mutex);
    communicator->clique->has_left[communicator->rank] = true;
    communicator->clique->changed.notify_all();
  }
  if (communicator->finalizer.joinable()) communicator->finalizer.join();
  --num_communicators;
  delete communicator;
}

// Whether `rank` has begun the operation, which cannot end, since another has
// left or it fails.
bool is_abandoned(
    const Clique& clique,
    const Operation& operation,
    std::size_t rank) {
  if (operation.is_done) return false;
  bool is_begun = false, has_left = false;
  for (std::size_t side = 0; side < operation.sides.size(); ++side) {
    const std::size_t peer = operation.ranks[side];
    is_begun = is_begun || (peer == rank && operation.sides[side].is_queued);
    has_left = has_left || (peer != rank && clique.has_left[peer]);
  }
  return is_begun && (has_left || operation.fails);
}

bool is_abandoned(const Clique& clique, std::size_t rank) {
  const auto is_so = [&](const auto& entry) {
    return is_abandoned(clique, *entry.second, rank);
  };
  return std::ranges::any_of(clique.collectives, is_so) ||
      std::ranges::any_of(clique.messages, is_so);
}

}  // namespace
}  // namespace accelerate::testing

using accelerate::testing::begin;
using accelerate::testing::begin_message;
using accelerate::testing::Call;
using accelerate::testing::Clique;
using accelerate::testing::cliques;
using accelerate::testing::cliques_mutex;
using accelerate::testing::Communicator;
using accelerate::testing::Kind;
using accelerate::testing::PretendStream;

namespace {
accelerate::testing::Side
side_of(const void* input, void* output, void* stream) {
  return {
      .input = input,
      .output = output,
      .stream = static_cast<const PretendStream*>(stream)};
}
}  // namespace

// Found by name, though the build hides names.
#pragma GCC visibility push(default)
extern "C" {

struct UniqueId {
  char bytes[128];
};

int ncclGetVersion(int* version) {
  const int wanted = accelerate::testing::faults().version;
  *version = wanted != 0 ? wanted : accelerate::testing::kVersion;
  return 0;
}

int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> number = 0;
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "fake %d", ++number);
  return 0;
}

int ncclCommInitRankConfig(
    Communicator** communicator,
    int size,
    UniqueId id,
    int rank,
    const void*) {
  const std::lock_guard lock(cliques_mutex);
  std::shared_ptr<Clique> clique = cliques[id.bytes].lock();
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = static_cast<std::size_t>(size);
    clique->is_connected.resize(clique->size);
    clique->has_left.resize(clique->size);
    cliques[id.bytes] = clique;
  }
  if (accelerate::testing::faults().fails_to_connect)
    return accelerate::testing::kInvalidArgument;
  const std::lock_guard own(clique->mutex);
  clique->is_connected[static_cast<std::size_t>(rank)] = true;
  *communicator = new Communicator();
  (*communicator)->clique = clique;
  (*communicator)->rank = static_cast<std::size_t>(rank);
  ++accelerate::testing::num_communicators;
  return accelerate::testing::kInProgress;
}

// Nothing else may run the rank's streams anymore.
int ncclCommFinalize(Communicator* communicator) {
  communicator->is_finalizing = true;
  communicator->finalizer = std::thread([communicator] {
    for (const PretendStream* const stream : communicator->streams)
      stream->run(stream);
    communicator->is_final = true;
  });
  return accelerate::testing::kInProgress;
}
int ncclCommDestroy(Communicator* communicator) {
  accelerate::testing::leave(communicator);
  return 0;
}
int ncclCommAbort(Communicator* communicator) {
  accelerate::testing::leave(communicator);
  return 0;
}

int ncclCommGetAsyncError(Communicator* communicator, int* code) {
  Clique& clique = *communicator->clique;
  const std::lock_guard lock(clique.mutex);
  const auto all = [](const std::vector<bool>& flags) {
    return std::all_of(flags.begin(), flags.end(), [](bool is) { return is; });
  };
  *code = accelerate::testing::kSuccess;
  if (accelerate::testing::faults().never_connects || !all(clique.is_connected))
    *code = accelerate::testing::kInProgress;
  if (communicator->is_finalizing && !communicator->is_final)
    *code = accelerate::testing::kInProgress;
  if (!accelerate::testing::faults().hides_aborts &&
      accelerate::testing::is_abandoned(clique, communicator->rank))
    *code = accelerate::testing::kRemoteError;
  return 0;
}

const char* ncclGetErrorString(int code) {
  return code == accelerate::testing::kRemoteError
      ? "remote process exited or there was a network error"
      : "invalid argument";
}
const char* ncclGetLastError(Communicator*) { return ""; }

int ncclGroupStart() {
  ++accelerate::testing::group_depth;
  return 0;
}
int ncclGroupEnd() {
  if (--accelerate::testing::group_depth == 0)
    accelerate::testing::queue_parts(
        std::exchange(accelerate::testing::grouped, {}));
  return 0;
}

int ncclAllReduce(
    const void* input,
    void* output,
    std::size_t count,
    int dtype,
    int op,
    Communicator* communicator,
    void* stream) {
  return begin(
      *communicator,
      {Kind::all_reduce, count, dtype, op, 0},
      side_of(input, output, stream));
}

int ncclReduce(
    const void* input,
    void* output,
    std::size_t count,
    int dtype,
    int op,
    int root,
    Communicator* communicator,
    void* stream) {
  return begin(
      *communicator,
      {Kind::reduce, count, dtype, op, root},
      side_of(input, output, stream));
}

int ncclBroadcast(
    const void* input,
    void* output,
    std::size_t count,
    int dtype,
    int root,
    Communicator* communicator,
    void* stream) {
  return begin(
      *communicator,
      {Kind::broadcast, count, dtype, 0, root},
      side_of(input, output, stream));
}

int ncclAllGather(
    const void* input,
    void* output,
    std::size_t count,
    int dtype,
    Communicator* communicator,
    void* stream) {
  return begin(
      *communicator,
      {Kind::all_gather, count, dtype, 0, 0},
      side_of(input, output, stream));
}

int ncclReduceScatter(
    const void* input,
    void* output,
    std::size_t count,
    int dtype,
    int op,
    Communicator* communicator,
    void* stream) {
  return begin(
      *communicator,
      {Kind::reduce_scatter, count, dtype, op, 0},
      side_of(input, output, stream));
}

int ncclSend(
    const void* input,
    std::size_t count,
    int dtype,
    int peer,
    Communicator* communicator,
    void* stream) {
  return begin_message(
      *communicator,
      /*sends=*/true,
      peer,
      {Kind::broadcast, count, dtype, 0, 0},
      side_of(input, nullptr, stream));
}

int ncclRecv(
    void* output,
    std::size_t count,
    int dtype,
    int peer,
    Communicator* communicator,
    void* stream) {
  return begin_message(
      *communicator,
      /*sends=*/false,
      peer,
      {Kind::broadcast, count, dtype, 0, 0},
      side_of(nullptr, output, stream));
}

const accelerate::testing::FakeNcclControls* fake_nccl_controls() {
  static const accelerate::testing::FakeNcclControls controls{
      .set_faults =
          [](const accelerate::testing::FakeNcclFaults* faults) {
            const std::lock_guard lock(accelerate::testing::faults_mutex);
            accelerate::testing::current_faults = *faults;
          },
      .num_communicators =
          [] { return accelerate::testing::num_communicators.load(); },
      .num_starts = [] { return accelerate::testing::num_starts.load(); }};
  return &controls;
}

}  // extern "C"
#pragma GCC visibility pop
