// Packages that Python compiled compute what Python computes, also with weights that were trained here.
#include <accelerate/package.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <accelerate/error.h>
#include <accelerate/weights.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::package_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PackagedModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<TemporaryDirectory>();
    const std::string command = std::string(ACCELERATE_CROSS_PYTHON) + " " +
        ACCELERATE_MAKE_PACKAGE + " " + directory_->path().string() + " " +
        TORCH_VERSION + " 2>" + (*directory_ / "log").string();
    std::FILE* const output = ::popen(command.c_str(), "r");
    std::array<char, 1000> line{};
    while (std::fgets(line.data(), line.size(), output) != nullptr)
      reason_ = line.data();
    status_ = ::pclose(output);
  }
  static void TearDownTestSuite() { directory_.reset(); }

  void SetUp() override {
    if (status_ == 77 << 8) GTEST_SKIP() << reason_;
    std::ifstream log(*directory_ / "log");
    ASSERT_EQ(status_, 0) << log.rdbuf();
    record = load_state_dict(file("record.safetensors"));
  }

  static std::filesystem::path file(const std::string& name) {
    return *directory_ / name;
  }
  [[nodiscard]] ExportedOutputs run(
      accelerate::PackagedModel& net,
      const std::string& prefix) {
    return net->forward(record.at(prefix + ".ids"), record.at("shift"));
  }
  // `prefix`: of the recorded results.
  void expect_results(const ExportedOutputs& found, const std::string& prefix)
      const {
    ASSERT_EQ(found.size(), 3U);
    int i = 0;
    for (const char* name : {".logits", ".h", ".sum"})
      expect_close(found[i++], record.at(prefix + name), prefix + name);
  }
  static void expect_close(
      const torch::Tensor& found,
      const torch::Tensor& expected,
      const std::string& what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    EXPECT_FALSE(found.requires_grad()) << what;
    EXPECT_TRUE(torch::allclose(found, expected, 1e-4, 1e-5)) << what;
  }

  std::map<std::string, torch::Tensor> record;

 private:
  inline static std::unique_ptr<TemporaryDirectory> directory_;
  inline static std::string reason_;
  inline static int status_ = 0;
};

TEST_F(PackagedModel, ComputesWhatPythonDoes) {
  auto net = load_package(file("net.pt2"));
  EXPECT_EQ(net->name(), "Net");
  EXPECT_THAT(net->input_names(), ElementsAre("ids", "shift"));
  EXPECT_THAT(net->output_names(), ElementsAre("logits", "pair.0", "pair.1"));
  EXPECT_THAT(net->parameters(), IsEmpty());
  EXPECT_EQ(net->device(), at::Device(at::kCPU));
  expect_results(run(net, "first"), "first");
  expect_results(run(net, "other"), "other");
  const auto by_name = net->forward(ExportedInputs{
      {"shift", record.at("shift")}, {"ids", record.at("other.ids")}});
  expect_close(by_name["pair.0"], record.at("other.h"), "pair.0");
}

// The layout of an input is not that for which it was compiled.
TEST_F(PackagedModel, TakesInputsOfAnyLayout) {
  auto net = load_package(file("net.pt2"));
  const auto shift = torch::stack({record.at("shift"), record.at("shift")}, 1);
  const auto wide =
      torch::stack({record.at("first.ids"), torch::full({5}, 99)}, 1);
  expect_results(net->forward(wide.select(1, 0), shift.select(1, 0)), "first");
}

TEST_F(PackagedModel, TakesWeightsOfAFile) {
  auto net = load_package(file("net.pt2"));
  auto weights = load_state_dict(file("trained.safetensors"));
  net->load_weights(weights);
  expect_results(run(net, "first"), "trained_first");
  expect_results(run(net, "other"), "trained_other");
  // Under the other name of the tied tensor, in another dtype and layout.
  const auto tied = weights.extract("embed.weight").mapped();
  for (auto& [name, tensor] : weights) tensor = tensor.to(torch::kDouble);
  weights["head.weight"] = tied.t().contiguous().t();
  auto other = load_package(file("net.pt2"));
  other->load_weights(weights);
  expect_results(run(other, "first"), "trained_first");
}

// The package has the graph, which can be trained.
TEST_F(PackagedModel, TakesWeightsThatWereTrainedHere) {
  auto trained = load_exported(file("net.pt2"));
  load_model(*trained, file("trained.safetensors"));
  torch::optim::SGD sgd(trained->parameters(), 0.1);
  const auto ids = record.at("first.ids");
  const auto shift = record.at("shift");
  trained->forward(ids, shift)["logits"].square().mean().backward();
  sgd.step();
  auto net = load_package(file("net.pt2"));
  net->load_weights(get_state_dict(*trained));
  const torch::NoGradGuard no_gradients;
  const auto expected = trained->forward(ids, shift);
  const auto found = net->forward(ids, shift);
  expect_close(found["logits"], expected["logits"], "logits");
  EXPECT_FALSE(
      torch::allclose(found["logits"], record.at("trained_first.logits")));
}

TEST_F(PackagedModel, NamesAllWeightsThatDoNotFitAndReplacesNone) {
  auto net = load_package(file("net.pt2"));
  auto weights = load_state_dict(file("trained.safetensors"));
  weights.erase("fc.bias");
  weights.erase("norm.running_mean");
  weights["scale"] = torch::ones(7);
  weights["fc.wieght"] = torch::ones(1);
  expect_error<CheckpointError>(
      [&] { net->load_weights(weights); },
      "weights must fit the package, but 'fc.bias' is missing; 'fc.wieght' is "
      "unknown; 'norm.running_mean' is missing; 'scale' must be [6], but is "
      "[7]");
  expect_results(run(net, "first"), "first");
}

TEST_F(PackagedModel, RefusesOtherInputs) {
  auto net = load_package(file("net.pt2"));
  const auto ids = record.at("first.ids");
  const auto shift = record.at("shift");
  struct Case {
    std::vector<torch::Tensor> inputs;
    const char* phrase;
  };
  const Case cases[] = {
      {{ids}, "must get 2 inputs (ids, shift), but gets 1"},
      {{ids, torch::Tensor()}, "but one is undefined"},
      {{ids.to(at::kMeta), shift}, "must be on 'cpu', but one is on 'meta'"},
      {{ids.to(at::kInt), shift}, "input 'ids' must be Long, but is Int"},
      {{torch::zeros({65}, at::kLong), shift},
       "dimension 0 of input 'ids' must be 2 to 64"},
      {{ids, torch::ones(5)}, "dimension 0 of input 'shift' must be 6"},
      {{ids, torch::ones({6, 1})}, "must have 1 dimensions, but has 2"}};
  for (const Case& bad : cases)
    expect_error<ConfigError>(
        [&] { (void)net->forward(bad.inputs); }, bad.phrase);
  expect_error<ConfigError>(
      [&] { (void)net->forward(ExportedInputs{{"ids", ids}}); },
      "the inputs must be ids, shift, but are ids");
}

TEST_F(PackagedModel, StaysOnItsDevice) {
  auto net = load_package(file("net.pt2"), {.device = at::Device(at::kCPU)});
  net->to(at::kCPU);
  expect_error<ConfigError>(
      [&] { net->to(at::kMeta); }, "but is to become 'meta'");
  expect_error<ConfigError>(
      [&] { net->to(at::kDouble); }, "but is to become Double");
  expect_error<ConfigError>(
      [] {
        (void)load_package(
            file("net.pt2"), {.device = at::Device(at::kCUDA, 1)});
      },
      "must run on a device of type 'cpu', for which it was compiled, but is "
      "to run on 'cuda:1'");
}

TEST_F(PackagedModel, RunsForSeveralThreads) {
  auto net = load_package(file("net.pt2"), {.num_runners = 2});
  std::vector<std::thread> threads;
  std::vector<int> num_right(4);
  for (int& count : num_right)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const std::string prefix = i % 2 == 0 ? "first" : "other";
        count += static_cast<int>(torch::allclose(
            run(net, prefix)["logits"],
            record.at(prefix + ".logits"),
            1e-4,
            1e-5));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_right, ElementsAre(50, 50, 50, 50));
}

TEST_F(PackagedModel, IsChosenByName) {
  expect_error<CheckpointError>(
      [] { (void)load_package(file("net.pt2"), {.model = "other"}); },
      "cannot be run");
}

TEST_F(PackagedModel, RunsWithoutItsGraph) {
  auto net = load_package(file("plain.pt2"));
  EXPECT_THAT(net->input_names(), IsEmpty());
  expect_results(run(net, "other"), "other");
  expect_error<ConfigError>(
      [&] { (void)net->forward(ExportedInputs{}); },
      "the inputs must be a list, since the package has no names");
  auto weights = load_state_dict(file("trained.safetensors"));
  // All tensors of the code are needed, and no others.
  expect_error<CheckpointError>(
      [&] { net->load_weights(weights); }, "'hidden' is missing");
}

TEST_F(PackagedModel, TakesOnlyTensors) {
  expect_error<ConfigError>(
      [] { (void)load_package(file("numbers.pt2")); },
      "must be tensors, but one of x, n is a number");
}

TEST(PackageFile, IsRefusedIfItIsNone) {
  const TemporaryDirectory directory;
  expect_error<Error>(
      [&] { (void)load_package(directory / "missing.pt2"); }, "missing.pt2");
  std::ofstream(directory / "text.pt2") << "no archive";
  expect_error<CheckpointError>(
      [&] { (void)load_package(directory / "text.pt2"); }, "cannot be read");
  expect_error<CheckpointError>(
      [&] {
        (void)load_package(
            std::filesystem::path(ACCELERATE_EXPORTED_PROGRAMS) / "llama.pt2");
      },
      "cannot be run");
}

}  // namespace accelerate::testing::package_test
