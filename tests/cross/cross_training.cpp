// Trains small networks for a few epochs, from checkpoints if they are given,
// and saves checkpoints that Python's Accelerate reads. Prints the losses,
// averaged over the ranks. cross_training.py does the same in Python.
//
//   cross_training JOBS
//
// JOBS is a file with one training per line:
//
//   NUMBER CASE EPOCHS SAVE_TO [LOAD_FROM]
//
// A case is an optimizer and its special features, joined by "+", as in
// "AdamW+OneCycleLR+bf16". The losses of job 3 are printed as "3 0.123456789".
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

namespace {

using namespace accelerate;

constexpr std::int64_t kNumSamples = 26;
constexpr std::uint64_t kSeed = 7;

struct Case {
  std::string optimizer;
  std::set<std::string> words;

  explicit Case(const std::string& text) {
    std::istringstream stream(text);
    std::getline(stream, optimizer, '+');
    for (std::string word; std::getline(stream, word, '+');) words.insert(word);
  }
  [[nodiscard]] bool has(const std::string& word) const {
    return words.contains(word);
  }
};

// Numbers that both languages compute alike.
at::Tensor wave(std::int64_t count, double step) {
  return torch::sin(torch::arange(count, torch::kDouble) * step)
      .to(torch::kFloat);
}

torch::nn::Sequential make_net(const Case& training) {
  torch::nn::Sequential net;
  // The gradient of a bias before a BatchNorm is only rounding error, which
  // Adam would turn into steps.
  net->push_back(torch::nn::Linear(
      torch::nn::LinearOptions(4, 8).bias(!training.has("dropout"))));
  if (training.has("dropout")) net->push_back(torch::nn::BatchNorm1d(8));
  net->push_back(torch::nn::Tanh());
  if (training.has("dropout")) net->push_back(torch::nn::Dropout(0.25));
  net->push_back(torch::nn::Linear(8, 1));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.copy_(wave(parameter.numel(), 0.7).view(parameter.sizes()) / 2);
  }
  return net;
}

// With "groups" each parameter after the second is in a second group, with half
// the learning rate.
template <class Made, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer_of(
    const Case& training,
    const std::vector<at::Tensor>& parameters,
    Options options) {
  if (!training.has("groups")) {
    return std::make_unique<Made>(parameters, options);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2),
      std::make_unique<Options>(options));
  options.lr(options.lr() / 2);
  groups.emplace_back(
      std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()),
      std::make_unique<Options>(options));
  return std::make_unique<Made>(std::move(groups), options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Case& training,
    const std::vector<at::Tensor>& parameters) {
  if (training.optimizer == "AdamW") {
    return make_optimizer_of<optim::AdamW>(
        training, parameters, torch::optim::AdamWOptions(0.02));
  }
  if (training.optimizer == "Adam") {
    return make_optimizer_of<torch::optim::Adam>(
        training, parameters, torch::optim::AdamOptions(0.02).amsgrad(true));
  }
  if (training.optimizer == "SGD") {
    return make_optimizer_of<torch::optim::SGD>(
        training, parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  if (training.optimizer == "Adagrad") {
    return make_optimizer_of<torch::optim::Adagrad>(
        training, parameters, torch::optim::AdagradOptions(0.05));
  }
  if (training.optimizer == "RMSprop") {
    return make_optimizer_of<torch::optim::RMSprop>(
        training,
        parameters,
        torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  }
  throw ConfigError("there is no optimizer " + training.optimizer);
}

using Schedule = std::unique_ptr<optim::LRScheduler>;
using MakeSchedule = std::function<Schedule(torch::optim::Optimizer&)>;

template <class T, class... Arguments>
MakeSchedule schedule(Arguments... arguments) {
  return [=](torch::optim::Optimizer& optimizer) {
    return std::make_unique<T>(optimizer, arguments...);
  };
}

const std::map<std::string, MakeSchedule>& schedules() {
  using namespace optim;
  static const std::map<std::string, MakeSchedule> made{
      {"LambdaLR", schedule<LambdaLR>(LRLambda([](std::int64_t step) {
         return 1 / (1 + 0.1 * double(step));
       }))},
      {"MultiplicativeLR",
       schedule<MultiplicativeLR>(LRLambda([](std::int64_t) { return 0.97; }))},
      {"StepLR", schedule<StepLR>(StepLROptions{10, 0.8})},
      {"MultiStepLR", schedule<MultiStepLR>(MultiStepLROptions{{5, 20}, 0.5})},
      {"ConstantLR", schedule<ConstantLR>(ConstantLROptions{0.5, 20})},
      {"LinearLR", schedule<LinearLR>(LinearLROptions{0.2, 1.0, 30})},
      {"ExponentialLR", schedule<ExponentialLR>(0.98)},
      {"PolynomialLR", schedule<PolynomialLR>(PolynomialLROptions{40, 2.0})},
      {"CosineAnnealingLR",
       schedule<CosineAnnealingLR>(CosineAnnealingLROptions{20, 0.001})},
      {"CosineAnnealingWarmRestarts",
       schedule<CosineAnnealingWarmRestarts>(
           CosineAnnealingWarmRestartsOptions{7, 2, 0.001})},
      {"OneCycleLR",
       schedule<OneCycleLR>(
           OneCycleLROptions{.max_lr = {0.05}, .total_steps = 80})},
      {"CyclicLR",
       schedule<CyclicLR>(CyclicLROptions{
           .base_lr = {0.005},
           .max_lr = {0.05},
           .step_size_up = 8,
           .step_size_down = 12,
           .mode = CyclicMode::triangular2})},
      {"ReduceLROnPlateau",
       schedule<ReduceLROnPlateau>(
           ReduceLROnPlateauOptions{.factor = 0.5, .patience = 0})},
      {"SequentialLR",
       [](torch::optim::Optimizer& optimizer) {
         return std::make_unique<SequentialLR>(
             optimizer,
             std::vector<std::int64_t>{8, 30},
             LinearLR({.start_factor = 0.2, .total_iters = 8}),
             CosineAnnealingLR({.T_max = 22, .eta_min = 0.001}),
             ExponentialLR(0.98));
       }},
      {"ChainedScheduler", [](torch::optim::Optimizer& optimizer) {
         return std::make_unique<ChainedScheduler>(
             optimizer,
             ConstantLR({.factor = 0.5, .total_iters = 20}),
             ExponentialLR(0.98));
       }}};
  return made;
}

// The case's schedule: StepLR unless it names another.
std::string schedule_of(const Case& training) {
  for (const auto& [name, make] : schedules()) {
    if (training.has(name)) return name;
  }
  return "StepLR";
}

// Gives the order that PyTorch's RandomSampler draws from its own generator.
// Registered, so that checkpoints hold the generator's state.
class GeneratorSampler : public Sampler {
 public:
  [[nodiscard]] std::int64_t size() const override { return kNumSamples; }
  void begin_pass(std::uint64_t, std::uint64_t) override {
    order_ = random_order(kNumSamples, {}, generator_);
  }
  [[nodiscard]] std::int64_t at(std::int64_t position) const override {
    return order_.at(static_cast<std::size_t>(position));
  }
  void seed() { generator_.set_current_seed(kSeed); }
  [[nodiscard]] StateDict state_dict() const {
    return {{"generator", generator_.get_state()}};
  }
  void load_state_dict(const StateDict& state) {
    generator_.set_state(state.get<at::Tensor>("generator"));
  }

 private:
  at::Generator generator_ = at::detail::createCPUGenerator(kSeed);
  std::vector<std::int64_t> order_;
};

bool are_equal(const StateDict& a, const StateDict& b);

bool are_equal(const StateDict::Value& a, const StateDict::Value& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&]<class T>(const T& first) {
        const T& second = std::get<T>(b);
        if constexpr (std::same_as<T, at::Tensor>) {
          return first.scalar_type() == second.scalar_type() &&
              first.equal(second);
        } else if constexpr (std::same_as<T, StateDict>) {
          return are_equal(first, second);
        } else if constexpr (std::same_as<T, std::vector<StateDict>>) {
          return std::equal(
              first.begin(),
              first.end(),
              second.begin(),
              second.end(),
              [](const StateDict& x, const StateDict& y) {
                return are_equal(x, y);
              });
        } else {
          return first == second;
        }
      },
      a);
}

bool are_equal(const StateDict& a, const StateDict& b) {
  const auto &first = a.values(), &second = b.values();
  return std::equal(
      first.begin(),
      first.end(),
      second.begin(),
      second.end(),
      [](const auto& x, const auto& y) {
        return x.first == y.first && are_equal(x.second, y.second);
      });
}

// An object with a value of every kind that checkpoints hold; all depend on the
// epoch.
struct Record {
  std::int64_t epoch = 0;

  [[nodiscard]] StateDict state_dict() const {
    const auto real = static_cast<double>(epoch);
    return {
        {"epoch", epoch},
        {"flag", epoch % 2 == 1},
        {"count", (std::int64_t{1} << 40) + epoch},
        {"negative", -epoch - 1},
        {"ratio", 0.1 * real},
        {"infinite", -std::numeric_limits<double>::infinity()},
        {"name", "größe " + std::to_string(epoch)},
        {"whole", std::vector<std::int64_t>{epoch, -2}},
        {"real", std::vector<double>{0.5 * real, 1e300}},
        {"no_items", std::vector<std::int64_t>{}},
        {"tensor", torch::arange(6).reshape({2, 3}) * epoch},
        {"scalar", torch::tensor(0.5 * real, torch::kDouble)},
        {"none", torch::empty({0, 3})},
        {"inner",
         StateDict{
             {"low", torch::full({2}, real, torch::kBFloat16)},
             {"deeper", StateDict{{"epoch", epoch}}}}},
        {"list", std::vector<StateDict>{{{"a", epoch}}, {{"a", -epoch}}}}};
  }
  void load_state_dict(const StateDict& state) {
    epoch = state.get<std::int64_t>("epoch");
    if (!are_equal(state, state_dict())) {
      throw CheckpointError("the record of this epoch has other values");
    }
  }
};

struct Job {
  int number = 0;
  Case training;
  int num_epochs = 0;
  std::string save_to, load_from;
};

AcceleratorOptions options_of(const Case& training) {
  AcceleratorOptions options;
  options.cpu = true;
  // Python's scheduler also makes one step per process.
  options.scheduler.step_with_processes = true;
  if (training.has("bf16")) options.mixed_precision = Precision::bf16;
  if (training.has("accumulate")) {
    options.gradient_accumulation_steps = 2;
    options.gradient_accumulation.divide_by_full_window = true;
  }
  if (training.has("sharded")) {
    // Without this, gradients are clipped to 1, as in Accelerate's plugin.
    options.parallel.deepspeed =
        DeepSpeedOptions{.gradient_clipping = 0.0, .zero_stage = 3};
  }
  return options;
}

DataLoaderOptions loader_options_of(
    const Case& training,
    const std::shared_ptr<Sampler>& sampler) {
  DataLoaderOptions options;
  options.batch_size = 4;
  if (training.has("seedable")) {
    options.shuffle = true;
    options.use_seedable_sampler = true;
    options.data_seed = kSeed;
  }
  if (training.has("generator")) options.sampler = sampler;
  return options;
}

void train(const Job& job) {
  const Case& training = job.training;
  const Accelerator accelerator(options_of(training));
  auto net = make_net(training);
  const auto inner = make_optimizer(training, net->parameters());
  const auto sampler = std::make_shared<GeneratorSampler>();
  const at::Tensor inputs = wave(kNumSamples * 4, 0.3).view({kNumSamples, 4});
  const at::Tensor targets = wave(kNumSamples, 1.1).view({kNumSamples, 1});
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      *inner,
      DataLoader(
          TensorDataset(inputs, targets),
          loader_options_of(training, sampler)));

  const std::string schedule_name = schedule_of(training);
  const Schedule own = schedules().at(schedule_name)(*inner);
  const Scheduler scheduler = accelerator.prepare(*own);
  const bool is_plateau = schedule_name == "ReduceLROnPlateau";

  int epoch = 0;
  Record record;
  accelerator.register_for_checkpointing("epoch", epoch);
  accelerator.register_for_checkpointing(record);
  accelerator.register_for_checkpointing(*sampler);
  torch::manual_seed(
      kSeed + static_cast<std::uint64_t>(accelerator.process_index()));
  sampler->seed();
  if (!job.load_from.empty()) accelerator.load_state(job.load_from);

  const auto report = [&](const at::Tensor& loss) {
    const double mean =
        accelerator.gather(loss.detach().view({1})).mean().item<double>();
    if (accelerator.is_main_process()) {
      std::printf("%d %.9f\n", job.number, mean);
    }
    return mean;
  };
  const int last = epoch + job.num_epochs;
  for (; epoch < last; ++epoch) {
    double mean = 0;
    loader.set_epoch(static_cast<std::uint64_t>(epoch));
    for (auto& [x, y] : loader) {
      const MicroStep micro_step = accelerator.accumulate(model);
      const at::Tensor loss = torch::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      if (!is_plateau) scheduler.step();
      optimizer.zero_grad();
      mean = report(loss);
    }
    if (is_plateau) scheduler.step(mean);
    net->eval();
    {
      const torch::NoGradGuard no_grad;
      report(torch::mse_loss(model(inputs), targets));
    }
    net->train();
  }
  record.epoch = epoch;
  static_cast<void>(accelerator.save_state(
      job.save_to,
      {.safe_serialization = !training.has("torch_files"),
       .layout = training.has("native") ? CheckpointLayout::native
                                        : CheckpointLayout::accelerate}));
  accelerator.finish();
}

void train_all(const char* file) {
  std::ifstream jobs(file);
  for (std::string line; std::getline(jobs, line);) {
    std::istringstream words(line);
    int number = 0, num_epochs = 0;
    std::string name, save_to, load_from;
    words >> number >> name >> num_epochs >> save_to >> load_from;
    train({number, Case(name), num_epochs, save_to, load_from});
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw ConfigError("usage: cross_training JOBS");
    train_all(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cross_training: %s\n", error.what());
    return 1;
  }
  return 0;
}
