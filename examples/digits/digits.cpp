// Trains a small convolutional net on 1,797 real handwritten digits.
//
//   accelerate-cpp launch --num_processes 2 build/bin/digits
//
// ends with a line such as
//
//   2 processes, 21000 samples/s, results in digits_run (accelerate-cpp watch
//   digits_run/digits-20260131-170500-3f0c), accuracy=0.9889 digest=3f0c...
//
// The same seed on the same number of processes gives the same digest. During
// and after training, `accelerate-cpp watch digits_run` shows its curves.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>

#include "dataset.h"

namespace {

namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;

struct Flags {
  int epochs = 30;
  int batch_size = 32;
  std::uint64_t seed = 1;
  double learning_rate = 3e-3;
  int gradient_accumulation_steps = 0;
  std::string project_dir = "digits_run";
  int checkpoint_every = 0;
  int total_limit = 0;
  std::string resume;
  std::string precision;
  std::string data = DIGITS_CSV;
};

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor images_N1HW) {
    auto x = F::max_pool2d(
        torch::relu(conv1(images_N1HW)), F::MaxPool2dFuncOptions(2));
    x = F::max_pool2d(torch::relu(conv2(x)), F::MaxPool2dFuncOptions(2));
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1 = register_module(
      "conv1",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)));
  torch::nn::Conv2d conv2 = register_module(
      "conv2",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)));
  torch::nn::Linear fc1 =
      register_module("fc1", torch::nn::Linear(64 * 2 * 2, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Net);

/// FNV-1a over the bytes of all parameters, in order.
std::uint64_t digest_of(const torch::nn::Module& module) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor bytes =
        parameter.detach().cpu().contiguous().view(-1).view(torch::kUInt8);
    const auto* data = bytes.const_data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < bytes.numel(); ++i) {
      digest = (digest ^ data[i]) * 0x100000001b3;
    }
  }
  return digest;
}

template <class Loader>
double accuracy_of(
    const accelerate::Accelerator& accelerator,
    const accelerate::Model<NetImpl>& model,
    Loader& loader) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::int64_t num_right = 0;
  std::int64_t num_seen = 0;
  for (auto& [images, labels] : loader) {
    const torch::Tensor is_right = model(images).argmax(1) == labels;
    const torch::Tensor all = accelerator.gather_for_metrics(is_right);
    num_right += all.sum().template item<std::int64_t>();
    num_seen += all.size(0);
  }
  model.train();
  return static_cast<double>(num_right) / static_cast<double>(num_seen);
}

/// The progress of the training, saved in checkpoints.
struct Position {
  std::int64_t batches = 0;
  std::int64_t steps = 0;
  accelerate::StateDict state_dict() const {
    return {{"batches", batches}, {"steps", steps}};
  }
  void load_state_dict(const accelerate::StateDict& state) {
    batches = state.get<std::int64_t>("batches");
    steps = state.get<std::int64_t>("steps");
  }
};

/// Resumes from the newest checkpoint of the project for "latest", if there is
/// one; otherwise `from` is the directory of a checkpoint.
void resume(
    const accelerate::Accelerator& accelerator,
    const std::string& from) {
  if (from.empty()) return;
  if (from != "latest") {
    accelerator.load_state(std::filesystem::path(from));
    accelerator.print("resumed from " + from);
    return;
  }
  accelerator.print(
      accelerator.resume()
          ? "resumed from the newest checkpoint"
          : "nothing to resume from yet: starting from scratch");
}

void train(const Flags& flags) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir, .automatic_checkpoint_naming = true};
  if (flags.total_limit > 0) {
    options.project_configuration.total_limit = flags.total_limit;
  }
  if (!flags.precision.empty()) {
    options.mixed_precision = accelerate::parse_precision(flags.precision);
  }
  if (flags.gradient_accumulation_steps > 0) {
    options.gradient_accumulation_steps = flags.gradient_accumulation_steps;
  }
  const accelerate::Accelerator accelerator(options);

  torch::manual_seed(flags.seed);
  const DigitsSplit digits = read_digits(flags.data);
  Net net;
  torch::optim::AdamW adamw(
      net->parameters(), torch::optim::AdamWOptions(flags.learning_rate));
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(
      net,
      adamw,
      accelerate::DataLoader(
          accelerate::TensorDataset(digits.train.images, digits.train.labels),
          {.batch_size = flags.batch_size, .shuffle = true}),
      accelerate::DataLoader(
          accelerate::TensorDataset(digits.test.images, digits.test.labels),
          {.batch_size = flags.batch_size}));

  Position position;
  accelerator.register_for_checkpointing(position);
  // A resumed pass is shorter.
  const std::int64_t batches_of_pass = loader.size();
  // Before anything is logged, so that a resumed run continues its journal.
  resume(accelerator, flags.resume);
  accelerator.init_trackers(
      "digits",
      {{"epochs", flags.epochs},
       {"batch_size", flags.batch_size},
       {"seed", std::to_string(flags.seed)},
       {"learning_rate", flags.learning_rate},
       {"precision", flags.precision}});

  // A launcher's ranks write to pipes, where a bar is just an occasional line.
  auto bar = accelerator.progress(
      std::int64_t{flags.epochs} * batches_of_pass,
      {.description = "digits",
       .initial = position.batches,
       .line_interval_seconds = 1});
  const auto first_epoch = static_cast<int>(loader.epoch());
  std::chrono::duration<double> train_time{};
  std::int64_t num_samples = 0;
  double accuracy = first_epoch < flags.epochs
      ? 0
      : accuracy_of(accelerator, model, test_loader);
  for (int epoch = first_epoch; epoch < flags.epochs; ++epoch) {
    const auto start = Clock::now();
    double last_loss = 0;
    for (auto& [images, labels] : loader) {
      const auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      const torch::Tensor loss = F::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      last_loss = loss.item<double>();
      num_samples += loader.total_batch_size();
      ++position.batches;
      if (accelerator.sync_gradients()) ++position.steps;
      accelerator.log(
          {{"loss", last_loss}, {"learning_rate", flags.learning_rate}},
          position.batches);
      if (flags.checkpoint_every > 0 && accelerator.sync_gradients() &&
          position.steps % flags.checkpoint_every == 0) {
        accelerator.save_state();
      }
      bar.set_postfix({{"epoch", epoch + 1}, {"loss", last_loss}});
      bar.update();
    }
    train_time += Clock::now() - start;
    accuracy = accuracy_of(accelerator, model, test_loader);
    accelerator.log({{"accuracy", accuracy}}, position.batches);
  }
  bar.close();

  const auto whole = model.full_parameters();
  if (accelerator.is_main_process()) {
    std::printf(
        "%d process%s, %.0f samples/s, results in %s (accelerate-cpp watch "
        "%s), accuracy=%.4f digest=%016llx\n",
        accelerator.num_processes(),
        accelerator.num_processes() == 1 ? "" : "es",
        train_time.count() > 0
            ? static_cast<double>(num_samples) / train_time.count()
            : 0.0,
        flags.project_dir.c_str(),
        accelerator.trackers().run_dir().c_str(),
        accuracy,
        static_cast<unsigned long long>(digest_of(*model.module())));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Trains a small convolutional net on 1,797 real handwritten digits.",
      "digits");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", flags.epochs, "passes over the training digits")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--batch_size", flags.batch_size, "samples per process and micro-step")
      ->check(CLI::PositiveNumber);
  app.add_option(
      "--seed",
      flags.seed,
      "seed of the initial weights and the order of the data");
  app.add_option(
         "--learning_rate", flags.learning_rate, "learning rate of AdamW")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--gradient_accumulation_steps",
         flags.gradient_accumulation_steps,
         "micro-steps per optimizer step; 0 takes the launcher's")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--project_dir",
      flags.project_dir,
      "where the runs' journals and checkpoints are written");
  app.add_option(
         "--checkpoint_every",
         flags.checkpoint_every,
         "optimizer steps between checkpoints; 0: no checkpoints")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--total_limit", flags.total_limit, "checkpoints to keep; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--resume",
      flags.resume,
      "\"latest\", which starts from scratch if there is no checkpoint yet, "
      "or a checkpoint's directory");
  app.add_option(
      "--precision",
      flags.precision,
      "no, bf16 or fp16; empty takes the launcher's");
  app.add_option("--data", flags.data, "the compressed CSV file of digits");
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "digits: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
