// Worker threads give the same batches as the loop's own thread does.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include <rapidcheck.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace workers_test {

using testing::expect_error;
using testing::run_on_ranks;
using Values = std::vector<std::int64_t>;

template <class Loader>
Values read(Loader& loader, std::int64_t num_batches = 1'000'000) {
  Values all;
  if (num_batches == 0) return all;
  for (auto& [x] : loader) {
    for (const std::int64_t value : listify(x)) all.push_back(value);
    if (--num_batches == 0) break;
  }
  return all;
}

// Sample i is i.
struct Identity {
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
    return {torch::tensor(i)};
  }
};

class Counter {
 public:
  explicit Counter(std::int64_t size) : size_(size) {}
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == size_) return std::nullopt;
    return std::tuple{torch::tensor(next_++)};
  }
  void reset() { next_ = 0; }

 protected:
  std::int64_t size_;
  std::int64_t next_ = 0;
};

TEST(Workers, GiveTheBatchesOfALoopWithoutWorkers) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(0, 40);
    DataLoaderOptions options{
        .batch_size = *rc::gen::inRange<std::int64_t>(1, 7),
        .shuffle = *rc::gen::arbitrary<bool>(),
        .drop_last = *rc::gen::arbitrary<bool>(),
        .data_seed = 5};
    DataLoader plain(Identity{size}, options);
    DataLoader plain_batches(TensorDataset{torch::arange(size)}, options);
    options.num_workers = *rc::gen::inRange(1, 4);
    options.prefetch_factor = *rc::gen::inRange(1, 4);
    DataLoader ahead(Identity{size}, options);
    DataLoader ahead_batches(TensorDataset{torch::arange(size)}, options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      const Values expected = read(plain);
      RC_ASSERT(read(ahead) == expected);
      RC_ASSERT(read(ahead_batches) == read(plain_batches));
      options.shuffle = false;
    }
    DataLoader plain_stream(
        Counter(size),
        {.batch_size = options.batch_size, .drop_last = options.drop_last});
    DataLoader stream(Counter(size), options);
    RC_ASSERT(read(stream) == read(plain_stream));
  }));
}

TEST(Workers, MayBeLeftAnywhereAndBegunAgain) {
  DataLoader loader(
      Identity{100}, {.batch_size = 3, .shuffle = true, .num_workers = 3});
  DataLoader plain(Identity{100}, {.batch_size = 3, .shuffle = true});
  for (int pass = 0; pass < 20; ++pass) {
    EXPECT_EQ(read(loader, pass), read(plain, pass));
  }
  auto unread = loader.begin();
  DataLoader moved = std::move(plain);
  EXPECT_EQ(read(moved).size(), 100U);
}

TEST(Workers, ResumeFromAStateTakenWithBatchesInFlight) {
  const DataLoaderOptions options{
      .batch_size = 4,
      .shuffle = true,
      .data_seed = 3,
      .num_workers = 2,
      .prefetch_factor = 4};
  DataLoader whole(Identity{50}, options);
  const Values expected = read(whole);
  for (std::int64_t stop = 1; stop <= 13; ++stop) {
    DataLoader first(Identity{50}, options);
    Values joined;
    StateDict state;
    std::int64_t num_read = 0;
    for (auto& [x] : first) {
      for (const std::int64_t value : listify(x)) joined.push_back(value);
      state = first.state_dict();
      if (++num_read == stop) break;
    }
    DataLoader second(Identity{50}, options);
    second.load_state_dict(state);
    EXPECT_EQ(second.epoch(), stop == 13 ? 1U : 0U);
    if (stop < 13) {
      const Values rest = read(second);
      joined.insert(joined.end(), rest.begin(), rest.end());
    }
    EXPECT_EQ(joined, expected);
  }
}

// Reading sample `gate->sample` blocks until the gate is opened.
struct Gated {
  struct Gate {
    std::int64_t sample;
    std::latch opened{1};
    std::latch reached{1};
    std::atomic<int> num_read = 0;
  };
  std::int64_t count;
  std::shared_ptr<Gate> gate;

  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
    ++gate->num_read;
    if (i == gate->sample) {
      gate->reached.count_down();
      gate->opened.wait();
    }
    return {torch::tensor(i)};
  }
};

std::shared_ptr<Gated::Gate> make_gate(std::int64_t sample) {
  return std::shared_ptr<Gated::Gate>(new Gated::Gate{.sample = sample});
}

TEST(Workers, HandOutOtherBatchesWhileASlowOneIsMade) {
  const auto gate = make_gate(2);
  DataLoader loader(
      Gated{12, gate},
      {.batch_size = 2,
       .num_workers = 2,
       .prefetch_factor = 3,
       .in_order = false});
  Values seen;
  StateDict state;
  for (auto& [x] : loader) {
    seen.push_back(x[0].item<std::int64_t>());
    // The slow batch holds up only the last batch.
    if (seen.size() == 4) {
      state = loader.state_dict();
      gate->opened.count_down();
    }
  }
  EXPECT_EQ((Values(seen.begin(), seen.begin() + 4)), (Values{0, 4, 6, 8}));
  EXPECT_EQ((Values(seen.begin() + 4, seen.end())), (Values{2, 10}));
  // Nothing is lost: a pass resumed here starts with the slow batch.
  EXPECT_EQ(state.get<std::int64_t>("position"), 2);
}

TEST(Workers, ReadAheadByTheirCapacity) {
  for (const int prefetch_factor : {1, 2, 3}) {
    const int capacity = 2 * prefetch_factor;
    const auto gate = make_gate(0);
    DataLoader loader(
        Gated{1000, gate},
        {.batch_size = 1,
         .num_workers = 2,
         .prefetch_factor = prefetch_factor,
         // Ends the wait if too little is read ahead.
         .timeout = std::chrono::seconds(60)});
    std::atomic<bool> has_given_up = false;
    std::thread opener([&] {
      gate->reached.wait();
      // The other worker reads on from sample 1 and then waits for room.
      while (gate->num_read < capacity && !has_given_up)
        std::this_thread::yield();
      gate->opened.count_down();
    });
    std::optional<decltype(loader.begin())> pass;
    try {
      pass.emplace(loader.begin());
    } catch (const DataError& error) {
      has_given_up = true;
      ADD_FAILURE() << error.what();
    }
    opener.join();
    // One sample was handed out; the others are held.
    EXPECT_LE(gate->num_read, capacity + 1);
    if (has_given_up) return;
  }
}

struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Throwing {
  std::int64_t bad = 0;
  [[nodiscard]] std::int64_t size() const { return 20; }
  [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
    if (i == bad) throw Mistake("file is torn");
    return {torch::tensor(i)};
  }
};

TEST(Workers, CarryAnExceptionToTheLoopInItsTurn) {
  for (const int num_workers : {0, 1, 3}) {
    DataLoader loader(
        Throwing{13}, {.batch_size = 2, .num_workers = num_workers});
    Values seen;
    try {
      for (auto& [x] : loader) seen.push_back(x[0].item<std::int64_t>());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const DataError& error) {
      EXPECT_STREQ(
          error.what(), "[data] sample 13: get() failed: file is torn");
      EXPECT_THROW(std::rethrow_if_nested(error), Mistake);
    }
    EXPECT_EQ(seen, (Values{0, 2, 4, 6, 8, 10}));
    // The loader works again.
    EXPECT_EQ(loader.epoch(), 1U);
  }
}

TEST(Workers, CarryExceptionsOfOtherTypesToo) {
  struct Odd {
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t) const { throw 7; }
  };
  DataLoader loader(Odd(), {.num_workers = 2});
  expect_error<DataError>(
      [&] { read(loader); },
      "sample 0: get() failed: an exception not derived");
}

TEST(Workers, NameTheSampleTheyAreStuckAt) {
  const auto gate = make_gate(5);
  DataLoader loader(
      Gated{8, gate},
      {.batch_size = 2,
       .num_workers = 2,
       .timeout = std::chrono::milliseconds(50)});
  expect_error<Error>([&] { read(loader); }, "is reading sample 5");
  // Its thread was left behind; random access can continue beside it.
  gate->opened.count_down();
  EXPECT_EQ(read(loader).size(), 8U);
}

class RestorableCounter : public Counter {
 public:
  using Counter::Counter;
  [[nodiscard]] StateDict state_dict() const { return {{"next", next_}}; }
  void load_state_dict(const StateDict& state) {
    next_ = state.get<std::int64_t>("next");
  }
};

TEST(Workers, LoseNoSampleOfAStreamOutOfOrder) {
  const DataLoaderOptions options{
      .batch_size = 1, .num_workers = 3, .in_order = false};
  DataLoader first(RestorableCounter(30), options);
  std::set<std::int64_t> seen;
  StateDict state;
  for (auto& [x] : first) {
    seen.insert(x[0].item<std::int64_t>());
    state = first.state_dict();
    if (seen.size() == 10) break;
  }
  DataLoader second(RestorableCounter(30), options);
  second.load_state_dict(state);
  for (const std::int64_t value : read(second)) seen.insert(value);
  EXPECT_EQ(seen.size(), 30U);
}

TEST(Workers, EndAtOnceHoweverLongTheTimeout) {
  DataLoader loader(
      Identity{100}, {.num_workers = 2, .timeout = std::chrono::hours(1)});
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(read(loader, 5).size(), 5U);
  }
  EXPECT_EQ(read(loader).size(), 100U);
}

class StuckStream {
 public:
  explicit StuckStream(std::shared_ptr<Gated::Gate> gate)
      : gate_(std::move(gate)) {}
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == gate_->sample) gate_->opened.wait();
    return std::tuple{torch::tensor(next_++)};
  }

 private:
  std::shared_ptr<Gated::Gate> gate_;
  std::int64_t next_ = 0;
};

TEST(Workers, DoNotReadAStreamBesideOneThatIsStuckInIt) {
  const auto gate = make_gate(3);
  DataLoader loader(
      StuckStream(gate),
      {.num_workers = 2, .timeout = std::chrono::milliseconds(50)});
  expect_error<Error>([&] { read(loader); }, "is reading sample 3");
  expect_error<Error>([&] { read(loader); }, "no new pass can begin");
  gate->opened.count_down();
}

// Sample i is a random number.
struct Dice {
  [[nodiscard]] std::int64_t size() const { return 24; }
  [[nodiscard]] std::tuple<torch::Tensor> get(
      std::int64_t,
      at::Generator& generator) const {
    return {torch::randint(1'000'000, {}, generator, torch::kLong)};
  }
};

struct Jitter {
  std::tuple<torch::Tensor> operator()(
      std::vector<std::tuple<torch::Tensor>> samples,
      at::Generator& generator) const {
    auto [x] = DefaultCollate()(std::move(samples));
    return {
        x * 1000 + torch::randint(1000, x.sizes(), generator, torch::kLong)};
  }
};

TEST(Workers, GiveEachSampleRandomNumbersOfItsOwn) {
  const DataLoaderOptions options{
      .batch_size = 4, .shuffle = true, .data_seed = 9};
  DataLoader plain(Dice(), options, Jitter());
  const Values expected = read(plain);
  EXPECT_EQ(
      std::set<std::int64_t>(expected.begin(), expected.end()).size(), 24U);
  const Values second = read(plain);
  EXPECT_NE(second, expected);

  DataLoaderOptions with_workers = options;
  with_workers.num_workers = 3;
  DataLoader ahead(Dice(), with_workers, Jitter());
  EXPECT_EQ(read(ahead), expected);
  EXPECT_EQ(read(ahead), second);

  StateDict state;
  DataLoader stopped(Dice(), with_workers, Jitter());
  for (auto& batch : stopped) {
    static_cast<void>(batch);
    state = stopped.state_dict();
    break;
  }
  DataLoader resumed(Dice(), options, Jitter());
  resumed.load_state_dict(state);
  EXPECT_EQ(read(resumed), Values(expected.begin() + 4, expected.end()));
}

TEST(Workers, SeeTheGradModeOfTheLoop) {
  struct Mode {
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t) const {
      return {torch::tensor(
          static_cast<std::int64_t>(torch::GradMode::is_enabled()))};
    }
  };
  DataLoader loader(Mode(), {.num_workers = 2});
  EXPECT_EQ(read(loader), (Values{1, 1, 1, 1}));
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(read(loader), (Values{0, 0, 0, 0}));
}

TEST(Workers, ReadForAllRanksToo) {
  std::vector<Values> seen(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        Counter(20),
        {.batch_size = 2, .num_workers = 2, .prefetch_factor = 1}));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    for (int epoch = 0; epoch < 2; ++epoch) mine = read(loader);
    EXPECT_EQ(read(loader, 1).size(), 2U);
  });
  EXPECT_EQ(seen[0], (Values{0, 1, 6, 7, 12, 13, 18}));
  EXPECT_EQ(seen[1], (Values{2, 3, 8, 9, 14, 15, 19}));
  EXPECT_EQ(seen[2], (Values{4, 5, 10, 11, 16, 17, 0}));
}

TEST(Workers, OutOfOrderKeepGatherForMetricsExact) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        Identity{23}, {.batch_size = 2, .num_workers = 2, .in_order = false}));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    for (auto& [x] : loader) {
      for (const std::int64_t value :
           listify(accelerator.gather_for_metrics(x))) {
        mine.push_back(value);
      }
    }
  });
  Values all(23);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_THAT(seen[0], ::testing::UnorderedElementsAreArray(all));
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(PrefetchReport, SaysWhereTimeWent) {
  DataLoader loader(Identity{40}, {.batch_size = 4, .num_workers = 2});
  read(loader);
  const PrefetchReport report = loader.prefetch_report();
  EXPECT_EQ(report.num_batches, 10);
  EXPECT_EQ(report.num_workers, 2);
  EXPECT_GT(report.read_seconds, 0);
  EXPECT_GT(report.collate_seconds, 0);
  EXPECT_GT(report.wait_seconds, 0);
  EXPECT_GT(report.loop_seconds, 0);
  EXPECT_EQ(report.transfer_seconds, 0);
}

TEST(PrefetchReport, NamesTheBottleneck) {
  EXPECT_EQ(
      (PrefetchReport{
           .num_batches = 10,
           .num_workers = 2,
           .read_seconds = 3,
           .collate_seconds = 1,
           .transfer_seconds = 0.5,
           .wait_seconds = 1,
           .loop_seconds = 3})
          .text(),
      "10 batches, 2 workers: read 3.000 s, collate 1.000 s, transfer 0.500 s; "
      "the loop waited "
      "1.000 s (25 %) and worked 3.000 s: the loader is the bottleneck, "
      "reading takes longest");
  const auto ends_with = [](const PrefetchReport& report,
                            std::string_view end) {
    EXPECT_TRUE(report.text().ends_with(end)) << report.text();
  };
  ends_with({}, "nothing was read");
  ends_with(
      {.num_batches = 1, .wait_seconds = 1, .loop_seconds = 99},
      "the loop is the bottleneck");
  ends_with(
      {.num_batches = 1, .collate_seconds = 1, .wait_seconds = 1},
      "collating takes longest");
  ends_with(
      {.num_batches = 1, .transfer_seconds = 1, .wait_seconds = 1},
      "transfer takes longest");
}

TEST(Workers, RefuseOptionsThatContradict) {
  const auto refuse = [](const DataLoaderOptions& options,
                         const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { DataLoader loader(Identity{4}, options); }, phrase);
  };
  refuse({.num_workers = -1}, "num_workers must be at least 0, but is -1");
  refuse(
      {.num_workers = 1, .prefetch_factor = 0},
      "prefetch_factor must be at least 1, but is 0");
  refuse({.prefetch_factor = 2}, "set num_workers");
  refuse({.in_order = false}, "set num_workers");
  refuse({.timeout = std::chrono::milliseconds(1)}, "set num_workers");
  refuse(
      {.num_workers = 1, .timeout = std::chrono::milliseconds(-1)},
      "timeout must be at least 0 ms, which means no limit, but is -1");
  // All complaints together.
  refuse(
      {.use_seedable_sampler = true, .num_workers = -1},
      "set shuffle; num_workers must be at least 0, but is -1");
}

}  // namespace workers_test
}  // namespace accelerate
