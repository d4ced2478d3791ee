// Loaders with wrong or unusual data and options.
#include <atomic>
#include <memory>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace bad_data_test {

using testing::expect_error;
using testing::run_on_ranks;
using Values = std::vector<std::int64_t>;

template <class Loader>
Values read(Loader& loader) {
  Values all;
  for (auto& [x] : loader) {
    for (const std::int64_t value : listify(x)) all.push_back(value);
  }
  return all;
}

// Sample i is i; the dataset's size can change.
struct Growing {
  std::shared_ptr<std::atomic<std::int64_t>> count;
  [[nodiscard]] std::int64_t size() const { return *count; }
  [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
    return {torch::tensor(i)};
  }
};

Growing growing(std::int64_t size) {
  return {std::make_shared<std::atomic<std::int64_t>>(size)};
}

// The parameter is the number of workers.
class BadData : public ::testing::TestWithParam<int> {
 protected:
  [[nodiscard]] DataLoaderOptions options(std::int64_t batch_size) const {
    return {.batch_size = batch_size, .num_workers = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, BadData, ::testing::Values(0, 2));

TEST_P(BadData, GrowsBetweenPasses) {
  const Growing dataset = growing(3);
  DataLoader loader(dataset, options(2));
  EXPECT_EQ(read(loader), (Values{0, 1, 2}));
  *dataset.count = 5;
  EXPECT_EQ(read(loader), (Values{0, 1, 2, 3, 4}));
  EXPECT_EQ(loader.size(), 3);
  *dataset.count = 1;
  EXPECT_EQ(read(loader), (Values{0}));
}

TEST_P(BadData, ShrinksInAPass) {
  const Growing dataset = growing(50);
  DataLoader loader(dataset, options(2));
  expect_error<DataError>(
      [&] {
        for (auto& batch : loader) {
          static_cast<void>(batch);
          *dataset.count = 20;
        }
      },
      "because the dataset now has only 20: it has shrunk");
}

TEST_P(BadData, EmptyDatasetGivesNoBatches) {
  DataLoader loader(growing(0), options(4));
  EXPECT_EQ(loader.size(), 0);
  EXPECT_EQ(read(loader), Values());
  EXPECT_EQ(read(loader), Values());
  EXPECT_EQ(loader.epoch(), 2U);
  DataLoader empty(TensorDataset{torch::empty({0, 3})}, options(4));
  EXPECT_EQ(read(empty), Values());
}

TEST_P(BadData, SamplesMayHaveNoValues) {
  DataLoader loader(TensorDataset{torch::empty({5, 0})}, options(2));
  std::int64_t rows = 0;
  for (auto& [x] : loader) rows += x.size(0);
  EXPECT_EQ(rows, 5);
}

TEST_P(BadData, RefusesSamplesOfDifferentShapes) {
  struct Ragged {
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
      return {torch::zeros({i == 3 ? 5 : 2, 1})};
    }
  };
  DataLoader loader(Ragged(), options(2));
  expect_error<DataError>(
      [&] {
        for (auto& batch : loader) static_cast<void>(batch);
      },
      "[data] batch 1 (samples 2, 3): the collate function failed: [data] the "
      "samples of a batch "
      "have different shapes, [2, 1] first and [5, 1] at place 1");
}

TEST_P(BadData, RefusesDifferentNumbersOfTensors) {
  struct Ragged {
    [[nodiscard]] std::int64_t size() const { return 2; }
    [[nodiscard]] std::vector<torch::Tensor> get(std::int64_t i) const {
      return std::vector<torch::Tensor>(
          static_cast<std::size_t>(i + 1), torch::zeros({1}));
    }
  };
  DataLoader loader(Ragged(), options(2));
  expect_error<DataError>(
      [&] {
        for (auto& batch : loader) static_cast<void>(batch);
      },
      "different numbers of tensors, 1 and 2");
}

TEST_P(BadData, RefusesTensorsThatSomeSamplesLack) {
  struct Lacking {
    std::int64_t first;
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] std::tuple<torch::Tensor, torch::Tensor> get(
        std::int64_t i) const {
      return {torch::tensor(i), i < first ? torch::tensor(i) : torch::Tensor()};
    }
  };
  DataLoader loader(Lacking{1}, options(4));
  expect_error<DataError>(
      [&] {
        for (auto& batch : loader) static_cast<void>(batch);
      },
      "3 of 4 samples of a batch lack a tensor");
  DataLoader without(Lacking{0}, options(4));
  for (auto& [x, nothing] : without) EXPECT_FALSE(nothing.defined());
}

TEST_P(BadData, NamesTheBatchOfAFailedGetBatch) {
  struct Broken {
    [[nodiscard]] std::int64_t size() const { return 40; }
    [[nodiscard]] std::tuple<torch::Tensor> get_batch(
        std::span<const std::int64_t> indices) const {
      if (indices.front() >= 10) TORCH_CHECK(false, "no such row");
      return {torch::zeros({1})};
    }
  };
  DataLoader loader(Broken(), options(10));
  expect_error<DataError>(
      [&] { read(loader); },
      "[data] batch 1 (samples 10, 11, 12, 13, 14, 15, 16, 17, …): get_batch() "
      "failed: no such row");
}

class WrongSampler final : public Sampler {
 public:
  WrongSampler(std::int64_t size, std::int64_t wrong)
      : size_(size), wrong_(wrong) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void begin_pass(std::uint64_t, std::uint64_t) override {}
  [[nodiscard]] std::int64_t at(std::int64_t position) const override {
    return position == size_ - 1 ? wrong_ : 0;
  }

 private:
  std::int64_t size_;
  std::int64_t wrong_;
};

TEST_P(BadData, RefusesIndicesThatDoNotExist) {
  for (const std::int64_t wrong : {-1, 10}) {
    DataLoaderOptions how = options(3);
    how.sampler = std::make_shared<WrongSampler>(8, wrong);
    DataLoader loader(growing(10), how);
    expect_error<ConfigError>(
        [&] { read(loader); },
        std::string("the sampler returned index ")
            .append(std::to_string(wrong)));
  }
}

TEST_P(BadData, RefusesEmptyBatches) {
  expect_error<ConfigError>(
      [&] { DataLoader loader(growing(4), options(0)); },
      "batch_size must be at least 1, but is 0");
  expect_error<ConfigError>(
      [&] { DataLoader loader(growing(4), options(-3)); },
      "batch_size must be at least 1, but is -3");
}

TEST_P(BadData, FillsUpFewerSamplesThanRanks) {
  std::vector<Values> seen(3), metrics(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(growing(2), options(2)));
    const auto rank = static_cast<std::size_t>(accelerator.process_index());
    for (auto& [x] : loader) {
      for (const std::int64_t value : listify(x)) seen[rank].push_back(value);
      for (const std::int64_t value :
           listify(accelerator.gather_for_metrics(x))) {
        metrics[rank].push_back(value);
      }
    }
  });
  // The first round is padded with its own samples; metrics see each sample
  // once.
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(seen[rank], (Values{0, 1}));
    EXPECT_EQ(metrics[rank], (Values{0, 1}));
  }
}

// Expects every rank to throw.
template <class Make>
void expect_refusal(const std::string& phrase, Make&& make) {
  std::atomic<int> num_refused = 0;
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    expect_error<ConfigError>(
        [&] {
          auto loader = accelerator.prepare(make(accelerator.process_index()));
        },
        phrase);
    ++num_refused;
  });
  EXPECT_EQ(num_refused, 3);
}

TEST(ShardedTwice, IsRefusedOnEveryRank) {
  expect_refusal(
      "ranks 0 and 1 have datasets of different sizes: 10 and 11",
      [](int rank) {
        return DataLoader(growing(10 + rank), {.batch_size = 2});
      });
  expect_refusal("have samplers of different sizes: 5 and 6", [](int rank) {
    return DataLoader(
        growing(10), {.sampler = std::make_shared<WrongSampler>(5 + rank, 0)});
  });
  expect_refusal(
      "ranks 0 and 2 have samplers that give different orders", [](int rank) {
        return DataLoader(
            growing(10),
            {.sampler = std::make_shared<WrongSampler>(5, rank == 2 ? 7 : 1)});
      });
  expect_refusal("different values of batch_size: 4 and 5", [](int rank) {
    return DataLoader(growing(10), {.batch_size = 4 + rank});
  });
  expect_refusal("different values of data_seed: 1 and 2", [](int rank) {
    return DataLoader(
        growing(10),
        {.shuffle = true, .data_seed = static_cast<std::uint64_t>(1 + rank)});
  });
}

TEST(ShardedTwice, OptionsThatDifferBetweenRanksAreRefused) {
  expect_refusal("different values of one of dispatch_batches", [](int rank) {
    return DataLoader(growing(10), {.already_sharded = rank == 1});
  });
  expect_refusal("different values of one of dispatch_batches", [](int rank) {
    return DataLoader(
        TensorDataset{torch::arange(10)}, {.dispatch_batches = rank == 2});
  });
  expect_refusal("different values of one of dispatch_batches", [](int rank) {
    return DataLoader(growing(10), {.drop_last = rank == 1});
  });
}

TEST(ShardedTwice, IsKnownFromADatasetThatSaysSo) {
  struct Part {
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] bool is_sharded() const { return true; }
    [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
      return {torch::tensor(i)};
    }
  };
  expect_refusal("says that it is already sharded", [](int) {
    return DataLoader(Part());
  });
}

TEST(ShardedTwice, IsRefusedForALoaderPreparedBefore) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(growing(4)));
    expect_error<ConfigError>(
        [&] { auto again = accelerator.prepare(std::move(loader)); },
        "already been prepared");
  });
}

struct Part {
  std::int64_t begin;
  [[nodiscard]] std::int64_t size() const { return 5; }
  [[nodiscard]] bool is_sharded() const { return true; }
  [[nodiscard]] std::tuple<torch::Tensor> get(std::int64_t i) const {
    return {torch::tensor(begin + i)};
  }
};

TEST(AlreadySharded, ReadsItsEntireShard) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    const int rank = accelerator.process_index();
    auto loader = accelerator.prepare(DataLoader(
        Part{rank * 100}, {.batch_size = 2, .already_sharded = true}));
    EXPECT_EQ(loader.size(), 3);
    EXPECT_EQ(loader.total_batch_size(), 4);
    auto& mine = seen[static_cast<std::size_t>(rank)];
    StateDict state;
    for (auto& [x] : loader) {
      for (const std::int64_t value : listify(x)) mine.push_back(value);
      EXPECT_EQ(accelerator.gather_for_metrics(x).size(0), 2 * x.size(0));
      if (mine.size() == 2) state = loader.state_dict();
    }
    loader.load_state_dict(state);
    EXPECT_EQ(
        read(loader), (Values{rank * 100 + 2, rank * 100 + 3, rank * 100 + 4}));
    state.set("num_shards", std::int64_t{3});
    expect_error<CheckpointError>(
        [&] { loader.load_state_dict(state); }, "over 3 ranks");
  });
  EXPECT_EQ(seen[0], (Values{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen[1], (Values{100, 101, 102, 103, 104}));
}

class PartStream {
 public:
  explicit PartStream(std::int64_t begin) : begin_(begin) {}
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == 3) return std::nullopt;
    return std::tuple{torch::tensor(begin_ + next_++)};
  }
  void reset() { next_ = 0; }

 private:
  std::int64_t begin_;
  std::int64_t next_ = 0;
};

TEST(AlreadySharded, StreamsAreReadByTheirOwnRank) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    const int rank = accelerator.process_index();
    auto loader = accelerator.prepare(DataLoader(
        PartStream(rank * 10), {.batch_size = 2, .already_sharded = true}));
    seen[static_cast<std::size_t>(rank)] = read(loader);
  });
  EXPECT_EQ(seen[0], (Values{0, 1, 2}));
  EXPECT_EQ(seen[1], (Values{10, 11, 12}));
}

TEST(AlreadySharded, ExcludesDispatchAndSplitBatches) {
  expect_error<ConfigError>(
      [] {
        DataLoader loader(
            growing(4), {.dispatch_batches = true, .already_sharded = true});
      },
      "dispatch_batches that rank 0 reads for all");
  expect_error<ConfigError>(
      [] {
        DataLoader loader(
            growing(4), {.split_batches = true, .already_sharded = true});
      },
      "split_batches that batches are cut");
}

TEST(Dispatch, CutsRoundsAsTheUserSays) {
  std::vector<Values> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    DataLoader loader(
        TensorDataset{torch::arange(7)},
        {.batch_size = 2, .dispatch_batches = true});
    // Slices in reverse order; rows past the end are -1.
    loader.slice_fn_for_dispatch([](const auto& round,
                                    std::int64_t begin,
                                    std::int64_t end) {
      const torch::Tensor& x = std::get<0>(round);
      std::vector<std::int64_t> rows;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t from = x.size(0) - 1 - i;
        rows.push_back(from < 0 ? -1 : x[from].template item<std::int64_t>());
      }
      return std::tuple{torch::tensor(rows)};
    });
    auto prepared = accelerator.prepare(std::move(loader));
    seen[static_cast<std::size_t>(accelerator.process_index())] =
        read(prepared);
  });
  EXPECT_EQ(seen[0], (Values{3, 2, 6, 5}));
  EXPECT_EQ(seen[1], (Values{1, 0, 4, -1}));
}

// A stream that counts its reads and resumes through its own state.
class Restorable {
 public:
  explicit Restorable(std::shared_ptr<std::atomic<int>> num_read)
      : num_read_(std::move(num_read)) {}
  std::optional<std::tuple<torch::Tensor>> next() {
    if (next_ == 10) return std::nullopt;
    ++*num_read_;
    return std::tuple{torch::tensor(next_++)};
  }
  void reset() { next_ = 0; }
  [[nodiscard]] StateDict state_dict() const { return {{"next", next_}}; }
  void load_state_dict(const StateDict& state) {
    next_ = state.get<std::int64_t>("next");
  }

 private:
  std::int64_t next_ = 0;
  std::shared_ptr<std::atomic<int>> num_read_;
};

TEST_P(BadData, StreamsResumeThroughTheirOwnState) {
  const auto num_read = std::make_shared<std::atomic<int>>(0);
  DataLoader first(Restorable(num_read), options(2));
  StateDict state;
  for (auto& [x] : first) {
    if (x[0].item<std::int64_t>() != 4) continue;
    state = first.state_dict();
    break;
  }
  *num_read = 0;
  DataLoader second(Restorable(num_read), options(2));
  second.load_state_dict(state);
  EXPECT_EQ(
      second.state_dict().get<StateDict>("stream").get<std::int64_t>("next"),
      6);
  EXPECT_EQ(read(second), (Values{6, 7, 8, 9}));
  EXPECT_EQ(*num_read, 4);
  EXPECT_FALSE(second.state_dict().contains("stream"));
  EXPECT_EQ(read(second).size(), 10U);
}

}  // namespace bad_data_test
}  // namespace accelerate
