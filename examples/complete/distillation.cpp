// Distillation (Hinton et al., 2015): a small student learns the answers of a
// large teacher, which is frozen and sharded over the processes.
//
//   accelerate-cpp launch --num_processes 2 build/bin/distillation
//
// trains a convolutional net on handwritten digits, unless --teacher names
// weights that it trained before, then a student with a twentieth of its
// parameters, and ends with the accuracy of both on digits that neither has
// seen, and how often they agree. --label_weight 1 trains the student from
// labels alone; 0 does not show it any. Weights are in distillation_run/teacher
// and distillation_run/student.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>

#include "dataset.h"

namespace {

namespace F = torch::nn::functional;
namespace fs = std::filesystem;
using torch::Tensor;

struct Flags {
  int epochs = 20;
  double temperature = 2;
  double label_weight = 0.1;
  fs::path teacher;
  fs::path project_dir = "distillation_run";
  std::string data = DIGITS_CSV;
};

/// Images [N, 1, 8, 8] give logits [N, 10].
struct TeacherImpl : torch::nn::Module {
  Tensor forward(const Tensor& images) {
    const Tensor x = torch::max_pool2d(torch::relu(first(images)), 2);
    const Tensor y = torch::max_pool2d(torch::relu(second(x)), 2);
    return out(torch::relu(hidden(y.flatten(1))));
  }
  torch::nn::Conv2d first = register_module(
      "first",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)));
  torch::nn::Conv2d second = register_module(
      "second",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)));
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(64 * 2 * 2, 128));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Teacher);

struct StudentImpl : torch::nn::Module {
  Tensor forward(const Tensor& images) {
    return out(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(64, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 10));
};
TORCH_MODULE(Student);

auto loader_of(const Digits& digits, bool shuffle) {
  return accelerate::DataLoader(
      accelerate::TensorDataset(digits.images, digits.labels),
      {.batch_size = 32, .shuffle = shuffle});
}

/// Trains a teacher from labels, and writes its weights.
void train_teacher(
    const accelerate::Accelerator& accelerator,
    const Flags& flags,
    const Digits& digits) {
  Teacher net;
  torch::optim::AdamW adamw(net->parameters(), 3e-3);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, adamw, loader_of(digits, true));
  for (int epoch = 0; epoch < flags.epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      accelerator.backward(F::cross_entropy(model(images), labels));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.save_model(model, flags.project_dir / "teacher");
  accelerator.free_memory();
}

/// The divergence of the student's softened answers from the teacher's, scaled
/// so that the temperature does not change the size of its gradients.
Tensor divergence(const Tensor& student, const Tensor& teacher, double t) {
  return t * t *
      torch::kl_div(
             (student / t).log_softmax(1),
             (teacher / t).log_softmax(1),
             torch::Reduction::Sum,
             /*log_target=*/true) /
      student.size(0);
}

void train(const Flags& flags) {
  const accelerate::Accelerator accelerator;
  torch::manual_seed(1);
  const DigitsSplit digits = read_digits(flags.data);
  fs::path weights = flags.teacher;
  if (weights.empty()) {
    train_teacher(accelerator, flags, digits.train);
    weights = flags.project_dir / "teacher";
  }

  Teacher frozen;
  accelerate::load_model(*frozen, weights);
  std::int64_t num_all = 0;
  for (Tensor& parameter : frozen->parameters()) {
    parameter.requires_grad_(false);
    num_all += parameter.numel();
  }
  Student net;
  torch::optim::AdamW adamw(net->parameters(), 5e-3);
  const accelerate::FullyShardedDataParallelOptions sharded;
  auto [student, teacher, optimizer, loader, test] = accelerator.prepare(
      net,
      accelerate::with_options(frozen, {.fully_sharded = sharded}),
      adamw,
      loader_of(digits.train, true),
      loader_of(digits.test, false));
  accelerate::Mean mean_loss(accelerator);
  for (int epoch = 0; epoch < flags.epochs; ++epoch) {
    mean_loss.reset();
    for (auto& [images, labels] : loader) {
      const Tensor logits = student(images);
      const Tensor loss =
          flags.label_weight * F::cross_entropy(logits, labels) +
          (1 - flags.label_weight) *
              divergence(logits, teacher(images), flags.temperature);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      mean_loss.update(loss);
    }
    accelerator.print("epoch {}: loss {}", epoch, mean_loss.compute());
  }
  accelerator.save_model(student, flags.project_dir / "student");

  const torch::NoGradGuard no_grad;
  accelerate::Accuracy of_student(accelerator), of_teacher(accelerator);
  accelerate::Accuracy agreement(accelerator);
  for (auto& [images, labels] : test) {
    const Tensor logits = student(images);
    const Tensor answers = teacher(images);
    of_student.update(logits, labels);
    of_teacher.update(answers, labels);
    agreement.update(logits, answers.argmax(1));
  }
  std::int64_t num_held = 0;  // by this process
  for (const auto& shard : teacher.state_dict_shards())
    num_held += shard.tensor.numel();
  accelerator.print(
      "process 0 holds {} of {} elements of the teacher", num_held, num_all);
  accelerator.print(
      "accuracy of the teacher {}, of the student {}, agreement {}",
      of_teacher.compute(),
      of_student.compute(),
      agreement.compute());
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Teaches a small net what a large one knows.");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", flags.epochs, "of the teacher and of the student");
  app.add_option("--temperature", flags.temperature, "softens the answers");
  app.add_option("--label_weight", flags.label_weight, "of the labels' loss")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--teacher", flags.teacher, "weights of a trained teacher");
  app.add_option("--project_dir", flags.project_dir);
  app.add_option("--data", flags.data, "the compressed CSV file of digits");
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "distillation: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
