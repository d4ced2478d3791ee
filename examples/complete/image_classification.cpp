// Classifies images that lie in one directory per class:
//
//   shapes/train/circle/0.ppm ...   shapes/val/circle/0.ppm ...
//
//   python3 examples/complete/make_data.py images shapes
//   accelerate-cpp launch --num_processes 2 build/bin/image_classification
//       --data shapes
//
// Each epoch prints the loss and the accuracy on all images of val. Weights of
// the best epoch are in image_run/best, as safetensors. --resume continues
// from the last epoch that was finished, on any number of processes.
// --precision bf16 (or the launcher's --mixed_precision) computes in bf16;
// --net resnet18 takes a ResNet-18, and --weights begins with its weights.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/datasets.h>

#include "resnet.h"

namespace {

namespace fs = std::filesystem;

struct Flags {
  fs::path data;
  std::string net = "small";
  fs::path weights;
  std::int64_t size = 32;
  std::uint64_t epochs = 15;
  std::int64_t batch_size = 16;
  double learning_rate = 5e-3;
  int num_workers = 2;
  std::string precision;
  fs::path project_dir = "image_run";
  bool resume = false;
};

/// Images [N, 3, H, W] give logits [N, num_classes].
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(std::int64_t num_classes)
      : layers(register_module(
            "layers",
            torch::nn::Sequential(
                convolution(3, 16, 3, 2),
                torch::nn::BatchNorm2d(16),
                torch::nn::ReLU(),
                convolution(16, 32, 3, 2),
                torch::nn::BatchNorm2d(32),
                torch::nn::ReLU(),
                convolution(32, 64, 3, 2),
                torch::nn::BatchNorm2d(64),
                torch::nn::ReLU()))),
        fc(register_module("fc", torch::nn::Linear(64, num_classes))) {}

  torch::Tensor forward(const torch::Tensor& images) {
    return fc(layers->forward(images).mean({2, 3}));
  }

  torch::nn::Sequential layers;
  torch::nn::Linear fc;
};
TORCH_MODULE(SmallNet);

/// Bytes as floats around 0.
torch::Tensor normalised(const torch::Tensor& image) {
  return image.to(torch::kFloat) / 127.5 - 1;
}

/// A part of the image at a random place, mirrored every second time. The
/// generator belongs to the sample, so a resumed run draws the same numbers.
torch::Tensor augmented(const torch::Tensor& image, at::Generator& generator) {
  constexpr std::int64_t kMargin = 4;
  const std::int64_t height = image.size(1);
  const std::int64_t width = image.size(2);
  const torch::Tensor wide = torch::reflection_pad2d(
      normalised(image).unsqueeze(0), {kMargin, kMargin, kMargin, kMargin});
  const torch::Tensor draws =
      torch::randint(2 * kMargin + 1, {3}, generator, torch::kLong);
  const torch::Tensor part =
      wide.squeeze(0)
          .narrow(1, draws[0].item<std::int64_t>(), height)
          .narrow(2, draws[1].item<std::int64_t>(), width);
  return draws[2].item<std::int64_t>() % 2 == 0 ? part.flip(2) : part;
}

accelerate::ImageFolder
images_of(const Flags& flags, const std::string& part, bool augments) {
  return accelerate::ImageFolder(
      (flags.data / part).string(),
      {.size = std::pair(flags.size, flags.size),
       .transform = [augments](
                        const torch::Tensor& image, at::Generator& generator) {
         return augments ? augmented(image, generator) : normalised(image);
       }});
}

accelerate::AcceleratorOptions options_of(const Flags& flags) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir.string(),
      .automatic_checkpoint_naming = true,
      .total_limit = 2};
  if (!flags.precision.empty())
    options.mixed_precision = accelerate::parse_precision(flags.precision);
  return options;
}

template <class Net>
void train(const Flags& flags) {
  const accelerate::Accelerator accelerator(options_of(flags));
  accelerate::set_seed(1);
  auto [loader, evaluation] = accelerator.prepare(
      accelerate::DataLoader(
          images_of(flags, "train", true),
          {.batch_size = flags.batch_size,
           .shuffle = true,
           .num_workers = flags.num_workers}),
      accelerate::DataLoader(
          images_of(flags, "val", false),
          {.batch_size = flags.batch_size, .num_workers = flags.num_workers}));
  const auto& classes = loader.dataset().classes();
  Net net(static_cast<std::int64_t>(classes.size()));
  // The last layer is new if the weights are those of other classes.
  if (!flags.weights.empty())
    accelerate::load_model(*net, flags.weights, {.skip = {"fc.*"}});
  torch::optim::AdamW adamw(net->parameters(), flags.learning_rate);
  const std::int64_t steps =
      loader.size() * static_cast<std::int64_t>(flags.epochs);
  accelerate::optim::LambdaLR cosine(
      adamw, accelerate::optim::cosine_with_warmup(steps / 10, steps));
  auto [model, optimizer, schedule] = accelerator.prepare(net, adamw, cosine);

  double best = 0;
  accelerator.register_for_checkpointing("best accuracy", best);
  if (flags.resume && accelerator.resume())
    accelerator.print("resuming in epoch {}", loader.epoch());
  accelerator.init_trackers(
      "image_classification",
      {{"net", flags.net}, {"learning_rate", flags.learning_rate}});
  accelerate::Mean mean_loss(accelerator);
  accelerate::Accuracy accuracy(accelerator);
  while (loader.epoch() < flags.epochs) {
    const auto epoch = static_cast<std::int64_t>(loader.epoch());
    mean_loss.reset();
    for (auto& [images, labels] : loader) {
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      mean_loss.update(loss);
    }
    model.eval();
    accuracy.reset();
    for (auto& [images, labels] : evaluation) {
      const torch::NoGradGuard no_grad;
      accuracy.update(model(images), labels);
    }
    model.train();
    const double score = accuracy.compute();
    const double loss = mean_loss.compute();
    accelerator.print("epoch {}: loss {}, accuracy {}", epoch, loss, score);
    accelerator.log({{"loss", loss}, {"accuracy", score}}, epoch);
    if (score > best) {
      best = score;
      accelerator.save_model(model, flags.project_dir / "best");
    }
    accelerator.save_state({.asynchronous = true});
  }
  accelerator.print("{} classes, best accuracy {}", classes.size(), best);
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Classifies images that lie in one directory per class.");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", flags.data, "directory with train and val")
      ->required();
  app.add_option("--net", flags.net)
      ->check(CLI::IsMember({"small", "resnet18"}));
  app.add_option("--weights", flags.weights, "weights to begin with");
  app.add_option("--size", flags.size, "pixels to which images are resized");
  app.add_option("--epochs", flags.epochs);
  app.add_option("--batch_size", flags.batch_size, "images per process");
  app.add_option("--learning_rate", flags.learning_rate);
  app.add_option("--num_workers", flags.num_workers, "threads that read ahead");
  app.add_option(
      "--precision", flags.precision, "no, bf16 or fp16; else the launcher's");
  app.add_option("--project_dir", flags.project_dir);
  app.add_flag("--resume", flags.resume);
  CLI11_PARSE(app, argc, argv);
  try {
    flags.net == "small" ? train<SmallNet>(flags) : train<ResNet18>(flags);
  } catch (const std::exception& error) {
    std::cerr << "image_classification: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
