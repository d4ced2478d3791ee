// Files that LibTorch's own functions write, and read.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <torch/serialize.h>

#include <accelerate/accelerate.h>
#include <accelerate/weights.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace libtorch_files_test {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;
using Tensors = std::map<std::string, at::Tensor>;

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

void expect_equal(const Tensors& found, const Tensors& expected) {
  for (const auto& [name, tensor] : expected) {
    const auto place = found.find(name);
    ASSERT_NE(place, found.end()) << name;
    EXPECT_EQ(place->second.scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(place->second.sizes(), tensor.sizes()) << name;
    if (tensor.numel() == 0) continue;
    EXPECT_TRUE(at::equal(
        plain(place->second).reshape(-1).view(at::kByte),
        plain(tensor).reshape(-1).view(at::kByte)))
        << name;
  }
  EXPECT_EQ(found.size(), expected.size());
}

// One tensor of each kind that a file can hold.
Tensors kinds() {
  const at::Tensor w = at::arange(1, 13, at::kFloat).reshape({3, 4});
  const at::Tensor z = at::complex(w, -w);
  Tensors all{
      {"contiguous", w},
      {"transposed", w.t()},
      {"strided", w.slice(0, 0, 3, 2).slice(1, 0, 4, 3)},
      {"offset", w.narrow(0, 1, 2)},
      {"expanded", at::arange(1, 4, at::kFloat).reshape({3, 1}).expand({3, 4})},
      {"scalar", at::scalar_tensor(2.5)},
      {"empty", at::empty({0, 3})},
      {"conjugate", at::complex(w, -w).conj()},
      {"conjugate_transposed", at::complex(w, -w).t().conj()},
      {"negative", w.clone()._neg_view()},
      {"negative_conjugate", z._neg_view().conj()},
      {"negative_integers", at::arange(-3, 3, at::kLong)._neg_view()},
      {"tied", w}};
  for (const c10::ScalarType dtype :
       {at::kBool,
        at::kByte,
        at::kChar,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kBFloat16,
        at::kDouble,
        at::kUInt16,
        at::kUInt32,
        at::kUInt64,
        at::kComplexFloat,
        at::kFloat8_e4m3fn,
        at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz,
        at::kFloat8_e5m2fnuz,
        at::kFloat8_e8m0fnu}) {
    all[c10::toString(dtype)] = at::arange(6).remainder(2).to(dtype);
  }
  return all;
}

void write(const fs::path& file, const torch::IValue& value) {
  const std::vector<char> bytes = torch::pickle_save(value);
  std::ofstream(file, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

torch::IValue pickle_load(const fs::path& file) {
  std::ifstream input(file, std::ios::binary);
  return torch::pickle_load(
      std::vector<char>(std::istreambuf_iterator<char>(input), {}));
}

torch::nn::Sequential layers(int count) {
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) net->push_back(torch::nn::Linear(3, 3));
  return net;
}

struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("lstm", lstm);
    register_module("blocks", blocks);
    register_module("table", table);
    register_module("activation", torch::nn::ReLU());
    tied = register_parameter("tied", table->weight);
    scale = register_buffer("scale", at::ones({1}).expand({3}));
    spectrum = register_buffer(
        "spectrum", at::complex(at::rand({3}), at::rand({3})).conj());
    norm->forward(conv->forward(at::rand({2, 1, 4, 4})));
  }
  at::Tensor forward(const at::Tensor& x) { return conv(x); }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 2, 3)};
  torch::nn::BatchNorm2d norm{2};
  torch::nn::LSTM lstm{2, 3};
  torch::nn::Sequential blocks = layers(4);
  torch::nn::Embedding table{4, 2};
  at::Tensor tied, scale, spectrum;
};

Tensors copies(const torch::nn::Module& net) {
  Tensors all;
  for (const auto& [name, tensor] : get_state_dict(net))
    all[name] = plain(tensor).clone();
  return all;
}

TEST(LibTorchFiles, ModulesOfAnySizeAreRead) {
  const TemporaryDirectory directory;
  for (const int count : {1, 2, 3, 30}) {
    SCOPED_TRACE(count);
    torch::manual_seed(count);
    auto net = layers(count);
    torch::save(net, (directory / "net.pt").string());
    auto other = layers(count);
    load_model(*other, directory / "net.pt");
    expect_equal(copies(*other), copies(*net));
  }
}

TEST(LibTorchFiles, ModulesOfEveryKindAreRead) {
  const TemporaryDirectory directory;
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  torch::save(net, (directory / "net.pt").string());
  Tensors expected = copies(*net);
  expect_equal(load_state_dict(directory / "net.pt"), expected);
  auto other = std::make_shared<Net>();
  load_model(*other, directory / "net.pt");
  expect_equal(copies(*other), expected);
  auto third = std::make_shared<Net>();
  load_checkpoint_in_model(*third, directory / "net.pt");
  expect_equal(copies(*third), expected);
}

TEST(LibTorchFiles, OptimizersAreRead) {
  const TemporaryDirectory directory;
  auto net = layers(2);
  torch::optim::AdamW adam(net->parameters());
  net->forward(at::ones({1, 3})).sum().backward();
  adam.step();
  torch::save(adam, (directory / "adam.pt").string());
  std::multiset<std::string> names;
  std::vector<at::Tensor> moments;
  for (const auto& [name, tensor] : load_state_dict(directory / "adam.pt")) {
    names.insert(name.substr(name.rfind('.') + 1));
    if (name.ends_with("exp_avg")) moments.push_back(tensor);
  }
  EXPECT_EQ(names.count("exp_avg"), 4u);
  EXPECT_EQ(names.count("exp_avg_sq"), 4u);
  for (const at::Tensor& parameter : net->parameters()) {
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *adam.state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_TRUE(std::any_of(moments.begin(), moments.end(), [&](auto& each) {
      return each.sizes() == parameter.sizes() &&
          at::equal(each, state.exp_avg());
    }));
  }
}

TEST(LibTorchFiles, TensorsAreRead) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "x.pt").string();
  for (const auto& [name, tensor] : kinds()) {
    SCOPED_TRACE(name);
    torch::save(tensor, file);
    expect_equal(load_state_dict(file), {{"0", tensor}});
  }
  std::vector<at::Tensor> list;
  Tensors expected;
  for (const auto& [name, tensor] : kinds()) {
    expected[std::to_string(list.size())] = tensor;
    list.push_back(tensor);
  }
  torch::save(list, file);
  expect_equal(load_state_dict(file), expected);
}

// Makes a value with tensors in it, and lists them by name.
class RandomValue {
 public:
  explicit RandomValue(unsigned seed) : random_(seed) {
    for (const auto& [name, tensor] : kinds()) all_.push_back(tensor);
  }

  torch::IValue make(const std::string& name, int depth) {
    switch (depth == 0 ? pick(3) : pick(8)) {
      case 0:
      case 1:
      case 2:
        return tensor(name);
      case 3:
        return other();
      case 4: {
        c10::impl::GenericDict dict(
            c10::StringType::get(), c10::AnyType::get());
        for (int i = pick(4); i-- > 0;) {
          const std::string key = "k" + std::to_string(i);
          dict.insert(key, make(inside(name, key), depth - 1));
        }
        return dict;
      }
      case 5: {
        c10::impl::GenericList list(c10::AnyType::get());
        for (int i = 0, count = pick(4); i < count; ++i)
          list.push_back(make(inside(name, std::to_string(i)), depth - 1));
        return list;
      }
      case 6: {
        std::vector<torch::IValue> items;
        for (int i = 0, count = pick(4); i < count; ++i)
          items.push_back(make(inside(name, std::to_string(i)), depth - 1));
        return c10::ivalue::Tuple::create(std::move(items));
      }
      default: {
        std::vector<at::Tensor> list;
        for (int i = 0, count = pick(4); i < count; ++i)
          list.push_back(tensor(inside(name, std::to_string(i))));
        return list;
      }
    }
  }
  Tensors expected;

 private:
  int pick(int count) {
    return std::uniform_int_distribution<int>(0, count - 1)(random_);
  }
  static std::string inside(const std::string& name, const std::string& step) {
    return name.empty() ? step : name + "." + step;
  }
  at::Tensor tensor(const std::string& name) {
    const auto index = pick(static_cast<int>(all_.size()));
    return expected[name] = all_[static_cast<std::size_t>(index)];
  }
  torch::IValue other() {
    const torch::IValue values[] = {
        torch::IValue(),
        std::int64_t{3},
        2.5,
        true,
        "text",
        std::vector<std::int64_t>{1, 2},
        std::vector<double>{0.5},
        c10::complex<double>(1, 2),
        c10::Device("cpu")};
    return values[pick(static_cast<int>(std::size(values)))];
  }

  std::mt19937 random_;
  std::vector<at::Tensor> all_;
};

// ACCELERATE_LIBTORCH_FILES=N tries N values.
TEST(LibTorchFiles, PickledValuesAreRead) {
  const TemporaryDirectory directory;
  const char* const given = std::getenv("ACCELERATE_LIBTORCH_FILES");
  const unsigned count =
      given == nullptr ? 150 : static_cast<unsigned>(std::atoi(given));
  for (unsigned seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(seed);
    RandomValue random(seed);
    const torch::IValue value = random.make("", 4);
    write(directory / "x.pt", value);
    if (random.expected.empty()) {
      // An empty container holds no tensors; anything else does not either.
      try {
        EXPECT_TRUE(load_state_dict(directory / "x.pt").empty());
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("holds no tensors"));
      }
      continue;
    }
    expect_equal(load_state_dict(directory / "x.pt"), random.expected);
  }
}

TEST(LibTorchFiles, PickleLoadReadsSavedModels) {
  const TemporaryDirectory directory;
  torch::manual_seed(2);
  auto net = std::make_shared<Net>();
  save_model(*net, directory / "model", {.safe_serialization = false});
  Tensors found;
  for (const auto& item :
       pickle_load(directory / "model/pytorch_model.bin").toGenericDict()) {
    found[item.key().toStringRef()] = item.value().toTensor();
  }
  expect_equal(found, copies(*net));
}

TEST(LibTorchFiles, PickleLoadReadsWhatAcceleratorsSave) {
  const TemporaryDirectory directory;
  AcceleratorOptions options;
  options.world = {.rank = 0, .size = 1};
  Accelerator accelerator(options);
  torch::manual_seed(2);
  auto net = std::make_shared<Net>();
  auto model = accelerator.prepare(net);
  accelerator.save_model(
      model, directory / "model", {.safe_serialization = false});
  accelerator.save_state(directory / "state", {.safe_serialization = false});
  accelerator.save(
      accelerator.get_state_dict(model), directory / "weights.bin");
  for (const char* file :
       {"model/pytorch_model.bin", "state/pytorch_model.bin", "weights.bin"}) {
    SCOPED_TRACE(file);
    Tensors found;
    for (const auto& item : pickle_load(directory / file).toGenericDict())
      found[item.key().toStringRef()] = item.value().toTensor();
    expect_equal(found, copies(*net));
  }
}

// The file has "w" and a numpy array "arr" (tests/format/torch_files).
TEST(LibTorchFiles, NumpyArraysAreRefusedByStrictLoads) {
  const fs::path file = fs::path(ACCELERATE_TORCH_FILES) / "array_beside.pt";
  struct OneWeight : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::zeros({2}));
  };
  const auto load = [&](const LoadModelOptions& options) {
    OneWeight net;
    load_model(net, file, options);
    return net.w.detach().clone();
  };
  testing::expect_error<CheckpointError>(
      [&] { load({}); }, "arr is a numpy array in the files");
  const at::Tensor expected = torch::tensor({1.0F, 2.0F});
  EXPECT_TRUE(load({.strict = false}).equal(expected));
  EXPECT_TRUE(load({.skip = {"arr"}}).equal(expected));
  const auto rename = [](const std::string& name) {
    return name == "arr" ? std::string() : name;
  };
  EXPECT_TRUE(load({.rename = rename}).equal(expected));
  EXPECT_EQ(load_state_dict(file).size(), 1U);
}

}  // namespace libtorch_files_test
}  // namespace accelerate
