// Where the weights of exported models come from, and where they are kept.
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::exported_weights_test {

class ExportedWeights : public ::testing::Test {
 protected:
  ExportedWeights() : record("llama") {
    static_cast<void>(
        save_model(*load_exported(program_path("llama")), weights.path()));
  }

  static ExportedModel graph() {
    return load_exported(program_path("llama"), {.weights = false});
  }
  template <class Forward>
  void expect_logits(const Forward& forward) const {
    const torch::NoGradGuard no_grad;
    expect_same(
        forward(
            record.at("input.0"),
            record.at("input.1"),
            record.at("input.2"))["logits"],
        record.at("logits"),
        "logits");
  }

  Record record;
  TemporaryDirectory weights;

 private:
  OneThread one_thread_;
};

TEST_F(ExportedWeights, AreReadFromSafetensorsByTheirNames) {
  ExportedModel net = graph();
  load_checkpoint_in_model(*net, weights.path());
  expect_logits([&](const auto&... inputs) { return net->forward(inputs...); });
}

TEST_F(ExportedWeights, MustBeReadBeforeAForward) {
  ExportedModel net = graph();
  expect_error<c10::Error>(
      [&] {
        net->forward(
            record.at("input.0"), record.at("input.1"), record.at("input.2"));
      },
      "weights on the meta device have no values yet: "
      "load_checkpoint_in_model() or load_model() reads them");
}

TEST_F(ExportedWeights, AreReadIntoAShardedGraph) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    AcceleratorOptions options{.world = world};
    options.parallel.fully_sharded = FullyShardedDataParallelOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap =
            std::vector<std::string>{"LlamaDecoderLayer"}};
    Accelerator accelerator(options);
    ExportedModel net = graph();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.load_model(model, weights.path());
    expect_logits([&, &model = model](const auto&... inputs) {
      return model(inputs...);
    });
    accelerator.finish();
  });
}

TEST_F(ExportedWeights, StayOnDiskUntilALayerRuns) {
  auto big = load_checkpoint_and_dispatch(
      graph(),
      weights.path(),
      {.device_map = DeviceMap{
           {"model.embed_tokens", "cpu"},
           {"model.layers", "disk"},
           {"model.norm", "cpu"},
           {"lm_head", "disk"}}});
  for (int pass = 0; pass < 2; ++pass)
    expect_logits([&](const auto&... inputs) { return big(inputs...); });
  EXPECT_GT(big.stats().num_fetches, 0);
}

TEST_F(ExportedWeights, CanAllBeOnDisk) {
  const TemporaryDirectory folder;
  auto big = dispatch_model(
      load_exported(program_path("llama")),
      {.device_map = {{"", "disk"}}, .offload_dir = folder.path()});
  expect_logits([&](const auto&... inputs) { return big(inputs...); });
}

TEST_F(ExportedWeights, AreMadeOnTheDeviceOfAScope) {
  for (const bool include_buffers : {false, true}) {
    const ExportedModel net = init_empty_weights(
        [] { return load_exported(program_path("cnn")); }, include_buffers);
    for (const auto& parameter : net->parameters())
      EXPECT_TRUE(parameter.is_meta());
    for (const auto& buffer : net->buffers())
      EXPECT_EQ(buffer.is_meta(), include_buffers);
  }
}

TEST_F(ExportedWeights, HaveTheSizesOfADeviceMap) {
  const ExportedModel net = graph();
  const auto sizes = compute_module_sizes(*net);
  std::uint64_t bytes = 0;
  for (const auto& parameter : net->parameters()) bytes += parameter.nbytes();
  EXPECT_EQ(sizes.at(""), static_cast<double>(bytes));
}

}  // namespace accelerate::testing::exported_weights_test
