// What belongs to samples stays with them: lists, numbers and strings beside
// tensors in batches that are dispatched, gathered and collated.
#include <array>
#include <numeric>
#include <string>
#include <unordered_map>
#include <variant>

#include <rapidcheck.h>

#include <accelerate/accelerate.h>
#include <accelerate/token_collate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace dispatch_lists_test {

using testing::expect_error;
using testing::run_on_ranks;

using Ids = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

/// A batch type of the user's.
struct Own {
  torch::Tensor x;
  Texts texts;
  std::optional<std::vector<std::vector<int>>> nested;
  int version = 0;
};
template <class Visitor>
void visit_tensors(Own& batch, Visitor&& visitor) {
  visitor(batch.x);
  visit_tensors(batch.texts, visitor);
  visit_tensors(batch.nested, visitor);
  visit_tensors(batch.version, visitor);
}

// Each type has the ids of its samples in several forms; `write` makes them,
// and `read` returns every form as numbers again.
struct Writer {
  static void write(torch::Tensor& out, const Ids& ids) {
    out = torch::tensor(ids, torch::kLong).reshape({-1, 1});
  }
  static void write(Texts& out, const Ids& ids) {
    for (const auto id : ids) out.push_back("text " + std::to_string(id));
  }
  static void write(std::vector<double>& out, const Ids& ids) {
    out.assign(ids.begin(), ids.end());
  }
  static void write(Ids& out, const Ids& ids) { out = ids; }
  static void write(std::vector<bool>& out, const Ids& ids) {
    for (const auto id : ids) out.push_back(id % 2 == 1);
  }
  static void write(std::vector<std::vector<int>>& out, const Ids& ids) {
    for (const auto id : ids)
      out.emplace_back(static_cast<std::size_t>(id % 4), static_cast<int>(id));
  }
  static void write(
      std::vector<std::map<std::string, int>>& out,
      const Ids& ids) {
    for (const auto id : ids) out.push_back({{"id", static_cast<int>(id)}});
  }
  static void write(double& out, const Ids&) { out = 0.25; }
  static void write(int& out, const Ids&) { out = 3; }
  static void write(std::array<int, 2>& out, const Ids&) { out = {7, 8}; }
  template <class A, class B>
  static void write(std::pair<A, B>& out, const Ids& ids) {
    write(out.first, ids);
    write(out.second, ids);
  }
  template <class... Ts>
  static void write(std::tuple<Ts...>& out, const Ids& ids) {
    std::apply([&](auto&... member) { (write(member, ids), ...); }, out);
  }
  template <class T>
    requires requires { typename T::mapped_type; }
  static void write(T& out, const Ids& ids) {
    for (const char* const key : {"a", "b"}) write(out[key], ids);
  }
  static void write(std::variant<torch::Tensor, Texts>& out, const Ids& ids) {
    write(out.emplace<1>(), ids);
  }
  static void write(
      std::vector<std::pair<torch::Tensor, Texts>>& out,
      const Ids& ids) {
    for (auto& each : out = {{}, {}}) write(each, ids);
  }
  static void write(Own& out, const Ids& ids) {
    write(out.x, ids);
    write(out.texts, ids);
    write(out.nested.emplace(), ids);
    write(out.version, ids);
  }
};

template <class Batch>
Batch batch_of(const Ids& ids) {
  Batch batch;
  Writer::write(batch, ids);
  return batch;
}
template <class Batch>
struct Collate {
  Batch operator()(const Ids& samples) const {
    return batch_of<Batch>(samples);
  }
};

// Equal in every member; tensors and everything beside them.
template <class Batch>
bool are_equal(Batch a, Batch b) {
  const detail::NestedParts mine = detail::parts_of(a);
  const detail::NestedParts other = detail::parts_of(b);
  if (mine.structure != other.structure ||
      detail::leaves_to_bytes(mine) != detail::leaves_to_bytes(other))
    return false;
  for (std::size_t i = 0; i < mine.tensors.size(); ++i) {
    if (!torch::equal(*mine.tensors[i], *other.tensors[i])) return false;
  }
  return true;
}

template <class Batch>
Ids ids_of(const Batch& batch) {
  for (const torch::Tensor& tensor : tensors_of(batch)) {
    Ids ids = listify<std::int64_t>(tensor);
    return ids;
  }
  return {};
}

struct Stream {
  std::int64_t size;
  std::int64_t at = 0;
  std::optional<std::int64_t> next() {
    return at == size ? std::nullopt : std::optional(at++);
  }
  void reset() { at = 0; }
};
struct Indexed {
  std::int64_t length;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
};

struct Case {
  int num_ranks;
  std::int64_t num_samples;
  DataLoaderOptions options;
};

// Every rank's batches hold only whole samples, and together all of them once.
template <class Batch, class Dataset>
void check_samples(const Case& on, const Dataset& dataset) {
  Ids all(static_cast<std::size_t>(on.num_samples));
  std::iota(all.begin(), all.end(), 0);
  run_on_ranks(on.num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader =
        accelerator.prepare(DataLoader(dataset, on.options, Collate<Batch>()));
    Ids seen;
    for (auto& batch : loader) {
      EXPECT_TRUE(are_equal(batch, batch_of<Batch>(ids_of(batch))));
      const Batch gathered = accelerator.gather_for_metrics(batch);
      const Ids ids = ids_of(gathered);
      EXPECT_TRUE(are_equal(gathered, batch_of<Batch>(ids)));
      seen.insert(seen.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(seen, all);
  });
}

template <class Batch>
void check_type(const Case& on, bool is_stream) {
  if (is_stream) {
    check_samples<Batch>(on, Stream{on.num_samples});
  } else {
    check_samples<Batch>(on, Indexed{on.num_samples});
  }
}

using TensorAndTexts = std::pair<torch::Tensor, Texts>;
using CheckOfType = void (*)(const Case& on, bool is_stream);
constexpr std::array<CheckOfType, 8> kTypes{
    &check_type<TensorAndTexts>,
    &check_type<std::pair<Ids, torch::Tensor>>,
    &check_type<
        std::tuple<std::map<std::string, std::vector<double>>, torch::Tensor>>,
    &check_type<std::map<std::string, TensorAndTexts>>,
    &check_type<std::pair<
        torch::Tensor,
        std::tuple<
            double,
            std::variant<torch::Tensor, Texts>,
            std::array<int, 2>>>>,
    &check_type<std::pair<
        std::unordered_map<std::string, torch::Tensor>,
        std::tuple<std::vector<bool>, std::vector<std::vector<int>>>>>,
    &check_type<std::pair<
        std::vector<TensorAndTexts>,
        std::vector<std::map<std::string, int>>>>,
    &check_type<Own>};

TEST(DispatchedLists, StayWithTheirSamplesInEveryType) {
  for (const CheckOfType check : kTypes) {
    check({2, 5, {.batch_size = 2}}, /*is_stream=*/true);
    check(
        {3, 7, {.batch_size = 1, .dispatch_batches = true}},
        /*is_stream=*/false);
  }
}

TEST(DispatchedLists, StayWithTheirSamplesHoweverTheyAreRead) {
  EXPECT_TRUE(rc::check([] {
    const CheckOfType check = *rc::gen::elementOf(kTypes);
    const int num_ranks = *rc::gen::inRange(1, 5);
    const bool splits = *rc::gen::arbitrary<bool>();
    const Case on{
        num_ranks,
        *rc::gen::inRange<std::int64_t>(0, 20),
        {.batch_size =
             *rc::gen::inRange<std::int64_t>(1, 4) * (splits ? num_ranks : 1),
         .split_batches = splits,
         .dispatch_batches = *rc::gen::arbitrary<bool>()}};
    check(on, /*is_stream=*/*rc::gen::arbitrary<bool>());
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// The error on rank 0 of dispatching batches that `collate` makes.
template <class CollateFunction>
std::string error_of_dispatching(CollateFunction collate) {
  std::string error;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto loader =
        accelerator.prepare(DataLoader(Stream{4}, {.batch_size = 2}, collate));
    try {
      for (auto& batch : loader) (void)batch;
      ADD_FAILURE() << "no error";
    } catch (const Error& caught) {
      if (*world.rank == 0) error = caught.what();
    }
  });
  return error;
}

TEST(DispatchedLists, AreRefusedByPlaceIfTheyAreNotRows) {
  EXPECT_THAT(
      error_of_dispatching([](const Ids& ids) {
        return std::pair{batch_of<torch::Tensor>(ids), Texts{"cat", "dog"}};
      }),
      ::testing::HasSubstr(
          "[data] dispatch_batches takes values whose tensors and lists all "
          "have one row per sample, but beside 4 rows there is a list of 2 "
          "items at [1]; put what belongs to no sample into a std::array"));
  EXPECT_THAT(
      error_of_dispatching([](const Ids& ids) {
        return std::map<std::string, torch::Tensor>{
            {"weights", torch::ones({3})},
            {"input", batch_of<torch::Tensor>(ids)}};
      }),
      ::testing::HasSubstr("a tensor of shape [3] at [\"weights\"]"));
}

// Visits its tensor only.
struct Forgetful {
  torch::Tensor x;
  Texts texts;
};
template <class Visitor>
void visit_tensors(Forgetful& batch, Visitor&& visitor) {
  visitor(batch.x);
}

TEST(DispatchedLists, OfATypeThatDoesNotVisitThemAreRefused) {
  EXPECT_THAT(
      error_of_dispatching([](const Ids& ids) {
        return Forgetful{batch_of<torch::Tensor>(ids), batch_of<Texts>(ids)};
      }),
      ::testing::HasSubstr(
          "would lose 24 bytes of members that the visit_tensors() of a batch "
          "type does not visit"));
}

TEST(DefaultCollate, RefusesToKeepTheFirstSamplesNumberOrString) {
  const DefaultCollate collate;
  const auto x = torch::ones({2});
  using WithText = std::pair<torch::Tensor, std::string>;
  expect_error<ConfigError>(
      [&] { collate(std::vector<WithText>{{x, "cat"}, {x, "dog"}}); },
      "the samples of a batch differ at [1]: \"cat\" and \"dog\"; only tensors "
      "are stacked");
  EXPECT_EQ(
      collate(std::vector<WithText>{{x, "cat"}, {x, "cat"}}).second, "cat");
  using WithKeys = std::map<std::string, torch::Tensor>;
  expect_error<ConfigError>(
      [&] { collate(std::vector<WithKeys>{{{"a", x}}, {{"b", x}}}); },
      "the samples of a batch differ in their keys or sizes");
  using WithList = std::pair<torch::Tensor, Ids>;
  expect_error<ConfigError>(
      [&] { collate(std::vector<WithList>{{x, {1}}, {x, {1, 2}}}); },
      "differ at [1]: a list of 1 items and a list of 2 items");
  expect_error<ConfigError>(
      [&] { collate(std::vector<Forgetful>{{x, {"cat"}}, {x, {"dog"}}}); },
      "24 bytes of members that their visit_tensors() does not visit");
}

TEST(PadCollate, RefusesSamplesWithMoreThanTokens) {
  expect_error<ConfigError>(
      [] {
        PadCollate()(std::vector<std::pair<torch::Tensor, std::string>>{
            {torch::arange(3), "a"}});
      },
      "which a batch of tokens would lose");
}

}  // namespace dispatch_lists_test
}  // namespace accelerate
