// Random histories of calls between real processes: random groups, on one
// machine or on several simulated ones, several threads with groups of their
// own, every collective and messages, random dtypes, shapes and strides. All
// results are compared with the expected ones bit for bit. In half of the
// histories a rank is killed at a random moment; then the others must end, too,
// and none may hang or get a wrong value.
// usage: transport_histories COUNT [SEED]; exits with 1 if anything was wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "comm/group/group_impl.h"

namespace {

using namespace accelerate;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937;

int between(Random& random, int low, int high) {
  return low +
      static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

// One history; every rank makes the same one from the seed.
struct Plan {
  explicit Plan(unsigned seed) : random(seed) {
    num_ranks = between(random, 2, 5);
    // The machine of each rank; one machine most of the time.
    const bool is_divided = between(random, 0, 3) == 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const bool begins = rank > 0 && is_divided && between(random, 0, 1) == 0;
      machine_of.push_back(
          rank == 0 ? 0 : machine_of.back() + (begins ? 1 : 0));
    }
    num_threads = between(random, 1, 3);
    length = between(random, 5, 40);
    if (between(random, 0, 1) == 0) victim = between(random, 0, num_ranks - 1);
    kill_after_us = between(random, 0, 60'000);
  }

  [[nodiscard]] int local_rank(int rank) const {
    return static_cast<int>(std::count(
        machine_of.begin(), machine_of.begin() + rank, machine_of[rank]));
  }
  [[nodiscard]] int local_size(int rank) const {
    return static_cast<int>(
        std::count(machine_of.begin(), machine_of.end(), machine_of[rank]));
  }

  Random random;
  int num_ranks = 0;
  std::vector<int> machine_of;
  int num_threads = 0;
  int length = 0;
  int victim = -1;
  int kill_after_us = 0;
};

const std::vector<at::ScalarType> kDtypes{
    at::kFloat,
    at::kDouble,
    at::kBFloat16,
    at::kHalf,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2,
    at::kInt,
    at::kLong,
    at::kShort,
    at::kChar,
    at::kByte,
    at::kUInt16,
    at::kBool,
    at::kComplexFloat,
    at::kComplexDouble};

// Values in memory of some shape and order; equal for equal arguments.
at::Tensor make_values(
    at::ScalarType dtype,
    const std::vector<std::int64_t>& sizes,
    int layout,
    unsigned salt) {
  auto generator = at::detail::createCPUGenerator(salt);
  const auto options = torch::dtype(torch::kDouble);
  at::Tensor values = torch::randn(sizes, generator, options) * 40;
  if (c10::isComplexType(dtype)) {
    values = at::complex(values, torch::randn(sizes, generator, options));
  } else if (dtype == at::kBool) {
    values = values > 0;
  } else if (c10::isIntegralType(dtype, false)) {
    values = values.abs().floor();
  }
  values = values.to(dtype);
  if (layout == 1 && values.dim() == 2) return values.t().contiguous().t();
  if (layout == 2) {
    // Every other row of a larger tensor.
    const at::Tensor room = at::zeros(
        {2 * sizes[0], sizes.size() > 1 ? sizes[1] : 1}, values.options());
    at::Tensor view = room.slice(0, 0, 2 * sizes[0], 2);
    view = sizes.size() > 1 ? view : view.select(1, 0);
    view.copy_(values);
    return view;
  }
  return values;
}

// Copies the values, since a single element may have any stride.
at::Tensor bytes_of(const at::Tensor& values) {
  return values.clone(at::MemoryFormat::Contiguous)
      .reshape({-1})
      .view(at::kByte);
}

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && torch::equal(bytes_of(a), bytes_of(b));
}

// The sum in rank order, as one machine computes it.
at::Tensor sum_in_order(const std::vector<at::Tensor>& values) {
  const at::ScalarType dtype = values[0].scalar_type();
  const bool is_small_float =
      dtype == at::kBFloat16 || dtype == at::kHalf || c10::isFloat8Type(dtype);
  const at::ScalarType wide = is_small_float ? at::kFloat
      : dtype == at::kUInt16                 ? at::kLong
                                             : dtype;
  at::Tensor sum = values[0].to(wide);
  for (std::size_t i = 1; i < values.size(); ++i) {
    sum = dtype == at::kBool ? at::logical_or(sum, values[i])
                             : sum + values[i].to(wide);
  }
  return sum.to(dtype);
}

// The calls of one thread, each on a random one of its groups.
class Caller {
 public:
  Caller(
      const Plan& plan,
      const World& world,
      std::vector<Group> groups,
      unsigned seed)
      : plan_(plan), world_(world), groups_(std::move(groups)), random_(seed) {}

  void run() {
    for (int i = 0; i < plan_.length; ++i) {
      // All ranks draw the same numbers, even if they do not belong to the
      // group.
      const auto which = random_() % groups_.size();
      const int kind = between(random_, 0, 11);
      const at::ScalarType dtype = kDtypes[random_() % kDtypes.size()];
      std::vector<std::int64_t> sizes{between(random_, 0, 60)};
      if (between(random_, 0, 1) == 0)
        sizes.push_back(between(random_, 1, 400));
      if (between(random_, 0, 9) == 0) sizes[0] += 60'000 / (sizes.size() * 7);
      const int layout = between(random_, 0, 2);
      salt_ = random_();
      root_ = static_cast<int>(random_());
      const Group& group = groups_[which];
      if (group.size() < 2) continue;
      call(group, kind, dtype, sizes, layout);
    }
  }

 private:
  void call(
      const Group& group,
      int kind,
      at::ScalarType dtype,
      const std::vector<std::int64_t>& sizes,
      int layout) {
    accelerate::detail::Connection& connection = *group.impl()->connection;
    const int size = group.size();
    const int me = group.rank();
    const int root = std::abs(root_ % size);
    const auto of = [&](int rank) {
      return make_values(
          dtype, sizes, layout, salt_ * 31U + static_cast<unsigned>(rank));
    };
    const auto all_values = [&] {
      std::vector<at::Tensor> values;
      for (int rank = 0; rank < size; ++rank) values.push_back(of(rank));
      return values;
    };
    const at::Tensor own = of(me);
    switch (kind) {
      case 0:
      case 1:
        connection.all_reduce(own, ReduceOp::sum)->wait();
        return expect(own, sum_of(group, all_values()), "all_reduce");
      case 2:
        connection.reduce(own, ReduceOp::sum, root)->wait();
        return expect(
            own, me == root ? sum_of(group, all_values()) : of(me), "reduce");
      case 3:
        connection.broadcast(own, root)->wait();
        return expect(own, of(root), "broadcast");
      case 4: {
        std::vector<std::int64_t> shape = sizes;
        shape.insert(shape.begin(), size);
        const at::Tensor output = at::empty(shape, own.options());
        connection.all_gather(output, own)->wait();
        for (int rank = 0; rank < size; ++rank)
          expect(output[rank], of(rank), "all_gather");
        return;
      }
      case 5: {
        std::vector<at::Tensor> outputs;
        for (int rank = 0; me == root && rank < size; ++rank)
          outputs.push_back(at::empty_like(of(rank)));
        connection.gather(outputs, own, root)->wait();
        for (std::size_t i = 0; i < outputs.size(); ++i)
          expect(outputs[i], of(static_cast<int>(i)), "gather");
        return;
      }
      case 6: {
        std::vector<at::Tensor> inputs;
        if (me == root) inputs = all_values();
        const at::Tensor output = at::empty_like(own);
        connection.scatter(output, inputs, root)->wait();
        return expect(output, own, "scatter");
      }
      case 7: {
        std::vector<at::Tensor> inputs;
        for (const at::Tensor& values : all_values())
          inputs.push_back(values.repeat(repeats(size, values.dim())));
        const at::Tensor output = at::empty(sizes, own.options());
        connection
            .reduce_scatter(
                output, inputs[static_cast<std::size_t>(me)], ReduceOp::sum)
            ->wait();
        return expect(output, sum_of(group, all_values()), "reduce_scatter");
      }
      case 8:
        return all_to_all(connection, dtype);
      case 9: {
        const int next = (me + 1) % size;
        const int before = (me + size - 1) % size;
        const int tag = static_cast<int>(salt_ % 6U);
        const at::Tensor received = at::empty_like(own);
        if (own.numel() == 0) return;
        const auto sent = connection.send(own, next, tag);
        connection.run_in_background();
        connection.receive(received, before, tag)->wait();
        sent->wait();
        return expect(received, of(before), "message");
      }
      case 10: {
        // In the memory where the other ranks reduce it, if this is one
        // machine.
        constexpr std::int64_t kCount = 40'000;
        const auto numbers = [&](int rank) {
          return make_values(
              at::kFloat, {kCount}, 0, salt_ + static_cast<unsigned>(rank));
        };
        at::Tensor memory = connection.reducible_memory(4 * kCount);
        const at::Tensor values =
            memory.defined() ? memory.view(at::kFloat) : at::empty({kCount});
        values.copy_(numbers(me));
        connection.all_reduce(values, ReduceOp::sum)->wait();
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < size; ++rank) all.push_back(numbers(rank));
        return expect(values, sum_of(group, all), "reducible memory");
      }
      default:
        connection.barrier()->wait();
        return;
    }
  }

  static std::vector<std::int64_t> repeats(int size, std::int64_t num_dims) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(num_dims), 1);
    all[0] = size;
    return all;
  }

  // Parts of different sizes, some of them empty.
  void all_to_all(
      accelerate::detail::Connection& connection,
      at::ScalarType dtype) {
    const auto count = [&](int from, int to) {
      return static_cast<std::int64_t>(
          (salt_ / 7U + static_cast<unsigned>(from * 13 + to * 5)) % 900U);
    };
    const auto part = [&](int from, int to) {
      return make_values(
          dtype,
          {count(from, to)},
          0,
          salt_ + static_cast<unsigned>(from * 64 + to));
    };
    const int me = connection.rank();
    std::vector<at::Tensor> inputs, expected;
    std::vector<std::int64_t> sent, received;
    for (int peer = 0; peer < connection.size(); ++peer) {
      inputs.push_back(part(me, peer));
      sent.push_back(inputs.back().numel());
      expected.push_back(part(peer, me));
      received.push_back(expected.back().numel());
    }
    const at::Tensor all = at::cat(expected);
    const at::Tensor output = at::empty_like(all);
    connection.all_to_all(output, at::cat(inputs), received, sent)->wait();
    expect(output, all, "all_to_all");
  }

  // Adds in rank order on one machine, and machine by machine on several.
  at::Tensor sum_of(const Group& group, const std::vector<at::Tensor>& values)
      const {
    std::vector<std::vector<at::Tensor>> by_machine;
    std::map<int, std::size_t> known;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int machine =
          plan_.machine_of[static_cast<std::size_t>(group.world_ranks()[i])];
      const auto [entry, is_new] = known.emplace(machine, by_machine.size());
      if (is_new) by_machine.emplace_back();
      by_machine[entry->second].push_back(values[i]);
    }
    if (by_machine.size() == values.size() && values.size() > 1) {
      // No two ranks share a machine, so the order is Gloo's.
      is_exact_ = false;
      return sum_in_order(values);
    }
    is_exact_ = true;
    std::vector<at::Tensor> sums;
    for (const auto& machine : by_machine)
      sums.push_back(sum_in_order(machine));
    return sum_in_order(sums);
  }

  void expect(
      const at::Tensor& value,
      const at::Tensor& right,
      const char* what) const {
    const bool is_exact = std::exchange(is_exact_, true);
    if (are_equal(value, right)) return;
    const bool is_close = !is_exact && value.sizes() == right.sizes() &&
        (c10::isIntegralType(value.scalar_type(), true)
             ? false
             : at::allclose(
                   value.to(at::kComplexDouble),
                   right.to(at::kComplexDouble),
                   0.2,
                   8));
    if (is_close) return;
    std::printf(
        "rank %d: %s of %s is wrong\n",
        world_.rank(),
        what,
        c10::toString(value.scalar_type()));
    std::fflush(stdout);
    std::_Exit(9);
  }

  const Plan& plan_;
  const World& world_;
  std::vector<Group> groups_;
  Random random_;
  unsigned salt_ = 0;
  int root_ = 0;
  mutable bool is_exact_ = true;
};

// Timeout of a rank's call: long, so that only a bug exceeds it, but shorter
// than a history's timeout, so that the rank reports what it waited for.
constexpr std::chrono::seconds kTimeout{400};
constexpr std::chrono::seconds kLongestHistory{480};

constexpr int kLost = 3;  // exit code: another rank was gone

// Runs a rank's threads; exits with kLost if a peer is gone, and with 8 after
// an unknown error.
void play(unsigned seed, int rank, int port) {
  Plan plan(seed);
  at::set_num_threads(1);
  std::atomic<bool> has_lost{false};
  const auto guarded = [&](const std::function<void()>& body) {
    try {
      body();
    } catch (const DistributedError& error) {
      if (plan.victim < 0) std::printf("rank %d: %s\n", rank, error.what());
      has_lost.store(true);
    } catch (const std::runtime_error& error) {
      // An error that a transport throws.
      const std::string text = error.what();
      const bool is_known = text.find("[shared memory]") != std::string::npos ||
          text.find("gloo") != std::string::npos ||
          text.find("Connection") != std::string::npos;
      if (!is_known || plan.victim < 0)
        std::printf("rank %d: %s\n", rank, error.what());
      if (!is_known) {
        std::fflush(stdout);
        std::_Exit(8);
      }
      has_lost.store(true);
    }
  };
  std::thread killer;
  guarded([&] {
    const Store store = Store::tcp("127.0.0.1", port, false, kTimeout)
                            .with_prefix(std::to_string(seed));
    const World world(
        {.rank = rank,
         .size = plan.num_ranks,
         .local_rank = plan.local_rank(rank),
         .local_size = plan.local_size(rank),
         .store = store,
         .transport = "automatic",
         .device = at::kCPU,
         .timeout = kTimeout,
         .logger = Logger([](const LogRecord&) {}, LogLevel::off)});
    std::vector<std::vector<Group>> groups;
    for (int thread = 0; thread < plan.num_threads; ++thread) {
      std::vector<int> all(static_cast<std::size_t>(plan.num_ranks));
      for (int i = 0; i < plan.num_ranks; ++i) all[i] = i;
      groups.push_back({world.new_group(all)});
      for (int i = between(plan.random, 0, 2); i > 0; --i) {
        std::vector<int> some = all;
        std::shuffle(some.begin(), some.end(), plan.random);
        some.resize(
            static_cast<std::size_t>(between(plan.random, 1, plan.num_ranks)));
        const bool belongs =
            std::find(some.begin(), some.end(), rank) != some.end();
        groups.back().push_back(belongs ? world.new_group(some) : Group());
      }
    }
    if (rank == plan.victim) {
      killer = std::thread([&] {
        std::this_thread::sleep_for(
            std::chrono::microseconds(plan.kill_after_us));
        std::raise(SIGKILL);
      });
    }
    std::vector<std::thread> threads;
    for (int thread = 0; thread < plan.num_threads; ++thread) {
      threads.emplace_back([&, thread] {
        Caller caller(
            plan,
            world,
            groups[static_cast<std::size_t>(thread)],
            seed * 7U + static_cast<unsigned>(thread));
        guarded([&] { caller.run(); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    // No rank closes its connections while others still use them.
    if (!has_lost.load()) world.group().barrier();
  });
  if (killer.joinable()) killer.join();
  std::fflush(stdout);
  std::_Exit(has_lost.load() ? kLost : 0);
}

struct Outcome {
  int num_killed = 0;
  bool is_wrong = false;
};

Outcome run_history(unsigned seed, int port) {
  const Plan plan(seed);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < plan.num_ranks; ++rank) {
    std::fflush(stdout);  // or the child prints it again
    const pid_t child = ::fork();
    if (child == 0) play(seed, rank, port);
    ranks.push_back(child);
  }
  Outcome outcome;
  const auto deadline = Clock::now() + kLongestHistory;
  std::vector<int> codes(ranks.size(), -1);
  std::size_t num_left = ranks.size();
  while (num_left > 0) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      int status = 0;
      if (codes[i] >= 0 || ::waitpid(ranks[i], &status, WNOHANG) <= 0) continue;
      codes[i] =
          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      --num_left;
    }
    if (num_left > 0 && Clock::now() > deadline) {
      outcome.is_wrong = true;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (codes[i] >= 0) continue;
        std::printf("history %u: rank %zu hangs\n", seed, i);
        ::kill(ranks[i], SIGKILL);
        ::waitpid(ranks[i], nullptr, 0);
      }
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  const bool was_killed =
      std::find(codes.begin(), codes.end(), 128 + SIGKILL) != codes.end();
  outcome.num_killed = was_killed ? 1 : 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const bool is_victim = static_cast<int>(i) == plan.victim;
    const bool is_fine = codes[i] == 0 || (is_victim && codes[i] == 137) ||
        (was_killed && codes[i] == kLost);
    if (is_fine) continue;
    std::printf("history %u: rank %zu ended with %d\n", seed, i, codes[i]);
    outcome.is_wrong = true;
  }
  return outcome;
}

// Files in shared memory, and segments that processes of this session still
// map.
std::set<std::string> find_segments() {
  namespace fs = std::filesystem;
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    // Directories belong to other tests.
    if (entry.is_regular_file(ignored) &&
        entry.path().filename().string().find("accelerate") !=
            std::string::npos)
      found.insert(entry.path().string());
  }
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    const int process = std::atoi(name.c_str());
    if (process <= 0 || ::getsid(process) != ::getsid(0)) continue;
    std::ifstream maps(entry.path() / "maps");
    std::string line;
    while (std::getline(maps, line)) {
      if (line.find("memfd:accelerate") != std::string::npos)
        found.insert(name + " " + line);
    }
  }
  return found;
}

// A process that serves the store until its input ends.
int serve_store(int& input) {
  int to_server[2], from_server[2];
  if (::pipe(to_server) != 0 || ::pipe(from_server) != 0) std::exit(2);
  if (::fork() == 0) {
    ::close(to_server[1]);
    const Store store = Store::tcp("127.0.0.1", 0, true);
    const int port = store.port();
    if (::write(from_server[1], &port, sizeof port) != sizeof port)
      std::_Exit(2);
    char byte = 0;
    while (::read(to_server[0], &byte, 1) > 0) {
    }
    std::_Exit(0);
  }
  ::close(to_server[0]);
  ::close(from_server[1]);
  input = to_server[1];
  int port = 0;
  if (::read(from_server[0], &port, sizeof port) != sizeof port) std::exit(2);
  ::close(from_server[0]);
  return port;
}

void end_store(int input) {
  ::close(input);
  ::wait(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  const auto first = static_cast<unsigned>(argc > 2 ? std::atoi(argv[2]) : 1);
  ::setsid();
  // A store keeps all its keys, so each serves only some histories.
  constexpr int kOneStore = 100;
  int input = -1, port = 0;
  int num_killed = 0, num_wrong = 0;
  for (int i = 0; i < count && num_wrong < 10; ++i) {
    if (i % kOneStore == 0) {
      if (input >= 0) end_store(input);
      port = serve_store(input);
    }
    const Outcome outcome =
        run_history(first * 1'000'003U + static_cast<unsigned>(i), port);
    num_killed += outcome.num_killed;
    num_wrong += outcome.is_wrong ? 1 : 0;
  }
  if (input >= 0) end_store(input);
  const std::set<std::string> left = find_segments();
  for (const std::string& segment : left)
    std::printf("left behind: %s\n", segment.c_str());
  std::printf(
      "%d histories, %d with a rank killed, %d wrong, %zu segments left\n",
      count,
      num_killed,
      num_wrong,
      left.size());
  return num_wrong > 0 || !left.empty() ? 1 : 0;
}
