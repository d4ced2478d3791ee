// Streams, and loaders with dispatch_batches.
#include <array>
#include <deque>
#include <string>
#include <unordered_map>

#include <accelerate/accelerate.h>

#include "data/loading/dispatch.h"
#include "data/loading/skip_progress.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace stream_test {

using testing::expect_error;
using testing::run_on_ranks;

using Row = std::tuple<
    std::map<std::string, torch::Tensor>,
    std::vector<torch::Tensor>,
    double>;

// A stream of nested samples that counts calls of next().
class NestedStream {
 public:
  explicit NestedStream(int size, int broken = -1)
      : size_(size), broken_(broken) {}
  std::optional<Row> next() {
    if (next_ == size_) return std::nullopt;
    if (next_ == broken_) throw std::runtime_error("sample 3 is broken");
    const auto i = static_cast<double>(next_++);
    return Row{
        {{"a", torch::full({2}, i)},
         {"b", torch::full({}, i, torch::kBFloat16)}},
        {torch::full({1, 2}, i, torch::kLong)},
        0.5};
  }
  void set_epoch(std::uint64_t epoch) { epochs.push_back(epoch); }
  void reset() { next_ = 0; }

  std::vector<std::uint64_t> epochs;

 private:
  int size_;
  int broken_;
  int next_ = 0;
};

TEST(SkipProgress, WarnsOnceThatTheStartOfAStreamIsReadAgain) {
  std::vector<std::string> said;
  const Logger logger(
      [&](const LogRecord& record) { said.emplace_back(record.message); },
      LogLevel::warning);
  detail::SkipProgress patient(logger, 10, {.disable = true});
  patient.update();
  EXPECT_TRUE(said.empty());
  detail::SkipProgress eager(
      logger, 10, {.disable = true}, std::chrono::milliseconds(0));
  eager.update();
  eager.update();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(
      said[0],
      "the first 10 samples of a stream are read again, since it has no state "
      "of its own; give the dataset state_dict() and load_state_dict() to "
      "continue at once");
}

TEST(SkipProgress, ShowsABarOfSkippedSamples) {
  ::testing::internal::CaptureStderr();
  {
    detail::SkipProgress progress(Logger(), 4, {.line_interval_seconds = 0});
    for (int i = 0; i < 3; ++i) progress.update();
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(shown.find("skipping samples"), std::string::npos) << shown;
  EXPECT_NE(shown.find("3/4"), std::string::npos) << shown;
}

TEST(Dispatch, SendsNestedBatchesOfAStreamThatOnlyRankZeroReads) {
  std::vector<std::vector<double>> seen(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    const bool is_main = accelerator.is_main_process();
    auto loader = accelerator.prepare(
        DataLoader(NestedStream(is_main ? 14 : 0), {.batch_size = 2}));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& [by_name, list, number] : loader) {
        ASSERT_EQ(list.size(), 1U);
        EXPECT_EQ(number, 0.5);
        EXPECT_EQ(by_name.at("a").size(1), 2);
        EXPECT_EQ(by_name.at("b").scalar_type(), torch::kBFloat16);
        EXPECT_EQ(
            list[0].sizes(),
            (std::vector<std::int64_t>{by_name.at("a").size(0), 1, 2}));
        for (const double value : listify(by_name.at("b")))
          mine.push_back(value);
      }
      mine.push_back(-1);
    }
    EXPECT_EQ(
        loader.dataset().epochs,
        is_main ? (std::vector<std::uint64_t>{0, 1})
                : std::vector<std::uint64_t>{});
  });
  // The last round has two samples for three ranks, so the first one repeats.
  const std::vector<std::vector<double>> once{
      {0, 1, 6, 7, 12, -1}, {2, 3, 8, 9, 13, -1}, {4, 5, 10, 11, 0, -1}};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<double> twice = once[rank];
    twice.insert(twice.end(), once[rank].begin(), once[rank].end());
    EXPECT_EQ(seen[rank], twice);
  }
}

using ByName = std::unordered_map<std::string, torch::Tensor>;

// Iterates in another order if filled backwards.
ByName tensors_by_name(std::size_t num_buckets, double value, bool backwards) {
  ByName tensors(num_buckets);
  for (int i = 0; i < 6; ++i) {
    const int key = backwards ? 5 - i : i;
    tensors.emplace(std::to_string(key), torch::full({1}, value + key));
  }
  return tensors;
}

TEST(Dispatch, KeepsTensorsOfUnorderedMapsWithTheirKeys) {
  for (const std::size_t num_buckets : {1U, 7U, 64U}) {
    for (const bool backwards : {false, true}) {
      detail::HeldBatch<ByName> sent, got;
      sent.batch = tensors_by_name(num_buckets, 10, backwards);
      const detail::RoundSlice slice = detail::pack_slice(sent.parts());
      got.restore(detail::structure_of(slice));
      detail::unpack_slice(slice, got.parts());
      ASSERT_EQ(got.batch->size(), 6U);
      for (int key = 0; key < 6; ++key)
        EXPECT_EQ(got.batch->at(std::to_string(key)).item<double>(), 10 + key);
    }
  }
}

TEST(Dispatch, JoinsUnorderedMapsByKey) {
  const ByName joined = concatenate<ByName>(
      {tensors_by_name(7, 10, false), tensors_by_name(64, 20, true)});
  for (int key = 0; key < 6; ++key) {
    EXPECT_EQ(
        listify(joined.at(std::to_string(key))),
        (std::vector<double>{10.0 + key, 20.0 + key}));
  }
}

// Samples whose keys are inserted in a different order each time.
struct UnorderedSamples {
  [[nodiscard]] std::int64_t size() const { return 4; }
  [[nodiscard]] ByName get(std::int64_t index) const {
    return tensors_by_name(
        7, 10 * static_cast<double>(index), /*backwards=*/index % 2 == 1);
  }
};

TEST(Dispatch, SendsUnorderedMaps) {
  std::vector<std::vector<double>> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        UnorderedSamples(), {.batch_size = 2, .dispatch_batches = true}));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    for (auto& batch : loader) {
      for (const char* const name : {"0", "5"}) {
        for (const double value : listify(batch.at(name)))
          mine.push_back(value);
      }
    }
  });
  EXPECT_EQ(seen[0], (std::vector<double>{0, 10, 5, 15}));
  EXPECT_EQ(seen[1], (std::vector<double>{20, 30, 25, 35}));
}

struct JoinTexts {
  std::vector<std::string> operator()(std::vector<std::string> samples) const {
    return samples;
  }
};

class Texts {
 public:
  std::optional<std::string> next() {
    if (left_.empty()) return std::nullopt;
    std::string text = left_.front();
    left_.pop_front();
    return text;
  }
  void reset() { left_ = {"a", "bb", "", "d", "e"}; }

 private:
  std::deque<std::string> left_;
};

TEST(Dispatch, SendsObjects) {
  std::vector<std::vector<std::string>> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(
        DataLoader(Texts(), {.batch_size = 2}, JoinTexts()));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    for (auto& batch : loader) {
      for (const auto& text : batch) mine.push_back(text);
      for (const auto& text : accelerator.gather_for_metrics(batch))
        mine.push_back("all " + text);
    }
  });
  EXPECT_EQ(
      seen[0],
      (std::vector<std::string>{
          "a", "bb", "all a", "all bb", "all ", "all d", "e", "all e"}));
  EXPECT_EQ(
      seen[1],
      (std::vector<std::string>{
          "", "d", "all a", "all bb", "all ", "all d", "a", "all e"}));
}

TEST(Dispatch, CarriesAnErrorOfTheReaderToAllRanks) {
  std::vector<std::string> errors(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader =
        accelerator.prepare(DataLoader(NestedStream(9, 3), {.batch_size = 1}));
    try {
      for (auto& batch : loader) (void)batch;
    } catch (const DataError& error) {
      errors[static_cast<std::size_t>(accelerator.process_index())] =
          error.what();
    }
  });
  EXPECT_EQ(errors[0], "[data] sample 3: next() failed: sample 3 is broken");
  EXPECT_THAT(
      errors[1],
      ::testing::AllOf(
          ::testing::HasSubstr("rank 0"),
          ::testing::HasSubstr("sample 3 is broken")));
}

TEST(Dispatch, CanBeLeftEarlyAndBegunAgain) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        TensorDataset{torch::arange(8)},
        {.batch_size = 2, .dispatch_batches = true}));
    EXPECT_EQ(loader.size(), 2);
    for (auto& [x] : loader) {
      EXPECT_EQ(
          x[0].template item<std::int64_t>(), accelerator.process_index() * 2);
      break;
    }
    int rounds = 0;
    for (auto& [x] : loader) rounds += static_cast<int>(x.size(0)) / 2;
    EXPECT_EQ(rounds, 2);
  });
}

// Samples are numbers, so that a round is a single message.
struct Numbers {
  std::optional<int> next() {
    return next_ == 12 ? std::nullopt : std::optional(next_++);
  }
  void reset() { next_ = 0; }
  int next_ = 0;
};

// Two passes on two ranks, each of which leaves the first one after `counts`
// batches. Returns the error of rank 1.
std::string error_of_leaving_after(const std::array<int, 2>& counts) {
  std::string error;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const bool is_main = *world.rank == 0;
    const Accelerator accelerator({.world = world});
    auto loader = accelerator.prepare(DataLoader(
        Numbers(),
        {.batch_size = 2, .dispatch_batches = true},
        [](std::vector<int> samples) { return samples; }));
    const auto leave_after = [&](int count) {
      for (auto& batch : loader) {
        EXPECT_EQ(batch.size(), 2U);
        if (--count == 0) break;
      }
    };
    try {
      leave_after(counts[is_main ? 0 : 1]);
      // The second pass of rank 0 begins when its first has ended everywhere.
      if (!is_main || counts[0] < counts[1]) leave_after(1);
    } catch (const Error& caught) {
      EXPECT_FALSE(is_main);
      error = caught.what();
    }
  });
  return error;
}

TEST(Dispatch, IsAnErrorOnARankThatStaysInAPassThatRankZeroLeft) {
  EXPECT_THAT(
      error_of_leaving_after({1, 2}),
      ::testing::HasSubstr(
          "waits for batch 1 of pass 0 over a loader that rank 0 reads for all "
          "(dispatch_batches), but rank 0 sends batch 0 of pass 1"));
}

TEST(Dispatch, IsAnErrorOnARankThatLeavesAPassBeforeRankZero) {
  EXPECT_THAT(
      error_of_leaving_after({2, 1}),
      ::testing::HasSubstr(
          "waits for batch 0 of pass 1 over a loader that rank 0 reads for all "
          "(dispatch_batches), but rank 0 sends batch 1 of pass 0"));
}

TEST(Dispatch, CountsPassesFromWhereTheLoaderWasPrepared) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    DataLoader loader(
        TensorDataset{torch::arange(8)},
        {.batch_size = 2, .dispatch_batches = true});
    if (*world.rank == 1) {
      for (auto& batch : loader) (void)batch;
    }
    auto prepared = accelerator.prepare(std::move(loader));
    prepared.set_epoch(0);
    int rounds = 0;
    for (auto& [x] : prepared) rounds += static_cast<int>(x.size(0)) / 2;
    EXPECT_EQ(rounds, 2);
  });
}

TEST(Stream, IsCutByEveryRankWithoutDispatch) {
  std::vector<std::vector<double>> seen(3);
  for (const bool even : {true, false}) {
    for (auto& list : seen) list.clear();
    run_on_ranks(3, [&](const WorldOptions& world) {
      Accelerator accelerator({.world = world});
      auto loader = accelerator.prepare(DataLoader(
          NestedStream(9),
          {.batch_size = 2, .even_batches = even, .dispatch_batches = false}));
      auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
      for (auto& [by_name, list, number] : loader) {
        for (const double value : listify(by_name.at("b")))
          mine.push_back(value);
      }
    });
    EXPECT_EQ(seen[0], (std::vector<double>{0, 1, 6, 7}));
    EXPECT_EQ(
        seen[1],
        even ? (std::vector<double>{2, 3, 8, 0})
             : (std::vector<double>{2, 3, 8}));
    EXPECT_EQ(
        seen[2],
        even ? (std::vector<double>{4, 5, 1, 2}) : (std::vector<double>{4, 5}));
  }
}

TEST(Stream, RefusesToBeShuffled) {
  expect_error<ConfigError>(
      [] { DataLoader loader(NestedStream(3), {.shuffle = true}); }, "shuffle");
}

struct Opaque {
  explicit Opaque(int) {}
};
struct MakeOpaque {
  Opaque operator()(std::vector<std::string>) const { return Opaque(1); }
};

TEST(Dispatch, RefusesBatchesThatCannotBeSent) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    expect_error<ConfigError>(
        [&] {
          accelerator.prepare(
              DataLoader(Texts(), {.dispatch_batches = true}, MakeOpaque()));
        },
        "cut and sent");
  });
}

TEST(SkipFirstBatches, LeavesThemOutOnceAndMayLeaveOutAll) {
  DataLoader loader(TensorDataset{torch::arange(6)}, {.batch_size = 2});
  std::vector<std::int64_t> seen;
  for (const int skip : {1, 0, 3, 9}) {
    for (auto& [x] : skip_first_batches(loader, skip)) {
      seen.push_back(x[0].template item<std::int64_t>());
    }
    seen.push_back(-1);
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 4, -1, 0, 2, 4, -1, -1, -1}));
  EXPECT_EQ(loader.epoch(), 4U);
}

}  // namespace stream_test
}  // namespace accelerate
