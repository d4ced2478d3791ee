// Trains a small GPT on the bytes of text files, by default the sources and
// documents of this repository.
//
//   accelerate-cpp launch --num_processes 2 build/bin/gpt --text novel.txt
//
// With several processes the model is fully sharded over them. --replicate,
// --shard, --context and --tensor divide the processes differently; their
// product is the number of processes:
//
//   accelerate-cpp launch --num_processes 4 build/bin/gpt --tensor 2 --context 2
//
// With --experts each block's MLP becomes a mixture of that many experts, which
// --expert divides among processes that read different data:
//
//   accelerate-cpp launch --num_processes 4 build/bin/gpt --experts 8 --expert 4
//
// --pipeline gives each process some of the blocks, through which micro-batches
// pass one after the other:
//
//   accelerate-cpp launch --num_processes 4 build/bin/gpt --pipeline 2 --tensor 2
//
// --precision fp8 computes the blocks' linear layers in float8, with the recipe
// that --fp8_recipe names:
//
//   build/bin/gpt --precision fp8 --fp8_recipe delayed
//
// --offload keeps parameters, gradients and optimizer state in host memory
// (cpu), or on a disk, for models that are larger than memory; --memory_limit
// makes the system refuse more memory than it says:
//
//   build/bin/gpt --layers 60 --width 1024 --heads 16
//       --offload nvme:/nvme --memory_limit 2GB
//
// Losses are the same on any number of processes, however they are divided, and
// a run can resume from a checkpoint of another number of processes: --resume
// latest.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <sys/resource.h>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>
#include <accelerate/token_dataset.h>

#include "model.h"
#include "weights.h"

namespace {

namespace fs = std::filesystem;

/// The target of positions that pad a sequence.
constexpr int kIgnored = -100;

struct Flags {
  std::vector<std::string> text;
  GptOptions model;
  std::int64_t steps = 200;
  std::int64_t batch_size = 16;  // over all processes together
  double learning_rate = 3e-3;
  std::string lr_scheduler_type = "constant";
  std::int64_t num_warmup_steps = 0;
  std::uint64_t seed = 1;
  std::string precision;
  std::string fp8_recipe;
  bool fused_linear = true;
  bool fused_optimizers = true;
  bool checkpointing = false;
  /// "cpu", "nvme:DIRECTORY", or empty.
  std::string offload;
  std::string memory_limit;
  std::string project_dir = "gpt_run";
  std::int64_t checkpoint_every = 0;
  std::string resume;
  // Degrees; those not given are the launcher's or else 1, and shards take the
  // remaining processes.
  std::optional<int> replicate, shard, expert, context, tensor, pipeline;
  std::string schedule = "1F1B";
  std::optional<int> micro_batches;
  /// Steps to profile.
  std::int64_t profile = 0;
  /// The peak of one device, in 10^12 operations per second.
  double peak_tflops = 0;
};

/// The given files, and the sources and documents in given directories.
std::vector<std::string> text_files(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& path : given) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const char* const below : {"src", "include", "cli", "docs"}) {
      if (!fs::is_directory(fs::path(path) / below)) continue;
      for (const auto& entry :
           fs::recursive_directory_iterator(fs::path(path) / below)) {
        const std::string kind = entry.path().extension();
        if (kind == ".cpp" || kind == ".h" || kind == ".md")
          files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Number of steps done, saved in checkpoints.
struct Progress {
  std::int64_t steps = 0;
  accelerate::StateDict state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    steps = state.get<std::int64_t>("steps");
  }
};

/// "delayed", "mxfp8", "msamp", or one of torchao's names.
accelerate::FP8Recipe fp8_recipe_of(const std::string& name) {
  using accelerate::TERecipeKwargs;
  if (name == "delayed")
    return TERecipeKwargs{.amax_history_len = 16, .amax_compute_algo = "max"};
  if (name == "mxfp8") return TERecipeKwargs{.use_mxfp8_block_scaling = true};
  if (name == "msamp") return accelerate::MSAMPRecipeKwargs();
  return accelerate::AORecipeKwargs{
      accelerate::Float8LinearConfig::from_recipe_name(name)};
}

accelerate::optim::LRLambda learning_rate_factor(const Flags& flags) {
  using namespace accelerate::optim;
  if (flags.lr_scheduler_type == "constant")
    return constant_with_warmup(flags.num_warmup_steps);
  if (flags.lr_scheduler_type == "linear")
    return linear_with_warmup(flags.num_warmup_steps, flags.steps);
  return cosine_with_warmup(flags.num_warmup_steps, flags.steps);
}

/// The directory that --offload nvme:DIRECTORY names; empty if none.
std::string disk_of(const Flags& flags) {
  constexpr std::string_view kDisk = "nvme:";
  return flags.offload.starts_with(kDisk) ? flags.offload.substr(kDisk.size())
                                          : std::string();
}

void check_offload(const Flags& flags) {
  const bool is_on_disk = !disk_of(flags).empty();
  if (!flags.offload.empty() && flags.offload != "cpu" && !is_on_disk) {
    throw std::runtime_error(
        "--offload must be cpu or nvme:DIRECTORY, but is " + flags.offload);
  }
  if (is_on_disk && flags.pipeline.value_or(1) > 1) {
    throw std::runtime_error(
        "--offload must be cpu, or not be given, with --pipeline, but is " +
        flags.offload);
  }
}

/// Makes the system refuse this process more memory of its own than that.
void limit_memory(const std::string& size) {
  const auto bytes = static_cast<rlim_t>(accelerate::ByteSize(size).bytes());
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0)
    throw std::runtime_error("--memory_limit cannot be set to " + size);
}

accelerate::AcceleratorOptions options_of(const Flags& flags) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir, .automatic_checkpoint_naming = true};
  if (!flags.precision.empty())
    options.mixed_precision = accelerate::parse_precision(flags.precision);
  if (!flags.fp8_recipe.empty())
    options.fp8_recipe = fp8_recipe_of(flags.fp8_recipe);
  options.fused_linear = flags.fused_linear;
  options.fused_optimizers = flags.fused_optimizers;
  accelerate::FullyShardedDataParallelOptions sharding;
  sharding.auto_wrap_policy =
      accelerate::AutoWrapPolicy::transformer_based_wrap;
  sharding.transformer_cls_names_to_wrap = {"Block"};
  // Each block's activations are recomputed in backward.
  sharding.activation_checkpointing = flags.checkpointing;
  if (!flags.offload.empty()) sharding.cpu_offload = true;
  if (const std::string disk = disk_of(flags); !disk.empty())
    sharding.offload_directory = disk;
  // MS-AMP's recipe supports only replicas.
  if (flags.fp8_recipe != "msamp") options.parallel.fully_sharded = sharding;
  options.parallel.replicate = flags.replicate;
  options.parallel.shard = flags.shard;
  options.parallel.expert = flags.expert;
  options.parallel.context = flags.context;
  options.parallel.tensor = flags.tensor;
  options.parallel.pipeline = flags.pipeline;
  options.parallel.parallelize_plan = GptImpl::parallelize_plan(flags.model);
  return options;
}

/// Every rank needs some positions that are not padding.
void require_positions(const Flags& flags, int num_context_ranks) {
  if (num_context_ranks == 1 || flags.model.block_size >= 2 * num_context_ranks)
    return;
  throw std::runtime_error(
      "--block_size is " + std::to_string(flags.model.block_size) +
      ", but --context " + std::to_string(num_context_ranks) +
      " needs at least " + std::to_string(2 * num_context_ranks));
}

/// Measures steps, without the first ones, in which memory and threads warm up.
class Speed {
 public:
  explicit Speed(std::int64_t num_steps)
      : num_ignored_(std::min<std::int64_t>(10, num_steps / 2)) {
    if (num_ignored_ == 0) start_ = Clock::now();
  }

  void note_step() {
    if (++num_steps_ == num_ignored_) start_ = Clock::now();
  }
  [[nodiscard]] double steps_per_second() const {
    const std::chrono::duration<double> seconds = Clock::now() - start_;
    return static_cast<double>(num_steps_ - num_ignored_) / seconds.count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t num_ignored_;
  std::int64_t num_steps_ = 0;
  Clock::time_point start_;
};

/// Operations of a step per token: products of the forward and the backward
/// with each parameter, and attention (Chowdhery et al., PaLM, appendix B).
double operations_per_token(const GptOptions& model, std::int64_t parameters) {
  return 6.0 * static_cast<double>(parameters) +
      12.0 *
      static_cast<double>(model.num_layers * model.width * model.block_size);
}

/// Without memory if it will be on a disk.
Gpt make_gpt(const Flags& flags) {
  const auto make = [&] { return Gpt(flags.model); };
  if (disk_of(flags).empty()) return make();
  // With buffers nothing is allocated at all, not even for a moment.
  return accelerate::init_empty_weights(make, /*include_buffers=*/true);
}

using Tensor = torch::Tensor;
using LossFunction =
    std::function<Tensor(const Tensor& logits, const Tensor& targets)>;

/// The model on this rank: all of it, or a stage.
class Training {
 public:
  Training(const accelerate::Accelerator& accelerator, const Flags& flags)
      : accelerator_(accelerator), gpt_(make_gpt(flags)) {
    for (const Tensor& parameter : gpt_->parameters())
      num_parameters_ += parameter.numel();
    if (accelerator.mesh().degree(accelerate::Axis::pipeline) > 1) {
      pipeline_.emplace(
          accelerator,
          gpt_->layers(),
          accelerate::PipelineOptions{
              .schedule = accelerate::parse_pipeline_schedule(flags.schedule),
              .num_micro_batches = flags.micro_batches});
      prepare_optimizer(pipeline_->parameters(), flags);
    } else {
      prepare_optimizer(gpt_->parameters(), flags);
      model_.emplace(accelerator.prepare(gpt_));
    }
    optimizer_.emplace(accelerator.prepare(*adamw_));
    schedule_.emplace(*adamw_, learning_rate_factor(flags));
    scheduler_.emplace(accelerator.prepare(*schedule_));
  }

  /// Gives a model on a disk the values with which it would begin in memory.
  void load_initial_weights(const Flags& flags) const {
    const fs::path weights = fs::path(flags.project_dir) / "initial_weights";
    if (accelerator_.is_main_process()) {
      torch::manual_seed(flags.seed);
      write_initial_weights(flags.model, weights);
    }
    accelerator_.wait_for_everyone();
    accelerator_.load_model(*model_, weights);
    accelerator_.wait_for_everyone();
    if (accelerator_.is_main_process()) fs::remove_all(weights);
  }

  /// Computes gradients, and returns the loss.
  Tensor backward(
      const Tensor& tokens_BT,
      const Tensor& places_T,
      const Tensor& targets_BT,
      const LossFunction& loss_of) {
    if (pipeline_) {
      const Tensor places_BT = places_T.expand({tokens_BT.size(0), -1});
      return pipeline_
          ->step(std::tuple(tokens_BT, places_BT), targets_BT, loss_of)
          .loss;
    }
    const Tensor loss = loss_of((*model_)(tokens_BT, places_T), targets_BT);
    // The routers' loss; 0 without experts.
    const Tensor routing = accelerate::auxiliary_loss(*gpt_);
    accelerator_.backward(loss + routing);
    return loss.detach();
  }

  void step() {
    if (pipeline_) {
      accelerator_.clip_grad_norm_(pipeline_->model(), 1.0);
    } else {
      accelerator_.clip_grad_norm_(*model_, 1.0);
    }
    optimizer_->step();
    scheduler_->step();
    optimizer_->zero_grad();
  }

  [[nodiscard]] std::int64_t num_parameters() const { return num_parameters_; }
  [[nodiscard]] std::vector<accelerate::ExpertLoad> expert_loads() const {
    return pipeline_ ? pipeline_->model().expert_loads()
                     : model_->expert_loads();
  }

 private:
  void prepare_optimizer(
      const std::vector<Tensor>& parameters,
      const Flags& flags) {
    adamw_.emplace(parameters, torch::optim::AdamWOptions(flags.learning_rate));
  }

  const accelerate::Accelerator& accelerator_;
  Gpt gpt_;
  std::int64_t num_parameters_ = 0;
  std::optional<torch::optim::AdamW> adamw_;
  std::optional<accelerate::Model<GptImpl>> model_;
  std::optional<accelerate::Pipeline> pipeline_;
  std::optional<accelerate::Optimizer> optimizer_;
  std::optional<accelerate::optim::LambdaLR> schedule_;
  std::optional<accelerate::Scheduler> scheduler_;
};

void print_loads(
    const accelerate::Accelerator& accelerator,
    const Training& training) {
  for (const auto& load : training.expert_loads()) {
    if (!accelerator.is_main_process()) break;
    std::printf(
        "%s: the busiest expert has %.2f x the mean load\n",
        load.layer.c_str(),
        load.imbalance());
  }
}

void print_speed(
    const accelerate::Accelerator& accelerator,
    const Flags& flags,
    const Training& training,
    const Speed& speed) {
  if (!accelerator.is_main_process()) return;
  const double tokens = speed.steps_per_second() *
      static_cast<double>(flags.batch_size * flags.model.block_size);
  std::printf(
      "%d process%s, %.0f tokens/s\n",
      accelerator.num_processes(),
      accelerator.num_processes() == 1 ? "" : "es",
      tokens);
  if (flags.peak_tflops == 0) return;
  const double tflops = 1e-12 * tokens *
      operations_per_token(flags.model, training.num_parameters());
  std::printf(
      "%.1f TFLOPS, %.0f%% of the peak\n",
      tflops,
      100 * tflops / (flags.peak_tflops * accelerator.num_processes()));
}

/// Records some steps after those that warm up, and prints where their time
/// went.
class ProfiledSteps {
 public:
  ProfiledSteps(const accelerate::Accelerator& accelerator, const Flags& flags)
      : accelerator_(accelerator) {
    if (flags.profile == 0) return;
    profile_.emplace(accelerator.profile(
        {.schedule_option = accelerate::ProfileSchedule{
             .wait = 3, .warmup = 1, .active = flags.profile, .repeat = 1}}));
  }

  void note_step() {
    if (profile_) profile_->step();
  }
  void print() {
    if (!profile_) return;
    profile_->stop();
    const accelerate::ProfileResults results = profile_->results();
    accelerator_.print(
        accelerate::step_times_table(profile_->gather_step_times()));
    const auto devices = results.device_times();
    if (!devices.empty()) {
      accelerator_.print(accelerate::device_times_table(devices));
      accelerator_.print(
          accelerate::kernel_table(results.kernel_averages(), 30));
    }
    using Order = accelerate::OperatorOrder;
    accelerator_.print(accelerate::operator_table(
        results.key_averages(),
        {.sort_by = devices.empty() ? Order::self_cpu_time_total
                                    : Order::self_device_time_total,
         .row_limit = 30}));
  }

 private:
  const accelerate::Accelerator& accelerator_;
  std::optional<accelerate::Profile> profile_;
};

void train(const Flags& flags) {
  const accelerate::Accelerator accelerator(options_of(flags));
  const accelerate::Mesh& mesh = accelerator.mesh();
  require_positions(flags, mesh.degree(accelerate::Axis::context));
  torch::manual_seed(flags.seed);
  Training training(accelerator, flags);
  const accelerate::TokenDataset text(
      text_files(flags.text),
      {.dtype = torch::kByte, .block_size = flags.model.block_size});
  auto loader = accelerator.prepare(accelerate::DataLoader(
      text,
      {.batch_size = flags.batch_size,
       .shuffle = true,
       .drop_last = true,
       .split_batches = true,
       .data_seed = flags.seed,
       .non_blocking = true,
       .num_workers = 1,
       .pin_memory = true}));
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  const bool begins_on_disk = !disk_of(flags).empty();
  if (flags.resume == "latest") {
    if (!accelerator.resume() && begins_on_disk)
      training.load_initial_weights(flags);
  } else if (!flags.resume.empty()) {
    accelerator.load_state(fs::path(flags.resume));
  } else if (begins_on_disk) {
    training.load_initial_weights(flags);
  }

  Speed speed(flags.steps - progress.steps);
  ProfiledSteps profiled(accelerator, flags);
  while (progress.steps < flags.steps) {
    for (auto& [tokens, targets] : loader) {
      const Tensor places = torch::arange(
          flags.model.block_size, tokens.options().dtype(torch::kLong));
      // Until the end of this step the tensors hold this rank's positions.
      std::optional<accelerate::ContextParallelScope> sequence;
      if (mesh.degree(accelerate::Axis::context) > 1) {
        sequence.emplace(accelerator.maybe_context_parallel(
            {tokens, targets, places},
            {1, 1, 0},
            {},
            {.pad_values = {0, kIgnored, 0}}));
      }
      const Tensor loss = training.backward(
          tokens,
          places,
          targets,
          [&](const Tensor& logits, const Tensor& own_targets) {
            const Tensor mean = accelerate::parallel_cross_entropy(
                logits,
                own_targets,
                mesh.group(accelerate::Axis::tensor),
                kIgnored);
            if (!sequence) return mean;
            const Tensor count = own_targets.ne(kIgnored).sum();
            return sequence->mean(mean * count, count);
          });
      training.step();
      ++progress.steps;
      const Tensor mean = accelerator.gather(loss.view({1})).mean();
      if (accelerator.is_main_process()) {
        std::printf(
            "step %lld loss %.4f\n",
            static_cast<long long>(progress.steps),
            mean.item<double>());
      }
      speed.note_step();
      profiled.note_step();
      if (flags.checkpoint_every > 0 &&
          progress.steps % flags.checkpoint_every == 0)
        accelerator.save_state();
      if (progress.steps >= flags.steps) break;
    }
  }
  print_speed(accelerator, flags, training, speed);
  print_loads(accelerator, training);
  profiled.print();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Trains a small GPT on the bytes of text files.");
  app.add_option("--text", flags.text, "files, or a source tree");
  app.add_option("--steps", flags.steps);
  app.add_option(
      "--batch_size",
      flags.batch_size,
      "samples per step of all processes together");
  app.add_option("--block_size", flags.model.block_size, "bytes per sample");
  app.add_option("--layers", flags.model.num_layers);
  app.add_option("--heads", flags.model.num_heads);
  app.add_option("--width", flags.model.width);
  app.add_option("--learning_rate", flags.learning_rate);
  app.add_option(
         "--lr_scheduler_type",
         flags.lr_scheduler_type,
         "constant, or linear or cosine, which fall to 0 at --steps")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option(
      "--num_warmup_steps",
      flags.num_warmup_steps,
      "steps in which the learning rate rises from 0");
  app.add_option("--seed", flags.seed);
  app.add_option("--precision", flags.precision, "no, bf16, fp16 or fp8");
  app.add_option(
      "--fp8_recipe",
      flags.fp8_recipe,
      "tensorwise, rowwise, rowwise_with_gw_hp, delayed, mxfp8 or msamp");
  app.add_flag(
      "!--no_fused_linear",
      flags.fused_linear,
      "add biases after the products of linear layers, as LibTorch does");
  app.add_flag(
      "!--no_fused_optimizers",
      flags.fused_optimizers,
      "step with LibTorch's own operators");
  app.add_flag(
      "--checkpointing",
      flags.checkpointing,
      "recompute activations in the backward pass");
  app.add_option(
      "--offload",
      flags.offload,
      "keep parameters, gradients and optimizer state in host memory (cpu), or "
      "on a disk (nvme:DIRECTORY)");
  app.add_option(
      "--memory_limit,--memory-limit",
      flags.memory_limit,
      "most memory of each process: 2GB, 512MiB");
  app.add_option("--project_dir", flags.project_dir);
  app.add_option(
      "--checkpoint_every",
      flags.checkpoint_every,
      "steps between checkpoints");
  app.add_option(
      "--resume", flags.resume, "latest, or a checkpoint's directory");
  app.add_option("--replicate", flags.replicate, "replicas of the model");
  app.add_option("--shard", flags.shard, "processes that share its state");
  app.add_option("--experts", flags.model.num_experts, "experts of each block");
  app.add_option("--expert", flags.expert, "... the experts");
  app.add_option("--context", flags.context, "... each sequence");
  app.add_option("--tensor", flags.tensor, "... each layer");
  app.add_option(
      "--pipeline", flags.pipeline, "... the blocks, one after the other");
  app.add_option("--schedule", flags.schedule, "of the pipeline");
  app.add_option(
      "--micro_batches",
      flags.micro_batches,
      "of the pipeline's steps; one per stage if not given");
  app.add_option(
         "--profile",
         flags.profile,
         "number of steps, from the fifth on, to print where their time goes")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--peak_tflops",
         flags.peak_tflops,
         "of one device, to print the share that is used (without --experts)")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (flags.model.num_experts > 0) flags.peak_tflops = 0;
  if (flags.text.empty()) flags.text = {GPT_TEXT};
  try {
    check_offload(flags);
    if (!flags.memory_limit.empty()) limit_memory(flags.memory_limit);
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
