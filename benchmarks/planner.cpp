// Compares the layout that plan_layout chooses with the fastest measured
// one, for six small transformers on 2, 4 and 8 CPU ranks. PLANNER_MODELS and
// PLANNER_RANKS (comma-separated) select some of them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using at::Tensor;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSamples = 16;
constexpr int kRounds = 4;
// Length of a round of one layout.
constexpr double kSeconds = 0.25;
constexpr int kLeastSteps = 2;
/// Number of layouts of the plan that are measured, best first.
constexpr std::size_t kPlanned = 4;

struct Workload {
  std::string name;
  TransformerShape shape;
  std::int64_t sequence_length = 64;
};

std::vector<Workload> workloads() {
  return {
      {"plain",
       {.num_layers = 4,
        .hidden_size = 256,
        .num_heads = 8,
        .vocabulary = 512}},
      {"deep",
       {.num_layers = 12,
        .hidden_size = 128,
        .num_heads = 8,
        .vocabulary = 256}},
      {"vocabulary",
       {.num_layers = 2,
        .hidden_size = 192,
        .num_heads = 8,
        .vocabulary = 8192}},
      {"long",
       {.num_layers = 2, .hidden_size = 128, .num_heads = 8, .vocabulary = 256},
       512},
      {"experts",
       {.num_layers = 4,
        .hidden_size = 128,
        .num_heads = 8,
        .vocabulary = 256,
        .is_gated = true,
        .num_experts = 8,
        .top_k = 2,
        .expert_intermediate_size = 256}},
      {"wide",
       {.num_layers = 2,
        .hidden_size = 640,
        .num_heads = 8,
        .vocabulary = 512}}};
}

struct BlockImpl : nn::Module {
  explicit BlockImpl(const TransformerShape& shape)
      : head_size(shape.hidden_size / shape.num_heads) {
    const std::int64_t width = shape.hidden_size;
    norm1 =
        register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    norm2 =
        register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    for (auto [name, layer] :
         {std::pair("q", &q), {"k", &k}, {"v", &v}, {"out", &out}})
      *layer = register_module(name, nn::Linear(width, width));
    if (shape.num_experts == 0) {
      mlp = register_module(
          "mlp",
          nn::Sequential(
              nn::Linear(width, 4 * width),
              nn::GELU(),
              nn::Linear(4 * width, width)));
      return;
    }
    experts = register_module(
        "experts",
        ExpertLayer(ExpertLayerOptions{
            .hidden_size = width,
            .num_experts = shape.num_experts,
            .router = {.top_k = shape.top_k},
            .mlp = ExpertMlpOptions{
                .intermediate_size = shape.expert_intermediate_size}}));
  }

  Tensor forward(const Tensor& x) {
    const Tensor normed = norm1(x);
    const auto heads = [&](nn::Linear& layer) {
      return layer(normed)
          .view({x.size(0), x.size(1), -1, head_size})
          .transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(q), heads(k), heads(v), {}, /*dropout_p=*/0, /*is_causal=*/true);
    const Tensor y =
        x + out(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}));
    return y + (mlp ? mlp->forward(norm2(y)) : experts(norm2(y)));
  }

  std::int64_t head_size;
  nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  nn::Linear q = nullptr, k = nullptr, v = nullptr, out = nullptr;
  nn::Sequential mlp = nullptr;
  ExpertLayer experts = nullptr;
};
TORCH_MODULE(Block);

struct TransformerImpl : nn::Module {
  explicit TransformerImpl(const TransformerShape& shape) {
    tokens = register_module(
        "tokens", nn::Embedding(shape.vocabulary, shape.hidden_size));
    for (std::int64_t i = 0; i < shape.num_layers; ++i)
      blocks->push_back(Block(shape));
    register_module("blocks", blocks);
    head = register_module(
        "head", nn::Linear(shape.hidden_size, shape.vocabulary));
  }
  Tensor forward(const Tensor& words) {
    Tensor x = tokens(words);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  [[nodiscard]] PipelineLayers layers() const {
    PipelineLayers layers;
    layers.add("tokens", tokens)
        .add_each<BlockImpl>("blocks", *blocks)
        .add("head", head);
    return layers;
  }
  nn::Embedding tokens = nullptr;
  nn::ModuleList blocks;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Transformer);

ParallelizePlan split_of(const TransformerShape& shape) {
  ParallelizePlan plan{{"tokens", RowwiseParallel{}}};
  for (const char* const layer : {"q", "k", "v"})
    plan.emplace_back(std::string("blocks.*.") + layer, ColwiseParallel{});
  plan.emplace_back("blocks.*.out", RowwiseParallel{});
  plan.emplace_back("head", ColwiseParallel{});
  if (shape.num_experts > 0) return plan;
  plan.emplace_back("blocks.*.mlp.0", ColwiseParallel{});
  plan.emplace_back("blocks.*.mlp.2", RowwiseParallel{});
  return plan;
}

AcceleratorOptions options_of(
    const TransformerShape& shape,
    const TrainingLayout& layout) {
  AcceleratorOptions options;
  // All layouts keep freed memory alike (keep_freed_memory): otherwise a
  // process that has trained a sharded model would allocate differently ever
  // after.
  options.keep_freed_blocks = false;
  if (layout.pipeline == 1) {
    options.gradient_accumulation_steps =
        static_cast<int>(layout.num_micro_batches);
  }
  ParallelOptions& parallel = options.parallel;
  parallel.replicate = layout.replicate;
  parallel.shard = layout.shard;
  parallel.expert = layout.expert;
  parallel.context = layout.context;
  parallel.tensor = layout.tensor;
  parallel.pipeline = layout.pipeline;
  if (layout.tensor > 1) parallel.parallelize_plan = split_of(shape);
  if (layout.sharding == LayoutSharding::parameters) {
    FullyShardedDataParallelOptions sharding;
    sharding.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
    sharding.transformer_cls_names_to_wrap = {"Block"};
    parallel.fully_sharded = sharding;
  } else if (layout.sharding != LayoutSharding::none) {
    parallel.deepspeed = DeepSpeedOptions{
        .gradient_clipping = 0,
        .zero_stage = static_cast<int>(layout.sharding)};
  }
  if (layout.recomputes) {
    parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap = {"Block"}};
  }
  return options;
}

/// The mean cross entropy; ranks along `tensor` never gather the logits.
auto loss_along(const Accelerator& accelerator) {
  return [&accelerator](const Tensor& logits, const Tensor& targets) {
    const Tensor rows = logits.flatten(0, 1), classes = targets.flatten();
    const Group& group = accelerator.mesh().group(Axis::tensor);
    return group.size() == 1 ? nn::functional::cross_entropy(rows, classes)
                             : parallel_cross_entropy(rows, classes, group);
  };
}

/// Runs steps of one layout on this rank.
class Training {
 public:
  Training(const Workload& workload, const TrainingLayout& layout)
      : layout_(layout),
        length_(workload.sequence_length),
        vocabulary_(workload.shape.vocabulary),
        accelerator_(options_of(workload.shape, layout)),
        net_(workload.shape) {
    if (layout.pipeline > 1) {
      pipeline_.emplace(
          accelerator_,
          net_->layers(),
          PipelineOptions{
              .schedule = layout.schedule,
              .num_chunks = layout.num_chunks,
              .num_micro_batches = static_cast<int>(layout.num_micro_batches)});
      adamw_ = std::make_unique<torch::optim::AdamW>(
          pipeline_->parameters(), torch::optim::AdamWOptions(1e-3));
      optimizer_.emplace(accelerator_.prepare(*adamw_));
      return;
    }
    adamw_ = std::make_unique<torch::optim::AdamW>(
        net_->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator_.prepare(net_, *adamw_);
    model_.emplace(std::move(model));
    optimizer_.emplace(std::move(optimizer));
  }

  void step() {
    if (pipeline_) {
      optimizer_->zero_grad();
      const Tensor words =
          random_words(layout_.micro_batch * layout_.num_micro_batches);
      pipeline_->step(words, words, loss_along(accelerator_));
      optimizer_->step();
      return;
    }
    for (std::int64_t i = 0; i < layout_.num_micro_batches; ++i) {
      const auto micro_step = accelerator_.accumulate(*model_);
      const Tensor words = random_words(layout_.micro_batch);
      std::optional<ContextParallelScope> sequence;
      if (layout_.context > 1) {
        sequence.emplace(
            accelerator_.maybe_context_parallel({words}, {1}, {}, {}));
      }
      accelerator_.backward(loss_along(accelerator_)((*model_)(words), words));
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }

 private:
  [[nodiscard]] Tensor random_words(std::int64_t samples) const {
    return torch::randint(vocabulary_, {samples, length_}, torch::kLong);
  }

  TrainingLayout layout_;
  std::int64_t length_;
  std::int64_t vocabulary_;
  Accelerator accelerator_;
  Transformer net_;
  std::unique_ptr<torch::optim::AdamW> adamw_;
  std::optional<Model<TransformerImpl>> model_;
  std::optional<Pipeline> pipeline_;
  std::optional<Optimizer> optimizer_;
};

/// Appends the seconds of steps; all ranks take the same number of steps.
void measure(
    const Workload& workload,
    const TrainingLayout& layout,
    std::vector<double>& times) {
  Training training(workload, layout);
  const World& world = training.accelerator().world();
  const auto timed = [&] {
    world.wait_for_everyone();
    const auto begin = Clock::now();
    training.step();
    world.wait_for_everyone();
    const Tensor seconds = torch::full(
        {},
        std::chrono::duration<double>(Clock::now() - begin).count(),
        torch::kDouble);
    world.group().all_reduce(seconds, ReduceOp::max);
    return seconds.item<double>();
  };
  timed();
  double sum = 0;
  for (int i = 0; i < kLeastSteps || sum < kSeconds; ++i) {
    times.push_back(timed());
    sum += times.back();
  }
}

LayoutPlanOptions plan_options(const Workload& workload) {
  return {
      .sequence_length = workload.sequence_length,
      .batch_tokens = kSamples * workload.sequence_length,
      .precision = FloatType::fp32};
}

/// One layout of every kind, and the best ones of the plan.
std::vector<TrainingLayout> layouts_of(
    const Workload& workload,
    const LayoutPlan& plan,
    const LayoutPlanOptions& options) {
  const int n = options.num_ranks;
  std::vector<TrainingLayout> found;
  const auto add = [&](TrainingLayout layout) {
    const int data = layout.replicate * layout.shard;
    const std::int64_t own = kSamples / data;
    layout.num_micro_batches = layout.pipeline > 1
        ? std::min<std::int64_t>(own, 2 * layout.pipeline)
        : 1;
    layout.micro_batch = own / layout.num_micro_batches;
    if (std::find(found.begin(), found.end(), layout) != found.end()) return;
    try {
      simulate_layout(workload.shape, layout, options);
      found.push_back(layout);
    } catch (const ConfigError&) {
      // The layout does not divide this model.
    }
  };
  using Sharding = LayoutSharding;
  add({.replicate = n});
  for (const Sharding sharding :
       {Sharding::optimizer, Sharding::gradients, Sharding::parameters})
    add({.shard = n, .sharding = sharding});
  add({.tensor = n});
  add({.context = n});
  add({.pipeline = n});
  add({.pipeline = n, .schedule = PipelineScheduleKind::zero_bubble});
  if (n > 2) {
    add({.replicate = n / 2, .tensor = 2});
    add({.replicate = n / 2, .context = 2});
    add({.replicate = n / 2, .pipeline = 2});
    add({.tensor = 2, .pipeline = n / 2});
  }
  if (workload.shape.num_experts > 0) {
    add({.replicate = n, .expert = n});
    add({.replicate = n, .expert = 2});
    add({.shard = n, .expert = n, .sharding = Sharding::optimizer});
  }
  for (const PlannedLayout& planned : plan.layouts()) {
    if (found.size() > 16) break;
    const auto place = static_cast<std::size_t>(&planned - &plan.layouts()[0]);
    if (place == kPlanned) break;
    if (std::find(found.begin(), found.end(), planned.layout) == found.end())
      found.push_back(planned.layout);
  }
  return found;
}

/// The file that a launch leaves for this process, with one line per layout:
/// whether it was chosen, seconds measured, seconds predicted, its description.
std::string file_of(const std::string& name) {
  return "/tmp/planner_" + std::to_string(getuid()) + "_" + name;
}

void run_workload(const Workload& workload, const std::string& file) {
  benchmarks::keep_freed_memory();
  std::optional<LayoutPlan> plan;
  LayoutPlanOptions options = plan_options(workload);
  bool writes = false;
  {
    const Accelerator accelerator;
    writes = accelerator.is_main_process();
    options.num_ranks = accelerator.num_processes();
    options.cluster = accelerate::measure_cluster(
        accelerator.world(),
        workload.shape,
        workload.sequence_length,
        options.batch_tokens);
    plan =
        accelerate::plan_layout(accelerator.world(), workload.shape, options);
  }
  const std::vector<TrainingLayout> layouts =
      layouts_of(workload, *plan, options);
  std::vector<std::vector<double>> times(layouts.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      // Alternates the order, so that a trend favors no layout.
      const std::size_t place = round % 2 == 0 ? i : layouts.size() - 1 - i;
      measure(workload, layouts[place], times[place]);
    }
  }
  if (!writes) return;
  std::ofstream out(file);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    out << (layouts[i] == plan->best().layout) << ' '
        << benchmarks::median(times[i]) << ' '
        << simulate_layout(workload.shape, layouts[i], options)
               .times.step_seconds
        << ' ' << layouts[i].describe() << '\n';
  }
}

struct Measured {
  bool is_chosen = false;
  double seconds = 0;
  double predicted = 0;
  std::string layout;
};

std::vector<Measured> read_file(const std::string& file) {
  std::vector<Measured> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Measured measured;
    words >> measured.is_chosen >> measured.seconds >> measured.predicted;
    std::getline(words >> std::ws, measured.layout);
    found.push_back(measured);
  }
  std::remove(file.c_str());
  return found;
}

bool is_wanted(const char* variable, const std::string& word) {
  const char* const given = std::getenv(variable);
  if (given == nullptr) return true;
  return ("," + std::string(given) + ",").find("," + word + ",") !=
      std::string::npos;
}

// Prints one line per layout.
void print_table(const std::string& name, std::vector<Measured> all) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.seconds < b.seconds;
  });
  std::fprintf(stderr, "%s\n", name.c_str());
  for (const Measured& each : all) {
    std::fprintf(
        stderr,
        "  %s %8.1f ms, predicted %8.1f ms  %s\n",
        each.is_chosen ? "*" : " ",
        1e3 * each.seconds,
        1e3 * each.predicted,
        each.layout.c_str());
  }
}

}  // namespace

int main() {
  std::vector<double> ratios, errors;
  for (const Workload& workload : workloads()) {
    for (const int ranks : {2, 4, 8}) {
      if (!is_wanted("PLANNER_MODELS", workload.name) ||
          !is_wanted("PLANNER_RANKS", std::to_string(ranks)))
        continue;
      const std::string name = workload.name + "_" + std::to_string(ranks);
      launch_function(
          [&] { run_workload(workload, file_of(name)); },
          {.num_processes = ranks, .name = name, .cpu = true});
      // Ranks run this program too, but do not report.
      const std::vector<Measured> all = read_file(file_of(name));
      if (all.empty()) continue;
      const auto faster = [](const Measured& a, const Measured& b) {
        return a.seconds < b.seconds;
      };
      const double best =
          std::min_element(all.begin(), all.end(), faster)->seconds;
      const auto chosen =
          std::find_if(all.begin(), all.end(), [](const auto& each) {
            return each.is_chosen;
          });
      for (const Measured& each : all)
        errors.push_back(std::abs(each.predicted / each.seconds - 1));
      ratios.push_back(chosen->seconds / best);
      benchmarks::report(
          {"planner",
           name + "_chosen_over_best",
           chosen->seconds * 1e3,
           "ms",
           best * 1e3,
           ratios.back(),
           all.size()});
      print_table(name, all);
    }
  }
  if (ratios.empty()) return 0;
  benchmarks::report(
      {"planner",
       "worst_chosen_over_best",
       *std::max_element(ratios.begin(), ratios.end()),
       "x",
       1.1,
       *std::max_element(ratios.begin(), ratios.end()) / 1.1,
       ratios.size()});
  benchmarks::report(
      {"planner",
       "median_error_of_steps",
       benchmarks::median(errors),
       "",
       0.1,
       benchmarks::median(errors) / 0.1,
       errors.size()});
}
