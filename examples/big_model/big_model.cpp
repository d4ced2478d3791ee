// Runs a language model that does not fit into the memory it is given: what
// fits stays in memory, the rest is read from disk block by block while the
// previous block computes. Weights are random, and so is the text.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>

#include "model.h"
#include "weights.h"

namespace {

namespace fs = std::filesystem;

struct Settings {
  double billions = 1.5;
  std::string memory = "2GB";
  fs::path directory = "weights";
  std::int64_t width = 2048;
  std::int64_t num_tokens = 8;
  std::string prompt = "Call me Ishmael.";
};

Settings parse(int argc, char** argv) {
  Settings settings;
  CLI::App app{"runs a language model in less memory than it has weights"};
  app.add_option("--parameters", settings.billions, "parameters, in billions")
      ->capture_default_str();
  app.add_option("--memory", settings.memory, "memory for weights: 2GB, 512MiB")
      ->capture_default_str();
  app.add_option(
         "--directory",
         settings.directory,
         "where the weights are; written if there are none")
      ->capture_default_str();
  app.add_option("--width", settings.width, "elements per token")
      ->capture_default_str();
  app.add_option("--tokens", settings.num_tokens, "tokens to generate")
      ->capture_default_str();
  app.add_option("--prompt", settings.prompt, "text to continue")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

GptOptions options_of(const Settings& settings) {
  const auto width = static_cast<double>(settings.width);
  const double per_block = 12 * width * width;
  return {
      .block_size = 256,
      .num_layers = std::max<std::int64_t>(
          std::llround(settings.billions * 1e9 / per_block), 1),
      .num_heads = std::max<std::int64_t>(settings.width / 64, 1),
      .width = settings.width};
}

torch::Tensor tokens_of(const std::string& text) {
  torch::Tensor tokens =
      torch::empty({1, static_cast<std::int64_t>(text.size())}, torch::kLong);
  for (std::size_t i = 0; i < text.size(); ++i)
    tokens[0][static_cast<std::int64_t>(i)] =
        static_cast<int>(static_cast<unsigned char>(text[i]));
  return tokens;
}

}  // namespace

int main(int argc, char** argv) try {
  const Settings settings = parse(argc, argv);
  const GptOptions options = options_of(settings);
  torch::manual_seed(1);
  if (!fs::exists(settings.directory / "model.safetensors.index.json"))
    write_initial_weights(options, settings.directory);

  auto model = accelerate::init_empty_weights([&] { return Gpt(options); });
  const double total = accelerate::compute_module_sizes(*model).at("");
  const double block =
      accelerate::compute_module_sizes(*model->blocks[0]).at("");
  // Besides what stays, two blocks are in memory: one computing, one arriving.
  const auto limit = accelerate::ByteSize(settings.memory).bytes();
  const auto for_blocks = static_cast<std::int64_t>(2 * block);
  if (limit < for_blocks) {
    std::fprintf(
        stderr,
        "--memory must hold two blocks of %s\n",
        accelerate::convert_bytes(block).c_str());
    return 1;
  }
  const auto map = accelerate::infer_auto_device_map(
      *model,
      {.max_memory = {{"cpu", limit - for_blocks}},
       .no_split_module_classes = {"Block"}});
  std::printf("%s\n", map.explain().c_str());
  std::printf(
      "%.2f billion parameters, %s, in %s of memory\n",
      total / 4e9,
      accelerate::convert_bytes(total).c_str(),
      settings.memory.c_str());

  auto big = accelerate::load_checkpoint_and_dispatch(
      model,
      settings.directory,
      {.device_map = map,
       .progress =
           accelerate::ProgressOptions{
               .description = "reading", .delay_seconds = 1},
       .preload_module_classes = {"Block"}});
  const torch::NoGradGuard no_grad;
  torch::Tensor tokens = tokens_of(settings.prompt);
  const auto start = std::chrono::steady_clock::now();
  {
    accelerate::Progress progress(
        {.description = "generating", .total = settings.num_tokens});
    for (std::int64_t i = 0; i < settings.num_tokens; ++i) {
      const auto seen = tokens.narrow(
          1,
          std::max<std::int64_t>(tokens.size(1) - options.block_size, 0),
          std::min(tokens.size(1), options.block_size));
      const torch::Tensor logits = big(seen);
      const torch::Tensor next =
          logits.select(1, logits.size(1) - 1).argmax(-1, /*keepdim=*/true);
      tokens = torch::cat({tokens, next}, 1);
      progress.update();
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const auto stats = big.stats();
  std::printf("tokens:");
  for (std::int64_t i = tokens.size(1) - settings.num_tokens;
       i < tokens.size(1);
       ++i)
    std::printf(" %d", tokens[0][i].item<int>());
  std::printf(
      "\n%.3g tokens per second",
      static_cast<double>(settings.num_tokens) / seconds);
  std::printf(
      "\nread %s, at most %s of it in memory at once, waited %.1f s\n",
      accelerate::convert_bytes(static_cast<double>(stats.fetched_bytes))
          .c_str(),
      accelerate::convert_bytes(static_cast<double>(stats.peak_bytes)).c_str(),
      stats.wait_seconds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "big_model: %s\n", error.what());
  return 1;
}
