// Fine-tunes a causal model of Hugging Face.
//
// Once, in Python: examples/finetune/export.py writes model.pt2, the program,
// into the model's directory, beside its config.json and safetensors
// (make_model.py makes one with random weights, to try this out):
//
//   python examples/finetune/export.py llama
//
// Then, on any number of processes, over which the model is fully sharded:
//
//   accelerate-cpp launch --num_processes 2 build/bin/finetune --model llama
//       --train novel.txt --evaluate other.txt --output tuned
//
// Files hold tokens as a tokenizer wrote them, in the integers that --dtype
// names; for models of bytes a text is such a file. Losses are the same on any
// number of processes, and a run resumes on another number: --resume.
// AutoModelForCausalLM.from_pretrained() reads what --output names, and so does
// --model; evaluate.py prints the same loss in Python.
//
// --lora 16 trains adapters of this rank instead of the model; --output then
// gets the adapter alone, which PEFT reads:
// PeftModel.from_pretrained(model, "tuned").
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/adapters.h>
#include <accelerate/exported_model.h>
#include <accelerate/metrics.h>
#include <accelerate/token_dataset.h>

namespace {

namespace fs = std::filesystem;
using accelerate::ExportedModel;
using accelerate::ExportedModelImpl;
using torch::Tensor;

struct Flags {
  fs::path model;
  std::vector<std::string> train, evaluate;
  std::string dtype = "uint8";
  std::int64_t block_size = 128;
  std::int64_t batch_size = 16;  // over all processes together
  std::int64_t steps = 200;
  double learning_rate = 1e-4;
  std::int64_t num_warmup_steps = 0;
  std::uint64_t seed = 1;
  std::string precision;
  bool checkpointing = false;
  std::int64_t lora = 0;
  double lora_alpha = 32;
  std::vector<std::string> lora_modules{"q_proj", "v_proj"};
  std::string project_dir = "finetune_run";
  std::int64_t checkpoint_every = 0;
  bool resume = false;
  fs::path output;
};

/// Number of steps done, saved in checkpoints.
struct Progress {
  std::int64_t steps = 0;
  accelerate::StateDict state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    steps = state.get<std::int64_t>("steps");
  }
};

/// The class of the model's layers: "LlamaDecoderLayer".
std::string layer_class(const ExportedModel& net) {
  for (const auto& module : net->modules()) {
    if (module->name() == "ModuleList" && !module->children().empty())
      return module->children().front()->name();
  }
  throw std::runtime_error("the model has no list of layers");
}

accelerate::AcceleratorOptions options_of(
    const Flags& flags,
    const ExportedModel& net) {
  accelerate::AcceleratorOptions options;
  options.project_configuration = {
      .project_dir = flags.project_dir,
      .automatic_checkpoint_naming = true,
      .total_limit = 2};
  if (!flags.precision.empty())
    options.mixed_precision = accelerate::parse_precision(flags.precision);
  accelerate::FullyShardedDataParallelOptions sharding;
  sharding.auto_wrap_policy =
      accelerate::AutoWrapPolicy::transformer_based_wrap;
  sharding.transformer_cls_names_to_wrap = {layer_class(net)};
  // Each layer's activations are recomputed in backward.
  sharding.activation_checkpointing = flags.checkpointing;
  options.parallel.fully_sharded = sharding;
  return options;
}

accelerate::TokenDataset tokens_of(
    const std::vector<std::string>& files,
    const Flags& flags) {
  static const std::map<std::string, torch::ScalarType> dtypes{
      {"uint8", torch::kByte},
      {"uint16", torch::kUInt16},
      {"uint32", torch::kUInt32},
      {"int64", torch::kLong}};
  return accelerate::TokenDataset(
      files, {.dtype = dtypes.at(flags.dtype), .block_size = flags.block_size});
}

/// The mean loss over all tokens of the loader.
template <class Loader>
double evaluate(
    const accelerate::Accelerator& accelerator,
    const accelerate::Model<ExportedModelImpl>& model,
    Loader& loader) {
  const torch::NoGradGuard no_grad;
  model.eval();
  accelerate::Mean mean(accelerator);
  for (auto& [tokens, targets] : loader) {
    const Tensor logits = model(tokens, tokens)["logits"];
    mean.update(torch::cross_entropy_loss(
        logits.to(torch::kFloat).transpose(1, 2),
        targets,
        /*weight=*/{},
        at::Reduction::None));
  }
  model.train();
  const double loss = mean.compute();
  if (accelerator.is_main_process())
    std::printf("evaluation: loss %.4f\n", loss);
  return loss;
}

std::vector<Tensor> trained_parameters(const ExportedModel& net) {
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : net->parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

/// Writes the weights under Python's names, and the other files of the model's
/// directory beside them, so that Python reads it as it read the first one.
void save(
    const accelerate::Accelerator& accelerator,
    const accelerate::Model<ExportedModelImpl>& model,
    const Flags& flags) {
  if (flags.lora > 0) {
    const auto weights = accelerator.get_state_dict(model);
    if (accelerator.is_main_process()) {
      accelerate::save_adapters(
          model.module(), flags.output, "default", weights);
    }
    return;
  }
  accelerator.save_model(model, flags.output);
  if (!accelerator.is_main_process()) return;
  for (const auto& entry : fs::directory_iterator(flags.model)) {
    const std::string name = entry.path().filename();
    if (name.find(".safetensors") == std::string::npos)
      fs::copy(
          entry.path(),
          flags.output / name,
          fs::copy_options::overwrite_existing);
  }
}

void finetune(const Flags& flags) {
  torch::manual_seed(flags.seed);
  // Without weights: each process reads its shards of them below.
  ExportedModel net =
      accelerate::load_exported(flags.model / "model.pt2", {.weights = false});
  if (flags.lora > 0) {
    accelerate::add_adapters(
        net,
        {.rank = flags.lora,
         .alpha = flags.lora_alpha,
         .target_modules = flags.lora_modules,
         .task_type = "CAUSAL_LM",
         .base_model_name_or_path = flags.model.string()});
  }
  const accelerate::Accelerator accelerator(options_of(flags, net));
  torch::optim::AdamW adamw(
      trained_parameters(net), torch::optim::AdamWOptions(flags.learning_rate));
  accelerate::optim::LambdaLR schedule(
      adamw,
      accelerate::optim::cosine_with_warmup(
          flags.num_warmup_steps, flags.steps));
  auto [model, optimizer, scheduler, loader, evaluation] = accelerator.prepare(
      net,
      adamw,
      schedule,
      accelerate::DataLoader(
          tokens_of(flags.train, flags),
          {.batch_size = flags.batch_size,
           .shuffle = true,
           .drop_last = true,
           .split_batches = true,
           .data_seed = flags.seed,
           .num_workers = 1}),
      accelerate::DataLoader(
          tokens_of(
              flags.evaluate.empty() ? flags.train : flags.evaluate, flags),
          {.batch_size = flags.batch_size, .split_batches = true}));
  accelerator.load_model(model, flags.model, {.allow_missing = {"*.lora_*"}});
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  if (flags.resume) accelerator.resume();
  evaluate(accelerator, model, evaluation);
  while (progress.steps < flags.steps) {
    for (auto& [tokens, targets] : loader) {
      // The model itself shifts the labels.
      const Tensor loss = model(tokens, tokens)["loss"];
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      ++progress.steps;
      const Tensor mean =
          accelerator.reduce(loss.detach(), accelerate::ReduceOp::mean);
      if (accelerator.is_main_process()) {
        std::printf(
            "step %lld loss %.4f\n",
            static_cast<long long>(progress.steps),
            mean.item<double>());
      }
      if (flags.checkpoint_every > 0 &&
          progress.steps % flags.checkpoint_every == 0)
        accelerator.save_state({.asynchronous = true});
      if (progress.steps >= flags.steps) break;
    }
  }
  evaluate(accelerator, model, evaluation);
  if (!flags.output.empty()) save(accelerator, model, flags);
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Fine-tunes a causal model of Hugging Face.");
  app.add_option(
         "--model",
         flags.model,
         "directory with config.json, safetensors and export.py's model.pt2")
      ->required();
  app.add_option("--train", flags.train, "files of tokens")->required();
  app.add_option(
      "--evaluate", flags.evaluate, "files of tokens; --train if not given");
  app.add_option("--dtype", flags.dtype, "of the tokens in files")
      ->check(CLI::IsMember({"uint8", "uint16", "uint32", "int64"}));
  app.add_option("--block_size", flags.block_size, "tokens per sample");
  app.add_option(
      "--batch_size",
      flags.batch_size,
      "samples per step of all processes together");
  app.add_option("--steps", flags.steps);
  app.add_option("--learning_rate", flags.learning_rate);
  app.add_option(
      "--num_warmup_steps",
      flags.num_warmup_steps,
      "steps in which the learning rate rises from 0; it falls to 0 at "
      "--steps");
  app.add_option("--seed", flags.seed, "of the order of samples, and dropout");
  app.add_option(
      "--precision",
      flags.precision,
      "no, bf16 or fp16: the one for which the model was exported");
  app.add_flag(
      "--checkpointing",
      flags.checkpointing,
      "recompute activations in the backward pass");
  app.add_option("--lora", flags.lora, "rank of adapters to train instead");
  app.add_option("--lora_alpha", flags.lora_alpha, "their scale, times rank");
  app.add_option(
      "--lora_modules",
      flags.lora_modules,
      "names of the layers with adapters");
  app.add_option("--project_dir", flags.project_dir, "for checkpoints");
  app.add_option(
      "--checkpoint_every",
      flags.checkpoint_every,
      "steps between checkpoints");
  app.add_flag("--resume", flags.resume, "continue from the newest checkpoint");
  app.add_option(
      "--output", flags.output, "directory for the weights, for Python");
  CLI11_PARSE(app, argc, argv);
  try {
    finetune(flags);
  } catch (const std::exception& error) {
    std::cerr << "finetune: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
