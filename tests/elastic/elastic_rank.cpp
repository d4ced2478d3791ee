// A rank of an elastic group that trains a small model, and writes the loss and
// the samples of all ranks for each step.
//
//   elastic_rank DIRECTORY KIND STEPS GENERATIONS [GENERATION RANK PLACE STEP]...
//
// KIND: "elastic"; "unsaved", which saves no checkpoints; "code", which sets
// options in code to keep states in DIRECTORY/memory; or "plain" for a program
// without run_elastic(). Trains to the end of step STEPS, and until the group
// has reached generation GENERATIONS. In GENERATION, the rank kills itself in
// step STEP, at PLACE: "start" (before it joins), "data", "backward", "saved"
// (like "backward", once all earlier states in memory are complete), "step", or
// "throw", where it throws an exception instead.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <accelerate/accelerate.h>

namespace {

constexpr std::int64_t kSamples = 120;

struct Samples {
  [[nodiscard]] std::int64_t size() const { return kSamples; }
  [[nodiscard]] std::tuple<torch::Tensor, torch::Tensor> get(
      std::int64_t i) const {
    return {torch::arange(4).add(i).mul(0.37).sin(), torch::tensor(i)};
  }
};

struct Death {
  int generation, rank;
  std::string place;
  int step;
};

struct Job {
  std::string directory;
  int steps = 0;
  int generations = 1;
  std::vector<Death> deaths = {};
  /// The directory for states that code sets; empty if it sets none.
  std::string memory = {};
  bool saves = true;
};

bool has_state(const std::filesystem::path& memory, int number) {
  const std::string end = "_state_" + std::to_string(number);
  std::error_code error;
  std::filesystem::directory_iterator entries(memory, error);
  return std::any_of(
      begin(entries), std::filesystem::directory_iterator(), [&](auto& entry) {
        const std::string name = entry.path().filename().string();
        return name.starts_with("generation_1_") && name.ends_with(end);
      });
}

// Waits until the state after this step is complete if a death is to follow: a
// late save would be skipped.
void await_state(
    const Job& job,
    const accelerate::ElasticContext& context,
    int step) {
  const bool is_awaited = context.generation() == 1 &&
      std::any_of(job.deaths.begin(), job.deaths.end(), [](const Death& death) {
                            return death.place == "saved";
                          });
  const int interval = job.memory.empty() ? 3 : 2;
  if (!is_awaited || step % interval != 0) return;
  const std::filesystem::path memory = job.memory.empty()
      ? std::getenv("ACCELERATE_CPP_MEMORY_DIRECTORY")
      : job.memory;
  while (!has_state(memory, step / interval - 1)) std::this_thread::yield();
}

void maybe_die(
    const Job& job,
    const accelerate::ElasticContext* context,
    const std::string& place,
    int step) {
  if (context == nullptr) return;
  for (const Death& death : job.deaths) {
    if (death.generation != context->generation() ||
        death.rank != context->process_index() || death.step != step)
      continue;
    if (death.place == "throw" && place == "step")
      throw std::runtime_error("out of luck");
    if (death.place == place || (death.place == "saved" && place == "backward"))
      ::raise(SIGKILL);
  }
}

// Has one line per step: its number, the loss and the samples.
class Curve {
 public:
  explicit Curve(const std::string& directory) : path_(directory + "/curve") {}

  void add(double loss, const torch::Tensor& samples) {
    loss_ += loss;
    ++num_losses_;
    for (std::int64_t i = 0; i < samples.numel(); ++i)
      samples_ << ' ' << samples[i].item<std::int64_t>();
  }
  void end_step(int step) {
    std::FILE* const file = std::fopen(path_.c_str(), "a");
    std::fprintf(
        file,
        "%d %.17g%s\n",
        step,
        loss_ / num_losses_,
        samples_.str().c_str());
    std::fclose(file);
    std::printf("step %d\n", step);
    std::fflush(stdout);
    loss_ = num_losses_ = 0;
    samples_.str("");
  }

 private:
  std::string path_;
  double loss_ = 0;
  int num_losses_ = 0;
  std::ostringstream samples_;
};

void introduce(
    const accelerate::Accelerator& accelerator,
    const accelerate::ElasticContext* context) {
  const torch::Tensor all = accelerator.gather(
      torch::tensor({static_cast<std::int64_t>(::getpid())}));
  if (!accelerator.is_main_process()) return;
  std::printf("generation %d:", context == nullptr ? 0 : context->generation());
  for (std::int64_t i = 0; i < all.numel(); ++i)
    std::printf(" %lld", static_cast<long long>(all[i].item<std::int64_t>()));
  std::printf("\n");
  std::fflush(stdout);
}

void train(const Job& job, accelerate::ElasticContext* context) {
  maybe_die(job, context, "start", 0);
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  options.journal = false;
  if (context != nullptr)
    options.gradient_accumulation_steps =
        context->gradient_accumulation_steps(2);
  options.project_configuration = {
      .project_dir = job.directory,
      .automatic_checkpoint_naming = job.saves,
      .total_limit = 2};
  const accelerate::Accelerator accelerator(options);
  torch::manual_seed(3);
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      accelerate::DataLoader(Samples(), {.batch_size = 2, .shuffle = true}));
  int step = 0;
  accelerator.register_for_checkpointing("step", step);
  context != nullptr ? context->resume(accelerator) : accelerator.resume();
  introduce(accelerator, context);
  Curve curve(job.directory);
  int steps_here = 0;
  while (true) {
    for (auto& [inputs, numbers] : loader) {
      maybe_die(job, context, "data", step + 1);
      const auto scope = accelerator.accumulate(model);
      const torch::Tensor targets = numbers.to(torch::kFloat).mul(0.1).cos();
      const torch::Tensor loss =
          torch::mse_loss(model(inputs).squeeze(1), targets);
      maybe_die(job, context, "backward", step + 1);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const torch::Tensor losses = accelerator.gather(loss.detach());
      const torch::Tensor samples = accelerator.gather(numbers);
      curve.add(losses.mean().item<double>(), samples);
      if (!accelerator.sync_gradients()) continue;
      ++step;
      ++steps_here;
      if (accelerator.is_main_process()) curve.end_step(step);
      maybe_die(job, context, "step", step);
      if (context != nullptr && context->step_done(accelerator)) {
        std::printf(
            "%s after step %d\n",
            context->preempted() ? "preempted" : "resizing",
            step);
        std::fflush(stdout);
        return;
      }
      if (context != nullptr) await_state(job, *context, step);
      const int generation = context == nullptr ? 1 : context->generation();
      if (step >= job.steps && generation >= job.generations &&
          (job.generations == 1 || steps_here >= 4)) {
        accelerator.finish();
        return;
      }
    }
    if (job.saves) accelerator.save_state();
  }
}

}  // namespace

int main(int argc, char** argv) {
  Job job{
      .directory = argv[1],
      .steps = std::atoi(argv[3]),
      .generations = std::atoi(argv[4])};
  for (int i = 5; i + 3 < argc; i += 4) {
    job.deaths.push_back(
        {std::atoi(argv[i]),
         std::atoi(argv[i + 1]),
         argv[i + 2],
         std::atoi(argv[i + 3])});
  }
  torch::set_num_threads(1);
  try {
    if (std::string(argv[2]) == "plain") {
      const bool is_first =
          std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0";
      if (is_first && std::string(std::getenv("RANK")) == "1" &&
          !job.deaths.empty())
        ::raise(SIGKILL);
      train(job, nullptr);
      return 0;
    }
    accelerate::ElasticOptions options{.global_batch_size = 12};
    job.saves = std::string(argv[2]) != "unsaved";
    if (std::string(argv[2]) == "code") {
      job.memory = job.directory + "/memory";
      options.redundancy = accelerate::Redundancy::neighbour;
      options.redundancy_steps = 2;
      options.memory_dir = job.memory;
    }
    const accelerate::ElasticEnd end = accelerate::run_elastic(
        [&](accelerate::ElasticContext& context) { train(job, &context); },
        options);
    std::printf(
        "%s\n",
        end == accelerate::ElasticEnd::left            ? "left"
            : end == accelerate::ElasticEnd::preempted ? "was preempted"
                                                       : "finished");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
}
