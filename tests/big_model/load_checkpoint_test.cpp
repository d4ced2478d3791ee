#include <gmock/gmock.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <accelerate/accelerator.h>
#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/offload.h>
#include <accelerate/weights.h>

#include "support/counted_memory.h"
#include "support/expect_error.h"
#include "support/file_size_limit.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::load_checkpoint_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::CountedMemory;
using testing::expect_error;
using testing::FileSizeLimit;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

struct NetImpl : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(3, 4));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(4));
  nn::Linear last = register_module("last", nn::Linear(4, 2));
};
TORCH_MODULE(Net);

// Changes the last byte of a state's weights.
void damage_weights(const fs::path& state) {
  std::fstream(
      state / "model.safetensors",
      std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('x');
}

class LoadCheckpoint : public ::testing::Test {
 protected:
  LoadCheckpoint() {
    torch::manual_seed(7);
    saved_ = Net();
    save_model(*saved_, checkpoint_);
  }
  static Net empty() {
    return init_empty_weights([] { return Net(); });
  }

  TemporaryDirectory directory_;
  fs::path checkpoint_ = directory_.path() / "weights";
  fs::path folder_ = directory_.path() / "offload";
  Net saved_{nullptr};
};

TEST_F(LoadCheckpoint, PutsTensorsWhereTheMapSays) {
  Net net = empty();
  load_checkpoint_in_model(
      *net,
      checkpoint_,
      {.device_map = {{"first", "cpu"}, {"norm", "disk"}, {"last", "disk"}},
       .offload_folder = folder_});
  EXPECT_TRUE(net->first->weight.equal(saved_->first->weight));
  EXPECT_TRUE(net->last->weight.is_meta());
  // Buffers stay.
  EXPECT_TRUE(net->norm->running_var.equal(saved_->norm->running_var));
  const OffloadIndex index = load_offload_index(folder_);
  EXPECT_NE(index.find("last.bias"), nullptr);
  EXPECT_EQ(index.find("norm.running_var"), nullptr);
  EXPECT_EQ(index.find("first.bias"), nullptr);
}

TEST_F(LoadCheckpoint, WritesBuffersIfAsked) {
  Net net = empty();
  load_checkpoint_in_model(
      *net,
      checkpoint_,
      {.device_map = {{"", "disk"}},
       .offload_folder = folder_,
       .offload_buffers = true});
  EXPECT_TRUE(net->norm->running_var.is_meta());
  EXPECT_NE(load_offload_index(folder_).find("norm.running_var"), nullptr);
}

TEST_F(LoadCheckpoint, ConvertsFloatingPointTensors) {
  Net net = empty();
  load_checkpoint_in_model(
      *net,
      checkpoint_,
      {.device_map = {{"", "cpu"}},
       .dtype = torch::kHalf,
       .keep_in_fp32_modules = {"last"}});
  EXPECT_TRUE(net->first->weight.equal(saved_->first->weight.to(torch::kHalf)));
  EXPECT_TRUE(net->last->weight.equal(saved_->last->weight));
  EXPECT_EQ(net->norm->num_batches_tracked.scalar_type(), torch::kLong);
}

TEST_F(LoadCheckpoint, TakesTheCheckpointsDtypeWithOffloadStateDict) {
  for (auto& parameter : saved_->parameters())
    parameter.set_data(parameter.to(torch::kBFloat16));
  save_model(*saved_, checkpoint_);
  Net net = empty();
  load_checkpoint_in_model(
      *net,
      checkpoint_,
      {.device_map = {{"", "cpu"}}, .offload_state_dict = true});
  EXPECT_EQ(net->first->weight.scalar_type(), torch::kBFloat16);
  Net own = empty();
  load_checkpoint_in_model(*own, checkpoint_, {.device_map = {{"", "cpu"}}});
  EXPECT_EQ(own->first->weight.scalar_type(), torch::kFloat);
}

TEST_F(LoadCheckpoint, MapsWeightsThatNeedNoConversion) {
  Net net = empty();
  load_checkpoint_in_model(*net, checkpoint_, {.device_map = {{"", "cpu"}}});
  Net read = empty();
  load_checkpoint_in_model(
      *read, checkpoint_, {.device_map = {{"", "cpu"}}, .map_weights = false});
  EXPECT_TRUE(net->first->weight.equal(read->first->weight));
  // Changes do not reach the file.
  torch::NoGradGuard no_grad;
  net->first->weight.zero_();
  Net again = empty();
  load_checkpoint_in_model(*again, checkpoint_);
  EXPECT_TRUE(again->first->weight.equal(read->first->weight));
}

TEST_F(LoadCheckpoint, IsStrictIfAsked) {
  struct OtherImpl : nn::Module {
    nn::Linear first = register_module("first", nn::Linear(3, 4));
    nn::Linear more = register_module("more", nn::Linear(1, 1));
  };
  OtherImpl other;
  EXPECT_NO_THROW(load_checkpoint_in_model(other, checkpoint_));
  EXPECT_TRUE(other.first->weight.equal(saved_->first->weight));
  expect_error<CheckpointError>(
      [&] { load_checkpoint_in_model(other, checkpoint_, {.strict = true}); },
      "more.weight");
  EXPECT_NO_THROW(load_checkpoint_in_model(
      other,
      checkpoint_,
      {.strict = true,
       .skip = {"norm.*", "last.*"},
       .allow_missing = {"more.*"}}));
}

TEST_F(LoadCheckpoint, RenamesTensors) {
  struct OtherImpl : nn::Module {
    nn::Linear head = register_module("head", nn::Linear(4, 2));
  };
  OtherImpl other;
  load_checkpoint_in_model(
      other, checkpoint_, {.rename = [](const std::string& name) {
        return name.starts_with("last.") ? "head." + name.substr(5) : name;
      }});
  EXPECT_TRUE(other.head->weight.equal(saved_->last->weight));
}

TEST_F(LoadCheckpoint, SendsTensorsFromRank0) {
  run_on_ranks(3, [&](const WorldOptions& options) {
    World world(options);
    Net net = empty();
    // Only rank 0 has the files.
    const fs::path path =
        world.rank() == 0 ? checkpoint_ : directory_.path() / "nowhere";
    load_checkpoint_in_model(
        *net,
        path,
        {.device_map = {{"", "cpu"}},
         .broadcast_from_rank0 = true,
         .group = world.group()});
    EXPECT_TRUE(net->first->weight.equal(saved_->first->weight));
    EXPECT_TRUE(net->last->bias.equal(saved_->last->bias));
  });
}

TEST_F(LoadCheckpoint, RefusesWhatCannotBeAndLoadsNothing) {
  Net net = empty();
  const auto refuse = [&](const LoadCheckpointOptions& options,
                          const std::string& text) {
    expect_error<ConfigError>(
        [&] { load_checkpoint_in_model(*net, checkpoint_, options); }, text);
    EXPECT_TRUE(net->first->weight.is_meta());
  };
  refuse({.device_map = {{"", "disk"}}}, "offload_folder");
  refuse({.device_map = {{"first", "cpu"}}}, "last.bias");
  refuse({.full_state_dict = false}, "Accelerator::load_model()");
  refuse({.broadcast_from_rank0 = true}, "group");
  refuse({.dtype = torch::kLong}, "floating-point");
}

// Copies of a module's tensors; undefined for meta tensors.
std::vector<torch::Tensor> state_of(const Net& net) {
  std::vector<torch::Tensor> state;
  for (const auto& [name, tensor] : get_state_dict(*net))
    state.push_back(tensor.is_meta() ? torch::Tensor() : tensor.clone());
  return state;
}

void expect_state(const Net& net, const std::vector<torch::Tensor>& expected) {
  const auto found = state_of(net);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (found[i].defined()) {
      EXPECT_TRUE(found[i].equal(expected[i])) << i;
    }
  }
}

// Damages the last tensor read, after others that go to memory and to disk.
TEST_F(LoadCheckpoint, LoadsNothingIfATensorIsDamaged) {
  const fs::path checkpoint = directory_.path() / "state";
  {
    Accelerator accelerator({.project_dir = directory_.path()});
    auto model = accelerator.prepare(saved_);
    accelerator.save_state(checkpoint);
  }
  const fs::path file = checkpoint / "model.safetensors";
  ASSERT_TRUE(fs::exists(file));
  const auto damage = [&] {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('x');
  };
  damage();
  for (const bool on_meta : {false, true}) {
    SCOPED_TRACE(on_meta);
    Net net = on_meta ? empty() : Net();
    const auto before = state_of(net);
    for (const DeviceMap& map :
         {DeviceMap(),
          DeviceMap{{"", "cpu"}},
          DeviceMap{{"first", "disk"}, {"norm", "cpu"}, {"last", "cpu"}}}) {
      expect_error<CheckpointError>(
          [&] {
            load_checkpoint_in_model(
                *net,
                checkpoint,
                {.device_map = map, .offload_folder = folder_});
          },
          "model.safetensors");
      expect_state(net, before);
      EXPECT_FALSE(fs::exists(folder_ / "index.json"));
    }
  }
}

TEST_F(LoadCheckpoint, LoadsNothingIfTheDiskIsFull) {
  for (const bool on_meta : {false, true}) {
    SCOPED_TRACE(on_meta);
    Net net = on_meta ? empty() : Net();
    const auto before = state_of(net);
    const LoadCheckpointOptions options{
        .device_map = {{"first", "cpu"}, {"norm", "cpu"}, {"last", "disk"}},
        .offload_folder = folder_,
        .dtype = torch::kDouble};
    {
      const FileSizeLimit limit(16);
      expect_error<Error>(
          [&] { load_checkpoint_in_model(*net, checkpoint_, options); },
          std::strerror(EFBIG));
    }
    expect_state(net, before);
    EXPECT_FALSE(fs::exists(folder_ / "index.json"));
    load_checkpoint_in_model(*net, checkpoint_, options);
    EXPECT_TRUE(
        net->first->weight.equal(saved_->first->weight.to(torch::kDouble)));
    EXPECT_TRUE(net->last->weight.is_meta());
    fs::remove_all(folder_);
  }
}

constexpr std::int64_t kMiB = std::int64_t{1} << 20U;

/// Layers of 1 MiB each in fp32, and one of 40 MiB.
struct LayersImpl : nn::Module {
  explicit LayersImpl(int count) {
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          nn::Linear(nn::LinearOptions(512, 512).bias(false))));
    large = register_module(
        "large", nn::Linear(nn::LinearOptions(1024, 10240).bias(false)));
  }
  std::vector<nn::Linear> layers;
  nn::Linear large{nullptr};
};
TORCH_MODULE(Layers);

// The peak is the resident memory, one buffer, and the new memory of tensors
// that replace others: one large tensor and those that pass through the buffer.
TEST_F(LoadCheckpoint, TakesTheMemoryOfWhatStaysAndOneBuffer) {
  constexpr std::int64_t kFull = (24 + 40) * kMiB;
  constexpr std::int64_t kBuffer = 32 * kMiB;
  constexpr std::int64_t kLarge = 20 * kMiB;
  torch::NoGradGuard no_grad;
  Layers saved(24);
  const fs::path full = directory_.path() / "full";
  const fs::path half = directory_.path() / "half";
  save_model(*saved, full);
  saved->to(torch::kBFloat16);
  save_model(*saved, half);
  struct Case {
    bool on_meta;
    fs::path file;
    torch::ScalarType dtype;
    std::int64_t peak;
  };
  for (const auto& [on_meta, file, dtype, peak] : std::vector<Case>{
           {true, full, torch::kFloat, kFull},
           {true, full, torch::kBFloat16, kFull / 2 + kBuffer},
           {true, half, torch::kFloat, kFull + kBuffer},
           {false, full, torch::kFloat, kFull},
           {false, half, torch::kFloat, kFull + kBuffer},
           {false,
            full,
            torch::kBFloat16,
            kFull + kBuffer + kLarge + kBuffer / 2},
           {false, half, torch::kBFloat16, kFull + kBuffer}}) {
    SCOPED_TRACE(::testing::Message() << on_meta << file << dtype);
    const CountedMemory memory;
    Layers net =
        on_meta ? init_empty_weights([] { return Layers(24); }) : Layers(24);
    load_checkpoint_in_model(
        *net, file, {.dtype = dtype, .map_weights = false});
    EXPECT_LE(memory.peak(), peak + kMiB);
    const auto saved_state = load_state_dict(file);
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().equal(saved_state.at(item.key()).to(dtype)))
          << item.key();
    }
  }
}

// Tensors whose own files stay the disk tier are not read.
TEST_F(LoadCheckpoint, ReadsNothingForTheMetaDevice) {
  const torch::NoGradGuard no_grad;
  save_model(*Layers(24), checkpoint_);
  Layers net = init_empty_weights([] { return Layers(24); });
  const CountedMemory memory;
  load_checkpoint_in_model(
      *net, checkpoint_, {.device_map = {{"", "meta"}}, .map_weights = false});
  EXPECT_EQ(memory.peak(), 0);
  EXPECT_TRUE(net->large->weight.is_meta());
}

// A model that exceeds the buffer is verified before the first value is
// replaced.
TEST_F(LoadCheckpoint, LeavesALargeModelAsItWasIfATensorIsDamaged) {
  const torch::NoGradGuard no_grad;
  Layers saved(8);
  const fs::path checkpoint = directory_.path() / "state";
  {
    Accelerator accelerator({.project_dir = directory_.path()});
    auto model = accelerator.prepare(saved);
    accelerator.save_state(checkpoint);
  }
  damage_weights(checkpoint);
  Layers net(8);
  const torch::Tensor first = net->layers.front()->weight.clone();
  const torch::Tensor large = net->large->weight.clone();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    expect_error<CheckpointError>(
        [&] { load_checkpoint_in_model(*net, checkpoint, {.dtype = dtype}); },
        "the contents of model.safetensors have changed");
    EXPECT_TRUE(net->layers.front()->weight.equal(first));
    EXPECT_TRUE(net->large->weight.equal(large));
  }
}

// A rank that runs out of memory notifies the ranks that would wait for it.
TEST_F(LoadCheckpoint, LoadsNothingOnAnyRankIfOneHasNoMemory) {
  const auto layers = [] { return Layers(1); };
  save_model(*layers(), checkpoint_);
  for (const bool on_meta : {false, true}) {
    SCOPED_TRACE(on_meta);
    run_on_ranks(3, [&](const WorldOptions& options) {
      World world(options);
      Layers net = on_meta ? init_empty_weights(layers) : layers();
      const bool fails = world.rank() == 1;
      const CountedMemory memory(
          fails ? std::optional<std::int64_t>(kMiB) : std::nullopt);
      try {
        load_checkpoint_in_model(
            *net,
            checkpoint_,
            {.dtype = torch::kDouble,
             .broadcast_from_rank0 = true,
             .group = world.group()});
        ADD_FAILURE() << "rank " << world.rank() << " has loaded it";
      } catch (const std::exception& error) {
        const std::string text = error.what();
        EXPECT_EQ(text.find("since rank 1") == std::string::npos, fails)
            << text;
      }
      EXPECT_EQ(memory.has_refused(), fails);
      EXPECT_EQ(net->large->weight.is_meta(), on_meta);
      EXPECT_EQ(net->large->weight.scalar_type(), torch::kFloat);
    });
  }
}

// All ranks get the error of the reading rank.
TEST_F(LoadCheckpoint, LoadsNothingOnAnyRankIfRank0CannotRead) {
  const fs::path checkpoint = directory_.path() / "state";
  {
    Accelerator accelerator({.project_dir = directory_.path()});
    auto model = accelerator.prepare(saved_);
    accelerator.save_state(checkpoint);
  }
  damage_weights(checkpoint);
  run_on_ranks(2, [&](const WorldOptions& options) {
    World world(options);
    Net net;
    const auto before = state_of(net);
    expect_error<CheckpointError>(
        [&] {
          load_checkpoint_in_model(
              *net,
              checkpoint,
              {.broadcast_from_rank0 = true, .group = world.group()});
        },
        "model.safetensors");
    expect_state(net, before);
  });
}

// Each rank has its own offload folder.
TEST_F(LoadCheckpoint, LoadsNothingOnAnyRankIfOneCannotWrite) {
  const fs::path file = directory_.path() / "file";
  std::ofstream(file) << "x";
  run_on_ranks(3, [&](const WorldOptions& options) {
    World world(options);
    Net net = empty();
    const bool fails = world.rank() == 1;
    const fs::path folder =
        fails ? file / "below" : folder_ / std::to_string(world.rank());
    try {
      load_checkpoint_in_model(
          *net,
          checkpoint_,
          {.device_map = {{"first", "disk"}, {"norm", "cpu"}, {"last", "cpu"}},
           .offload_folder = folder,
           .broadcast_from_rank0 = true,
           .group = world.group()});
      ADD_FAILURE() << "rank " << world.rank() << " has loaded it";
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(file.string()), std::string::npos) << text;
      EXPECT_EQ(text.find("since rank 1") == std::string::npos, fails) << text;
    }
    EXPECT_TRUE(net->first->weight.is_meta());
    EXPECT_TRUE(net->last->weight.is_meta());
    EXPECT_FALSE(fs::exists(folder / "index.json"));
  });
}

TEST(OffloadFolder, HasTheBytesThatAccelerateWrites) {
  const TemporaryDirectory directory;
  const torch::Tensor weight = torch::tensor({{1.0F, 2.0F}, {3.0F, 4.0F}});
  offload_state_dict(
      directory.path(),
      {{"a.weight", weight},
       {"b", torch::tensor({1.0F, 2.0F}).to(torch::kBFloat16)},
       {"c", torch::tensor(5)}});
  const auto bytes = [&](const char* name) {
    std::ifstream in(directory.path() / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(
      bytes("a.weight.dat"),
      std::string(
          "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40",
          16));
  EXPECT_EQ(bytes("b.dat"), std::string("\x80\x3f\x00\x40", 4));
  EXPECT_EQ(bytes("c.dat"), std::string("\x05\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(
      bytes("index.json"),
      "{\n  \"a.weight\": {\n    \"dtype\": \"float32\",\n    \"shape\": [\n"
      "      2,\n      2\n    ]\n  },\n  \"b\": {\n    \"dtype\": "
      "\"bfloat16\",\n    \"shape\": [\n      2\n    ]\n  },\n  \"c\": {\n"
      "    \"dtype\": \"int64\",\n    \"shape\": []\n  }\n}");
  const OffloadedWeightsLoader loader({.save_folder = directory.path()});
  EXPECT_TRUE(loader.at("a.weight").equal(weight));
  EXPECT_EQ(loader.at("c").item<int>(), 5);
  EXPECT_EQ(loader.size(), 3U);
  const PrefixedDataset below(loader, "a.");
  EXPECT_TRUE(below.at("weight").equal(weight));
}

TEST(OffloadFolder, PrefersWeightsInMemory) {
  const TemporaryDirectory directory;
  offload_state_dict(directory.path(), {{"a", torch::zeros({2})}});
  const OffloadedWeightsLoader loader(
      {.state_dict = {{"a", torch::ones({2})}},
       .save_folder = directory.path(),
       .device = torch::kCPU});
  EXPECT_TRUE(loader.at("a").equal(torch::ones({2})));
  expect_error<ConfigError>(
      [&] { static_cast<void>(loader.at("b")); }, "\"b\"");
  expect_error<ConfigError>(
      [] { OffloadedWeightsLoader nothing({}); }, "state_dict");
}

TEST(OffloadFolder, KeepsWhatItHasAndReplacesWhatDiffers) {
  const TemporaryDirectory directory;
  offload_state_dict(
      directory.path(), {{"a", torch::zeros({2})}, {"b", torch::zeros({2})}});
  const auto written = fs::last_write_time(directory.path() / "a.dat");
  offload_state_dict(
      directory.path(), {{"a", torch::zeros({2})}, {"b", torch::ones({2})}});
  EXPECT_EQ(fs::last_write_time(directory.path() / "a.dat"), written);
  const OffloadIndex index = load_offload_index(directory.path());
  EXPECT_TRUE(
      load_offloaded_weight(directory.path() / "b.dat", *index.find("b"))
          .equal(torch::ones({2})));
  expect_error<ConfigError>(
      [&] { offload_state_dict(directory.path(), {{"../x", torch::ones(1)}}); },
      "../x");
}

TEST(OffloadFolder, TakesTimeInProportionToItsWeights) {
  const TemporaryDirectory directory;
  OffloadIndex index;
  // Comparing each name with all others would take a minute.
  constexpr int kMany = 100'000;
  for (int i = 0; i < kMany; ++i) {
    index.set(
        "experts." + std::to_string(i) + ".weight",
        {.dtype = "float32", .shape = {i}});
  }
  save_offload_index(index, directory.path());
  EXPECT_EQ(load_offload_index(directory.path()).entries(), index.entries());
}

TEST(ExtractSubmodules, TakesNamesAndWhatIsBelowThem) {
  WeightList weights;
  for (const char* name : {"a", "a.b", "a.c", "ab", "d.a"})
    weights.emplace_back(name, torch::ones({1}));
  std::vector<std::string> names;
  for (const auto& [name, tensor] :
       extract_submodules_state_dict(weights, {"a", "d"}))
    names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("a", "a.b", "a.c", "d.a"));
}

}  // namespace accelerate::load_checkpoint_test
