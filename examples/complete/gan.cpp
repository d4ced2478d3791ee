// A generative adversarial network (Goodfellow et al., 2014): two models with
// an optimizer each. One makes digits from noise, the other tells them from
// handwritten ones.
//
//   accelerate-cpp launch --num_processes 2 build/bin/gan
//
// Every fifth epoch prints both losses, and the energy distance of the made
// digits to handwritten ones that were not trained on: 0 if they come from the
// same distribution. It begins near 4 and falls below 0.5; that of other
// handwritten digits is printed at the end, about 0.01. Made digits can be seen
// with `accelerate-cpp watch --web gan_run`. --resume continues.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>

#include "dataset.h"

namespace {

using torch::Tensor;

constexpr std::int64_t kNoise = 32;
constexpr double kPenalty = 0.15;

struct Flags {
  std::uint64_t epochs = 20;
  double learning_rate = 2e-3;
  std::filesystem::path project_dir = "gan_run";
  std::string data = DIGITS_CSV;
  bool resume = false;
};

/// Noise [N, kNoise] gives images [N, 1, 8, 8] from 0 to 1.
struct GeneratorImpl : torch::nn::Module {
  Tensor forward(const Tensor& noise) {
    const Tensor small = torch::relu(start(noise)).view({-1, 64, 2, 2});
    return torch::sigmoid(second(torch::relu(first(small))));
  }
  torch::nn::Linear start =
      register_module("start", torch::nn::Linear(kNoise, 64 * 2 * 2));
  torch::nn::ConvTranspose2d first =
      register_module("first", enlarging(64, 32));
  torch::nn::ConvTranspose2d second =
      register_module("second", enlarging(32, 1));

  static torch::nn::ConvTranspose2d enlarging(
      std::int64_t in,
      std::int64_t out) {
    return torch::nn::ConvTranspose2d(
        torch::nn::ConvTranspose2dOptions(in, out, 4).stride(2).padding(1));
  }
};
TORCH_MODULE(Generator);

/// Images [N, 1, 8, 8] give logits [N]: above 0 for handwritten.
struct DiscriminatorImpl : torch::nn::Module {
  Tensor forward(const Tensor& images) {
    const Tensor x = torch::leaky_relu(first(images), 0.2);
    return out(torch::leaky_relu(second(x), 0.2).flatten(1)).squeeze(1);
  }
  torch::nn::Conv2d first = register_module("first", halving(1, 32));
  torch::nn::Conv2d second = register_module("second", halving(32, 64));
  torch::nn::Linear out =
      register_module("out", torch::nn::Linear(64 * 2 * 2, 1));

  static torch::nn::Conv2d halving(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1));
  }
};
TORCH_MODULE(Discriminator);

/// The mean loss of logits for images that are all handwritten, or all made.
Tensor loss_of(const Tensor& logits, bool is_handwritten) {
  return torch::binary_cross_entropy_with_logits(
      logits, torch::full_like(logits, is_handwritten ? 1.0 : 0.0));
}

/// The mean squared gradient of logits by their images. A penalty on it keeps
/// the discriminator from winning for good (R1; Mescheder et al., 2018).
Tensor slope_of(const Tensor& logits, const Tensor& images) {
  const auto slopes = torch::autograd::grad(
      {logits.sum()}, {images}, {}, std::nullopt, /*create_graph=*/true);
  return slopes[0].square().sum({1, 2, 3}).mean();
}

/// The energy distance (Szekely and Rizzo, 2013) of two samples.
double distance_of(const Tensor& some, const Tensor& others) {
  const auto mean_between = [](const Tensor& a, const Tensor& b) {
    return torch::cdist(a.flatten(1), b.flatten(1)).mean().item<double>();
  };
  return 2 * mean_between(some, others) - mean_between(some, some) -
      mean_between(others, others);
}

void train(const Flags& flags) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir.string(),
      .automatic_checkpoint_naming = true,
      .total_limit = 1};
  const accelerate::Accelerator accelerator(options);
  torch::manual_seed(1);
  const DigitsSplit digits = read_digits(flags.data);
  const Tensor unseen = digits.test.images.to(accelerator.device());
  Generator make;
  Discriminator judge;
  const auto adam_options =
      torch::optim::AdamOptions(flags.learning_rate).betas({0.5, 0.999});
  torch::optim::Adam make_adam(make->parameters(), adam_options);
  torch::optim::Adam judge_adam(judge->parameters(), adam_options);
  auto [generator, discriminator, generator_step, discriminator_step, loader] =
      accelerator.prepare(
          make,
          judge,
          make_adam,
          judge_adam,
          accelerate::DataLoader(
              accelerate::TensorDataset(digits.train.images),
              {.batch_size = 32, .shuffle = true}));
  // Every rank makes digits from its own noise.
  accelerate::set_seed(2, accelerator.world(), {.device_specific = true});
  if (flags.resume && accelerator.resume())
    accelerator.print("resuming in epoch {}", loader.epoch());
  accelerator.init_trackers("gan");

  const auto noise = [&](std::int64_t number) {
    return torch::randn({number, kNoise}, accelerator.device());
  };
  accelerate::Mean judge_loss(accelerator), make_loss(accelerator);
  accelerate::Mean distance(accelerator);
  const auto report = [&, &generator = generator](std::int64_t epoch) {
    const torch::NoGradGuard no_grad;
    const Tensor made = generator(noise(unseen.size(0)));
    distance.reset();
    distance.update(distance_of(made, unseen));
    accelerator.print(
        "epoch {}: losses {} and {}, distance {}",
        epoch,
        make_loss.compute(),
        judge_loss.compute(),
        distance.compute());
    accelerator.trackers().log_images("made", made.narrow(0, 0, 8), epoch);
  };

  while (loader.epoch() < flags.epochs) {
    const auto epoch = static_cast<std::int64_t>(loader.epoch());
    make_loss.reset();
    judge_loss.reset();
    for (auto& [images] : loader) {
      const Tensor made = generator(noise(images.size(0)));

      const Tensor handwritten = images.detach().requires_grad_();
      const Tensor logits = discriminator(handwritten);
      const Tensor judged =
          loss_of(logits, true) + loss_of(discriminator(made.detach()), false);
      accelerator.backward(judged + kPenalty * slope_of(logits, handwritten));
      discriminator_step.step();
      discriminator_step.zero_grad();
      judge_loss.update(judged);

      // The generator's gradients pass through the discriminator, whose own are
      // not wanted here, and need not travel between the ranks.
      const auto quiet = accelerator.no_sync(discriminator);
      const Tensor fooled = loss_of(discriminator(made), true);
      accelerator.backward(fooled);
      generator_step.step();
      generator_step.zero_grad();
      discriminator_step.zero_grad();
      make_loss.update(fooled);
    }
    if (epoch % 5 == 0 || loader.epoch() == flags.epochs) report(epoch);
    accelerator.save_state({.asynchronous = true});
  }
  accelerator.save_model(generator, flags.project_dir / "generator");
  accelerator.print(
      "distance of handwritten digits {}",
      distance_of(digits.train.images, digits.test.images));
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Learns to make digits.");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", flags.epochs);
  app.add_option("--learning_rate", flags.learning_rate);
  app.add_option("--project_dir", flags.project_dir);
  app.add_option("--data", flags.data, "the compressed CSV file of digits");
  app.add_flag("--resume", flags.resume);
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "gan: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
