// Saving a model in one form and then in another, and loading it: the last save
// counts, and every tensor that was saved can be loaded.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <accelerate/accelerate.h>
#include <accelerate/big_model.h>
#include <accelerate/weights.h>

#include "checkpoint/load/destinations.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "params/layout.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace model_files_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

const WorldOptions kAlone{.rank = 0, .size = 1};

AcceleratorOptions in(const WorldOptions& world) {
  AcceleratorOptions options;
  options.world = world;
  return options;
}

// Two layers that are filled with one number.
struct Filled : torch::nn::Module {
  explicit Filled(double value = 0) {
    register_module("first", first);
    register_module("second", second);
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.fill_(value);
  }
  [[nodiscard]] bool has(double value) const {
    for (const at::Tensor& parameter : parameters())
      if (!parameter.eq(value).all().item<bool>()) return false;
    return true;
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first{3, 3}, second{3, 3};
};

struct Wrapped : torch::nn::Module {
  Wrapped() { register_module("net", net); }
  std::shared_ptr<Filled> net = std::make_shared<Filled>(1);
};

using Save = std::function<void(const Filled& net, const fs::path& directory)>;

std::vector<std::pair<std::string, Save>> saves() {
  std::vector<std::pair<std::string, Save>> all;
  for (const bool is_safe : {true, false}) {
    for (const int size : {1000, 40}) {
      SaveModelOptions options;
      options.safe_serialization = is_safe;
      options.max_shard_size = size;
      all.emplace_back(
          std::string(is_safe ? "safetensors" : "torch") + " of " +
              std::to_string(size),
          [options](const Filled& net, const fs::path& directory) {
            save_model(net, directory, options);
          });
    }
  }
  return all;
}

TEST(ModelFiles, TheLastSaveIsLoadedWhateverWasThere) {
  const auto all = saves();
  for (const auto& [first_name, first] : all) {
    for (const auto& [second_name, second] : all) {
      SCOPED_TRACE(first_name + ", then " + second_name);
      const TemporaryDirectory directory;
      first(Filled(1), directory / "model");
      second(Filled(2), directory / "model");
      Filled net;
      load_model(net, directory / "model");
      EXPECT_TRUE(net.has(2));
      Filled other;
      load_checkpoint_in_model(other, directory / "model");
      EXPECT_TRUE(other.has(2));
    }
  }
}

TEST(ModelFiles, AreNotSavedOverACheckpoint) {
  const TemporaryDirectory directory;
  Accelerator accelerator(in(kAlone));
  auto net = std::make_shared<Filled>(1);
  auto model = accelerator.prepare(net);
  accelerator.save_state(directory / "state");
  expect_error<ConfigError>(
      [&] { save_model(Filled(2), directory / "state"); },
      "is a checkpoint, whose files would be overwritten");
  expect_error<CheckpointError>(
      [&] { accelerator.save_model(model, directory / "state"); },
      "is a checkpoint, whose files would be overwritten");
  accelerator.load_state(directory / "state");
  EXPECT_TRUE(net->has(1));
}

// Views as buffers; every tensor that is saved.
struct Views : torch::nn::Module {
  explicit Views(double value) {
    const at::Tensor numbers = at::arange(4, at::kFloat) + value;
    expanded = register_buffer("expanded", at::full({1}, value).expand({3}));
    rows = register_buffer(
        "rows", numbers.narrow(0, 0, 2).reshape({2, 1}).expand({2, 3}));
    windows = register_buffer("windows", numbers.clone().unfold(0, 2, 1));
    transposed =
        register_buffer("transposed", numbers.clone().reshape({2, 2}).t());
    steps = register_buffer("steps", numbers.clone().slice(0, 0, 4, 2));
    conjugate =
        register_buffer("conjugate", at::complex(numbers, numbers + 1).conj());
    negative = register_buffer("negative", numbers.clone()._neg_view());
    expanded_conjugate = register_buffer(
        "expanded_conjugate",
        at::complex(at::full({1}, value), at::full({1}, value))
            .expand({2})
            .conj());
    weight = register_parameter("weight", at::full({2}, value));
  }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor expanded, rows, windows, transposed, steps, conjugate, negative,
      expanded_conjugate, weight;
};

void expect_equal(const Views& found, const Views& expected) {
  const WeightList wanted = get_state_dict(expected);
  const WeightList list = get_state_dict(found);
  for (std::size_t i = 0; i < list.size(); ++i)
    EXPECT_TRUE(at::equal(list[i].second, wanted[i].second)) << list[i].first;
  // Still a view.
  EXPECT_EQ(found.expanded.stride(0), 0);
}

TEST(ModelFiles, ViewsAreLoadedWhereTheyWereSaved) {
  const TemporaryDirectory directory;
  const Views saved(5);
  for (const bool is_safe : {true, false}) {
    save_model(saved, directory / "model", {.safe_serialization = is_safe});
    Views net(1);
    load_model(net, directory / "model");
    expect_equal(net, saved);
    Views third(1);
    load_checkpoint_in_model(third, directory / "model");
    EXPECT_TRUE(at::equal(third.rows, saved.rows));
    EXPECT_TRUE(at::equal(third.conjugate, saved.conjugate));
    EXPECT_TRUE(at::equal(third.negative, saved.negative));
  }
}

TEST(ModelFiles, ViewsAreLoadedByAllRanks) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator(in(world));
    auto saved = std::make_shared<Views>(5);
    auto model = accelerator.prepare(saved);
    at::Tensor count = at::full({1}, 5).expand({2});
    accelerator.register_for_checkpointing("count", count);
    accelerator.save_state(directory / "state");
    accelerator.save_model(model, directory / "model");
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& each :
         {saved->expanded.narrow(0, 0, 1),
          count.narrow(0, 0, 1),
          saved->steps,
          saved->conjugate,
          saved->negative,
          saved->windows.select(0, 0)}) {
      each.fill_(1);
    }
    accelerator.load_state(directory / "state");
    expect_equal(*saved, Views(5));
    EXPECT_TRUE(at::equal(count, at::full({2}, 5)));
    for (const bool broadcasts : {false, true}) {
      saved->expanded.narrow(0, 0, 1).fill_(1);
      saved->conjugate.fill_(1);
      accelerator.load_model(
          model, directory / "model", {.broadcast_from_rank0 = broadcasts});
      expect_equal(*saved, Views(5));
    }
  });
}

// A buffer of any kind, so that what does not fit can be saved.
struct Buffer : torch::nn::Module {
  explicit Buffer(const at::Tensor& values) {
    buffer = register_buffer("buffer", values);
    weight = register_parameter("weight", at::full({2}, 1.0));
  }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor buffer, weight;
};

// Where ranks hold shards: this one has the first row of "buffer".
void expect_misfit_of_shards(
    const fs::path& model,
    const at::Tensor& row,
    std::int64_t num_rows,
    const char* phrase) {
  detail::Layout layout = detail::Layout::unsharded({num_rows});
  layout.split(Axis::shard, 0, 0, 1);
  EXPECT_THAT(
      detail::mismatches(
          "model",
          detail::stored_in_safetensors(model / "model.safetensors"),
          {{"buffer", row, layout}},
          {},
          {.strict = false}),
      ::testing::ElementsAre(::testing::HasSubstr(phrase)));
}

// All ranks refuse what one of them would lose.
TEST(ModelFiles, ValuesThatDoNotFitAShardAreNamedByAllRanks) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  constexpr std::int64_t kMany = 5'000'000;
  at::Tensor values = at::zeros({kMany}, at::kLong);
  values[-1] = 256;
  save_model(Buffer(values), directory / "model");
  expect_misfit_of_shards(
      directory / "model",
      at::zeros({1}, at::kByte),
      kMany,
      "buffer has values in the checkpoint that Byte");
}

TEST(ModelFiles, ValuesThatDoNotFitAreNamedBeforeAnythingIsLoaded) {
  struct Case {
    const char* name;
    at::Tensor saved, here;
    const char* phrase;
  };
  const Case cases[] = {
      {"expanded",
       at::arange(3, at::kFloat),
       at::zeros({1}).expand({3}),
       "buffer is a view here whose elements share memory"},
      {"wide",
       at::full({1}, std::int64_t{3'000'000'000}),
       at::zeros({1}, at::kInt),
       "buffer has values in the checkpoint that Int"},
      {"fractions",
       at::full({1}, 0.5),
       at::zeros({1}, at::kLong),
       "buffer has values in the checkpoint that Long"},
      {"negative",
       at::full({1}, -1, at::kLong),
       at::zeros({1}, at::kByte),
       "buffer has values in the checkpoint that Byte"},
      {"negative of the same width",
       at::full({1}, -1, at::kChar),
       at::zeros({1}, at::kByte),
       "buffer has values in the checkpoint that Byte"},
      {"positive of the same width",
       at::full({1}, 200, at::kByte),
       at::zeros({1}, at::kChar),
       "buffer has values in the checkpoint that Char"},
      {"no truth value",
       at::full({1}, 2, at::kLong),
       at::zeros({1}, at::kBool),
       "buffer has values in the checkpoint that Bool"},
      {"complex",
       at::complex(at::ones({1}), at::ones({1})),
       at::zeros({1}),
       "buffer has complex numbers"}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const TemporaryDirectory directory;
    Accelerator accelerator(in(kAlone));
    auto saved = std::make_shared<Buffer>(each.saved);
    auto model = accelerator.prepare(saved);
    accelerator.save_state(directory / "state");
    accelerator.save_model(model, directory / "model");
    Buffer net(each.here);
    net.weight.data().fill_(7);
    expect_error<CheckpointError>(
        [&] { load_model(net, directory / "model"); }, each.phrase);
    EXPECT_TRUE(net.weight.eq(7).all().item<bool>());
    if (each.here.is_contiguous())
      expect_misfit_of_shards(directory / "model", each.here, 1, each.phrase);
    Accelerator next(in(kAlone));
    auto other = std::make_shared<Buffer>(each.here);
    auto prepared = next.prepare(other);
    other->weight.data().fill_(7);
    for (const auto& load : std::vector<std::function<void()>>{
             [&] { next.load_state(directory / "state"); },
             [&] { next.load_model(prepared, directory / "model"); }}) {
      expect_error<CheckpointError>(load, each.phrase);
      expect_error<CheckpointError>(load, "nothing was loaded");
      EXPECT_TRUE(other->weight.eq(7).all().item<bool>());
    }
  }
}

TEST(ModelFiles, NumbersThatFitAreConverted) {
  const TemporaryDirectory directory;
  save_model(Buffer(at::full({1}, 255.0)), directory / "model");
  Buffer net(at::zeros({1}, at::kByte));
  load_model(net, directory / "model");
  EXPECT_EQ(net.buffer.item<int>(), 255);
}

TEST(ModelFiles, NamesThatNeverMatchAreAnErrorEvenIfNotStrict) {
  const TemporaryDirectory directory;
  WeightList prefixed;
  for (const auto& [name, tensor] : get_state_dict(Filled(3)))
    prefixed.emplace_back("_orig_mod." + name, tensor);
  Accelerator accelerator(in(kAlone));
  accelerator.save(prefixed, directory / "x.safetensors", true);
  Filled net(1);
  for (const bool is_strict : {true, false}) {
    LoadModelOptions options;
    options.strict = is_strict;
    expect_error<CheckpointError>(
        [&] { load_model(net, directory / "x.safetensors", options); },
        "names in the checkpoint have the prefix \"_orig_mod.\"; load_model() "
        "takes them with LoadModelOptions::rename = "
        "rename_prefixes({{\"_orig_mod.\", \"\"}})");
    EXPECT_TRUE(net.has(1));
  }
  LoadModelOptions options;
  options.rename = rename_prefixes({{"_orig_mod.", ""}});
  load_model(net, directory / "x.safetensors", options);
  EXPECT_TRUE(net.has(3));

  save_model(Filled(4), directory / "plain");
  Wrapped wrapped;
  expect_error<CheckpointError>(
      [&] { load_model(wrapped, directory / "plain", {.strict = false}); },
      "names in the checkpoint lack the prefix \"net.\"");
  load_model(
      wrapped,
      directory / "plain",
      {.rename = rename_prefixes({{"", "net."}})});
  EXPECT_TRUE(wrapped.net->has(4));
  // What is skipped need not match.
  load_model(wrapped, directory / "plain", {.strict = false, .skip = {"*"}});
}

// Three names of one tensor.
struct Tied : torch::nn::Module {
  Tied() {
    first = register_parameter("z", at::zeros({2}));
    register_parameter("b", first);
    register_parameter("a", first);
  }
  at::Tensor forward(const at::Tensor& x) { return x * first; }
  at::Tensor first;
};

TEST(ModelFiles, TheLastOfSeveralNamesOfATensorWins) {
  const TemporaryDirectory directory;
  Accelerator accelerator(in(kAlone));
  const auto value_of = [&](const std::map<std::string, double>& saved,
                            const LoadModelOptions& options = {}) {
    WeightList list;
    for (const auto& [name, value] : saved)
      list.emplace_back(name, at::full({2}, value));
    accelerator.save(list, directory / "x.bin");
    Tied net;
    load_model(net, directory / "x.bin", options);
    Accelerator next(in(kAlone));
    auto other = std::make_shared<Tied>();
    auto model = next.prepare(other);
    next.load_model(model, directory / "x.bin", options);
    EXPECT_TRUE(at::equal(net.first, other->first));
    return net.first[0].item<double>();
  };
  // The module's order: z, b, a.
  EXPECT_EQ(value_of({{"z", 1}}), 1);
  EXPECT_EQ(value_of({{"b", 2}}), 2);
  EXPECT_EQ(value_of({{"z", 1}, {"b", 2}}), 2);
  EXPECT_EQ(value_of({{"z", 1}, {"b", 2}, {"a", 3}}), 3);
  EXPECT_EQ(value_of({{"a", 3}, {"b", 2}}), 3);
  EXPECT_EQ(value_of({{"z", 1}, {"a", 3}}, {.skip = {"a"}}), 1);
}

TEST(ModelFiles, AnotherShapeUnderAnotherNameIsNamed) {
  const TemporaryDirectory directory;
  Accelerator accelerator(in(kAlone));
  accelerator.save(
      WeightList{{"z", at::ones({2})}, {"a", at::ones({3})}},
      directory / "x.bin");
  Tied net;
  expect_error<CheckpointError>(
      [&] { load_model(net, directory / "x.bin"); },
      "model: a has shape [3] in the checkpoint and [2] here");
}

TEST(ModelFiles, AFileWithANumberOfACheckpointIsPassedOver) {
  const TemporaryDirectory directory;
  AcceleratorOptions options = in(kAlone);
  options.project_configuration = {
      .project_dir = directory.path().string(),
      .automatic_checkpoint_naming = true};
  Accelerator accelerator(options);
  auto model = accelerator.prepare(std::make_shared<Filled>(1));
  EXPECT_EQ(accelerator.save_state().path().filename(), "checkpoint_0");
  std::ofstream(directory / "checkpoints/checkpoint_1") << "a file";
  std::ofstream(directory / "checkpoints/checkpoint_2") << "a file";
  EXPECT_EQ(accelerator.save_state().path().filename(), "checkpoint_3");
  EXPECT_EQ(accelerator.save_state().path().filename(), "checkpoint_4");
  EXPECT_TRUE(fs::is_regular_file(directory / "checkpoints/checkpoint_1"));
  EXPECT_EQ(
      accelerator.checkpoints().latest()->filename().string(), "checkpoint_4");
}

// Slices need no memory beside them to be loaded.
TEST(ModelFiles, ViewsAreKnownToShareNothing) {
  const at::Tensor base = at::zeros({4, 5, 6});
  for (const at::Tensor& view :
       {base.slice(1, 0, 3),
        base.slice(2, 1, 6, 2),
        base.permute({2, 0, 1}).slice(0, 2, 4),
        base.select(1, 2).t(),
        base.slice(0, 0, 1).expand({1, 5, 6}),
        base.slice(0, 0, 0)}) {
    EXPECT_FALSE(detail::may_share_elements(view)) << view.strides();
  }
  EXPECT_TRUE(detail::may_share_elements(base.select(0, 0).expand({2, 5, 6})));
  // No view of these sizes and strides that shares elements is missed.
  constexpr std::int64_t kSizes = 3, kStrides = 7;
  const at::Tensor memory = at::zeros({64});
  const auto digit = [](std::int64_t& number, std::int64_t radix) {
    return std::exchange(number, number / radix) % radix;
  };
  int num_shared = 0;
  for (std::int64_t i = 0; i < 27 * 343; ++i) {
    std::int64_t number = i;
    std::vector<std::int64_t> sizes, strides;
    for (int dim = 0; dim < 3; ++dim) {
      sizes.push_back(1 + digit(number, kSizes));
      strides.push_back(digit(number, kStrides));
    }
    std::set<std::int64_t> places;
    for (std::int64_t a = 0; a < sizes[0]; ++a)
      for (std::int64_t b = 0; b < sizes[1]; ++b)
        for (std::int64_t c = 0; c < sizes[2]; ++c)
          places.insert(a * strides[0] + b * strides[1] + c * strides[2]);
    const auto num_places = static_cast<std::int64_t>(places.size());
    if (num_places == sizes[0] * sizes[1] * sizes[2]) continue;
    ++num_shared;
    ASSERT_TRUE(detail::may_share_elements(memory.as_strided(sizes, strides)))
        << sizes << " " << strides;
  }
  EXPECT_GT(num_shared, 1000);
}

}  // namespace model_files_test
}  // namespace accelerate
