#include <accelerate/data_loader.h>
#include <accelerate/error.h>
#include <accelerate/torch_loader.h>

#include "support/expect_error.h"

namespace accelerate {
namespace data_loader_test {

using testing::expect_error;

TensorDataset<2> numbers(std::int64_t count) {
  return TensorDataset(torch::arange(count), torch::arange(count) * 10);
}

std::vector<std::int64_t> values_of(const torch::Tensor& tensor) {
  return {
      tensor.data_ptr<std::int64_t>(),
      tensor.data_ptr<std::int64_t>() + tensor.numel()};
}

template <class Loader>
std::vector<std::int64_t> read_all(Loader& loader) {
  std::vector<std::int64_t> all;
  for (auto& [x, y] : loader) {
    for (const std::int64_t value : values_of(x)) all.push_back(value);
    EXPECT_TRUE(torch::equal(y, x * 10));
  }
  return all;
}

TEST(DataLoader, ReadsInOrderByDefault) {
  DataLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(read_all(loader), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(DataLoader, DropsTheShortBatchIfAsked) {
  DataLoader loader(numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(read_all(loader), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(DataLoader, ShufflesEachEpochAnewAndReproducibly) {
  DataLoader loader(
      numbers(50), {.batch_size = 7, .shuffle = true, .data_seed = 3});
  const auto first = read_all(loader);
  const auto second = read_all(loader);
  EXPECT_NE(first, second);
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(first));
  loader.set_epoch(0);
  EXPECT_EQ(read_all(loader), first);
}

TEST(DataLoader, CanBeLeftEarly) {
  DataLoader loader(numbers(50), {.batch_size = 7});
  for (auto& batch : loader) {
    EXPECT_EQ(std::get<0>(batch).size(0), 7);
    break;
  }
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(read_all(loader).size(), 50);
}

TEST(DataLoader, TellsWhichBatchIsTheLastBeforeHandingItOut) {
  DataLoader loader(numbers(7), {.batch_size = 2});
  std::vector<std::string> events;
  detail::LoaderContext context{.batch_rank = 0, .batch_count = 2};
  context.begin = [&] { events.emplace_back("begin"); };
  context.end = [&] { events.emplace_back("end"); };
  context.on_batch = [&](bool is_last, std::int64_t remainder) {
    events.push_back(
        (is_last ? "last " : "batch ") + std::to_string(remainder));
  };
  loader.attach(context);
  for (auto& batch : loader)
    events.push_back(std::to_string(std::get<0>(batch)[0].item<int>()));
  EXPECT_THAT(
      events,
      ::testing::ElementsAre("begin", "batch 0", "0", "last 3", "4", "end"));
}

TEST(DataLoader, HasNoBatchesOfAnEmptyDataset) {
  DataLoader loader(numbers(0), {.batch_size = 2});
  EXPECT_TRUE(read_all(loader).empty());
}

TEST(DataLoader, GivesBatchesMemoryOfTheirOwn) {
  const auto source = torch::arange(4);
  DataLoader loader(TensorDataset{source}, {.batch_size = 4});
  for (auto& [x] : loader) x.zero_();
  EXPECT_EQ(values_of(source), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

struct Sample {
  torch::Tensor x;
  std::vector<torch::Tensor> more;
};
template <class Visitor>
void visit_tensors(Sample& sample, Visitor&& visitor) {
  visitor(sample.x);
  visit_tensors(sample.more, visitor);
}
struct Samples {
  [[nodiscard]] std::size_t size() const { return 3; }
  [[nodiscard]] Sample get(std::int64_t i) const {
    if (i == bad) throw std::runtime_error("sample is broken");
    return {torch::full({2}, i), {torch::full({}, i * 2)}};
  }
  std::int64_t bad = -1;
};

TEST(DataLoader, StacksSamplesOfTheUsersOwnType) {
  DataLoader loader(Samples{}, {.batch_size = 3});
  for (auto& batch : loader) {
    EXPECT_TRUE(torch::equal(batch.x, torch::tensor({{0, 0}, {1, 1}, {2, 2}})));
    EXPECT_TRUE(torch::equal(batch.more[0], torch::tensor({0, 2, 4})));
  }
}

TEST(DataLoader, CarriesAnExceptionOfTheDatasetAndGoesOnAfterwards) {
  DataLoader loader(Samples{.bad = 1}, {.batch_size = 1});
  int seen = 0;
  expect_error<std::runtime_error>(
      [&] {
        for (auto& batch : loader) seen += static_cast<int>(batch.x.size(0));
      },
      "sample is broken");
  EXPECT_EQ(seen, 1);
}

TEST(DataLoader, TakesACollateFunction) {
  DataLoader loader(
      Samples{}, {.batch_size = 2}, [](std::vector<Sample> samples) {
        return samples.size();
      });
  std::vector<std::size_t> sizes;
  // Batches that are not nested values stay on the CPU.
  static_assert(!NestedTensors<std::size_t>);
  for (auto& size : loader) sizes.push_back(size);
  EXPECT_THAT(sizes, ::testing::ElementsAre(2, 1));
}

TEST(TensorDataset, RefusesTensorsOfDifferentLength) {
  expect_error<ConfigError>(
      [] { TensorDataset(torch::ones({3}), torch::ones({4})); },
      "but have 3 and 4");
  expect_error<ConfigError>(
      [] { TensorDataset(torch::ones({})); }, "must have a dimension");
}

TEST(TorchLoader, GivesEachRankItsBatchesAndFillsUpTheLastRound) {
  struct Toy : torch::data::datasets::Dataset<Toy> {
    torch::data::Example<> get(std::size_t i) override {
      return {torch::full({}, static_cast<std::int64_t>(i)), torch::zeros({})};
    }
    [[nodiscard]] std::optional<std::size_t> size() const override {
      return 10;
    }
  };
  const auto read = [](int rank) {
    auto inner =
        torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
            Toy().map(torch::data::transforms::Stack<>()), 2);
    TorchLoader loader(std::move(inner));
    std::vector<bool> is_last;
    detail::LoaderContext context{.batch_rank = rank, .batch_count = 3};
    context.on_batch = [&](bool last, std::int64_t) {
      is_last.push_back(last);
    };
    loader.attach(context);
    std::vector<std::vector<std::int64_t>> batches;
    for (auto& batch : loader) batches.push_back(values_of(batch.data));
    EXPECT_THAT(is_last, ::testing::ElementsAre(false, true));
    return batches;
  };
  using Batches = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(read(0), (Batches{{0, 1}, {6, 7}}));
  EXPECT_EQ(read(1), (Batches{{2, 3}, {8, 9}}));
  EXPECT_EQ(read(2), (Batches{{4, 5}, {0, 1}}));
}

TEST(TensorDataset, TakesRowsAsIndexSelectDoes) {
  const std::vector<std::int64_t> indices{3, 0, 3};
  const torch::Tensor index = torch::tensor(indices);
  const torch::Tensor plain = torch::randn({4, 5, 2});
  std::vector<torch::Tensor> kinds{
      plain,
      plain.transpose(1, 2),
      plain.select(2, 1),
      plain.to(torch::kBFloat16),
      torch::zeros({4, 0}),
      torch::arange(4),
      torch::randn({4, 100'000}),
      torch::randn({4, 2}, torch::kComplexFloat).conj(),
      torch::randn({4, 2}).requires_grad_()};
  for (const torch::Tensor& tensor : kinds) {
    const auto [rows] = TensorDataset{tensor}.get_batch(indices);
    EXPECT_TRUE(torch::equal(rows, tensor.index_select(0, index)));
    EXPECT_EQ(rows.requires_grad(), tensor.requires_grad());
    EXPECT_EQ(rows.scalar_type(), tensor.scalar_type());
  }
  const std::vector<std::int64_t> none;
  EXPECT_EQ(
      std::get<0>(TensorDataset{plain}.get_batch(none)).sizes(),
      (torch::IntArrayRef{0, 5, 2}));
  for (const std::int64_t wrong : {-1, 4}) {
    expect_error<ConfigError>(
        [&] { (void)TensorDataset{plain}.get_batch(std::vector{wrong}); },
        "4 samples, but no sample");
  }
}

}  // namespace data_loader_test
}  // namespace accelerate
