// Random programs that run some backwards themselves, and after prepare()
// freeze, unfreeze, convert and replace parameters, and give optimizers and
// models more of them: all ranks end with the weights of plain LibTorch in one
// process, or an error names the change.
#include "laws/check.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace changes_law_test {

using testing::expect_law;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;

constexpr std::int64_t kSamplesPerRank = 2;
constexpr int kLayers = 3;  // with an activation between them

enum class Mode { buckets, views, unused, static_graph, zero1, zero2, zero3 };
enum class Change { none, freeze, unfreeze, convert, replace, add_group, grow };

struct Step {
  Change change = Change::none;
  int layer = 0;
  /// The micro-step before which the change is made.
  std::size_t at = 0;
  /// Whether each micro-step's backward is the program's own.
  std::vector<bool> is_plain;
  bool clips = false;
};

struct Program {
  Mode mode = Mode::buckets;
  int num_ranks = 1;
  int window = 1;
  double momentum = 0;
  std::vector<bool> frozen;    ///< by layer, in prepare()
  std::vector<bool> is_added;  ///< by layer: not in the optimizer at first
  bool calls_handle = true;
  bool steps_handle = true;
  std::vector<Step> steps;
};

std::ostream& operator<<(std::ostream& out, const Program& program) {
  out << "mode " << static_cast<int>(program.mode) << ", ranks "
      << program.num_ranks << ", window " << program.window << ", momentum "
      << program.momentum << ", handles " << program.calls_handle
      << program.steps_handle << ", frozen";
  for (const bool each : program.frozen) out << ' ' << each;
  out << ", added";
  for (const bool each : program.is_added) out << ' ' << each;
  for (const Step& step : program.steps) {
    out << "; change " << static_cast<int>(step.change) << " of " << step.layer
        << " at " << step.at << ", plain";
    for (const bool plain : step.is_plain) out << ' ' << plain;
    out << (step.clips ? ", clips" : "");
  }
  return out;
}

bool is_sharded(const Program& program) { return program.mode >= Mode::zero1; }

Program any_program() {
  Program program;
  program.mode = static_cast<Mode>(*rc::gen::inRange(0, 7));
  program.num_ranks = *rc::gen::inRange(1, 4);
  program.window = *rc::gen::inRange(1, 4);
  program.momentum = *rc::gen::element(0.0, 0.5);
  program.calls_handle = is_sharded(program) || *rc::gen::arbitrary<bool>();
  // On devices that extend LibTorch, it only replaces data by tensors with the
  // same dispatch keys, which the data of a frozen parameter has not.
  const bool can_replace = testing::device_of_ranks().is_cpu();
  program.steps_handle = *rc::gen::arbitrary<bool>();
  for (int layer = 0; layer < kLayers; ++layer) {
    // The last layer always trains.
    const bool is_last = layer + 1 == kLayers;
    program.frozen.push_back(!is_last && *rc::gen::inRange(0, 3) == 0);
    program.is_added.push_back(!is_last && *rc::gen::inRange(0, 3) == 0);
  }
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    Step step;
    if (i > 0) {
      step.change = *rc::gen::weightedElement<Change>(
          {{3, Change::none},
           {4, Change::freeze},
           {4, Change::unfreeze},
           {1, Change::convert},
           {can_replace ? 1 : 0, Change::replace},
           {3, Change::add_group},
           {1, Change::grow}});
    }
    step.layer = *rc::gen::inRange(0, kLayers - 1);
    if (step.change == Change::freeze || step.change == Change::unfreeze)
      step.at = *rc::gen::inRange<std::size_t>(0, program.window);
    step.clips = *rc::gen::arbitrary<bool>();
    const int plain = *rc::gen::inRange(0, 3);
    for (int micro = 0; micro < program.window; ++micro) {
      step.is_plain.push_back(
          plain == 0 || (plain == 1 && *rc::gen::arbitrary<bool>()));
    }
    program.steps.push_back(std::move(step));
  }
  return program;
}

torch::nn::Linear layer_of(int inputs, int outputs) {
  torch::nn::Linear layer(inputs, outputs);
  layer->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  // Ranks are threads, which share the random generator.
  for (Tensor& parameter : layer->parameters()) {
    parameter.copy_(torch::arange(parameter.numel(), torch::kDouble)
                        .add(inputs)
                        .sin()
                        .view(parameter.sizes()));
  }
  return layer;
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(
      layer_of(3, 4),
      torch::nn::Tanh(),
      layer_of(4, 4),
      torch::nn::Tanh(),
      layer_of(4, 2));
}

torch::nn::LinearImpl& layer_at(torch::nn::Sequential& net, int layer) {
  return net->at<torch::nn::LinearImpl>(static_cast<std::size_t>(2 * layer));
}

/// A net and its optimizer before prepare().
struct Training {
  explicit Training(const Program& program) {
    std::vector<Tensor> first;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto i = static_cast<std::size_t>(layer);
      for (Tensor& parameter : layer_at(net, layer).parameters()) {
        if (program.frozen[i]) parameter.set_requires_grad(false);
        if (!program.is_added[i]) first.push_back(parameter);
      }
      is_added.push_back(program.is_added[i]);
    }
    sgd.emplace(
        first, torch::optim::SGDOptions(0.1).momentum(program.momentum));
  }

  /// Makes the step's change.
  void change(const Step& step) {
    torch::nn::LinearImpl& layer = layer_at(net, step.layer);
    switch (step.change) {
      case Change::none:
        return;
      case Change::freeze:
      case Change::unfreeze:
        for (Tensor& parameter : layer.parameters())
          parameter.set_requires_grad(step.change == Change::unfreeze);
        return;
      case Change::convert:
        net->to(torch::kFloat);
        dtype = torch::kFloat;
        return;
      case Change::replace:
        layer.weight.set_data(torch::full_like(layer.weight, 0.125));
        return;
      case Change::add_group: {
        const auto i = static_cast<std::size_t>(step.layer);
        if (!is_added[i]) return;
        is_added[i] = false;
        torch::optim::OptimizerParamGroup group(layer.parameters());
        sgd->add_param_group(group);
        return;
      }
      case Change::grow: {
        auto last = layer_of(2, 2);
        const torch::NoGradGuard no_grad;
        for (Tensor& parameter : last->parameters()) parameter.fill_(0.25);
        last->to(dtype);
        net->push_back(last);
      }
    }
  }

  torch::nn::Sequential net = make_net();
  std::optional<torch::optim::SGD> sgd;
  std::vector<bool> is_added;
  torch::ScalarType dtype = torch::kDouble;
};

/// The samples of a micro-step; of one rank unless `rank` is negative.
std::pair<Tensor, Tensor> samples(
    const Program& program,
    int micro_step,
    int rank,
    torch::ScalarType dtype) {
  const std::int64_t count = program.num_ranks * kSamplesPerRank;
  const auto numbers = torch::arange(count * 3, torch::kDouble)
                           .view({count, 3})
                           .add(micro_step * 5)
                           .sin();
  const auto begin = rank < 0 ? 0 : rank * kSamplesPerRank;
  const auto mine =
      numbers.narrow(0, begin, rank < 0 ? count : kSamplesPerRank).to(dtype);
  return {mine, mine.narrow(1, 0, 2).cos()};
}

Weights weights_of(const torch::nn::Sequential& net) {
  Weights weights;
  for (const auto& item : net->named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

Weights train_alone(const Program& program) {
  Training training(program);
  int micro_step = 0;
  for (const Step& step : program.steps) {
    for (std::size_t i = 0; i < step.is_plain.size(); ++i) {
      if (i == step.at) training.change(step);
      const bool is_plain = step.is_plain[i];
      const auto [x, y] = samples(program, micro_step++, -1, training.dtype);
      const Tensor loss = torch::mse_loss(training.net->forward(x), y);
      (is_plain ? loss : loss / program.window).backward();
    }
    if (step.clips)
      torch::nn::utils::clip_grad_norm_(training.net->parameters(), 0.05);
    training.sgd->step();
    training.net->zero_grad();
  }
  return weights_of(training.net);
}

AcceleratorOptions options_of(
    const Program& program,
    const WorldOptions& world) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = program.window;
  options.world = world;
  // Plain backwards in windows warn.
  options.world.logger = Logger([](const LogRecord&) {}, LogLevel::error);
  ReplicateOptions& replicate = options.parallel.replicate_options;
  switch (program.mode) {
    case Mode::buckets:
      replicate.bucket_bytes = 64;
      replicate.first_bucket_bytes = 64;
      break;
    case Mode::views:
      replicate.gradient_as_bucket_view = true;
      break;
    case Mode::unused:
      replicate.find_unused_parameters = true;
      break;
    case Mode::static_graph:
      replicate.static_graph = true;
      break;
    case Mode::zero1:
    case Mode::zero2:
    case Mode::zero3:
      options.parallel.deepspeed =
          DeepSpeedOptions{// Unless told otherwise, DeepSpeed clips to 1.
                           .gradient_clipping = 0,
                           .zero_stage = static_cast<int>(program.mode) -
                               static_cast<int>(Mode::zero1) + 1};
  }
  return options;
}

constexpr const char* kStepped =
    "an optimizer was stepped directly, not through the handle";

// Whether the optimizer itself steps where only the handle gathers parameters.
// A rank whose shards are empty does not notice, and may name a later change.
bool steps_wrongly(const Program& program) {
  const bool gathers_after_steps =
      program.mode == Mode::zero1 || program.mode == Mode::zero2;
  return program.num_ranks > 1 && gathers_after_steps && !program.steps_handle;
}

// What an error has to name; nothing if the program has to succeed.
std::vector<std::string> expected_error(const Program& program) {
  if (program.num_ranks == 1) return {};
  for (const Step& step : program.steps) {
    const auto layer = static_cast<std::size_t>(step.layer);
    const std::string name = '"' + std::to_string(2 * step.layer);
    if (step.change == Change::grow) return {"\"5.weight\" was added"};
    if (!is_sharded(program)) continue;
    if (step.change == Change::convert) return {"\"0.weight\""};
    if (step.change == Change::replace)
      return {name + ".weight\"", "replaced after prepare()"};
    if (step.change == Change::unfreeze && program.frozen[layer])
      return {name + ".", "was frozen when it was prepared"};
  }
  return {};
}

/// Trains on one rank; returns the full weights.
Weights train_on_rank(const Program& program, const WorldOptions& world) {
  const Accelerator accelerator(options_of(program, world));
  Training training(program);
  const auto [model, optimizer] =
      accelerator.prepare(training.net, *training.sgd);
  int micro_step = 0;
  for (const Step& step : program.steps) {
    for (std::size_t i = 0; i < step.is_plain.size(); ++i) {
      if (i == step.at) training.change(step);
      const bool is_plain = step.is_plain[i];
      const auto scope = accelerator.accumulate(model);
      const auto [x, y] = samples(
          program, micro_step++, accelerator.process_index(), training.dtype);
      const Tensor output =
          program.calls_handle ? model(x) : training.net->forward(x);
      const Tensor loss = torch::mse_loss(output, y);
      if (is_plain) {
        loss.backward();
      } else {
        accelerator.backward(loss);
      }
      if (!accelerator.sync_gradients()) continue;
      if (step.clips) accelerator.clip_grad_norm_(model, 0.05);
      if (program.steps_handle) {
        optimizer.step();
      } else {
        training.sgd->step();
      }
    }
    model.zero_grad();
  }
  if (!is_sharded(program)) return weights_of(training.net);
  const auto full = model.full_parameters();
  return weights_of(training.net);
}

TEST(ChangesLaw, TrainAsOneProcessOrAreNamed) {
  expect_law(60, [] {
    const Program program = any_program();
    RC_LOG() << program;
    const std::vector<std::string> error = expected_error(program);
    std::vector<Weights> ends(static_cast<std::size_t>(program.num_ranks));
    std::string found;
    try {
      run_on_ranks(program.num_ranks, [&](const WorldOptions& world) {
        ends[static_cast<std::size_t>(*world.rank)] =
            train_on_rank(program, world);
      });
    } catch (const ConfigError& thrown) {
      found = thrown.what();
    }
    RC_LOG() << "error: " << found;
    if (steps_wrongly(program) && found.find(kStepped) != std::string::npos)
      return;
    RC_ASSERT(!steps_wrongly(program) || !error.empty());
    RC_ASSERT(found.empty() == error.empty());
    for (const std::string& phrase : error)
      RC_ASSERT(found.find(phrase) != std::string::npos);
    if (!error.empty()) return;
    const Weights alone = train_alone(program);
    for (const auto& [name, tensor] : alone) {
      const double tolerance =
          tensor.scalar_type() == torch::kDouble ? 1e-12 : 1e-5;
      for (const Weights& end : ends) {
        RC_LOG() << name;
        RC_ASSERT(torch::allclose(end.at(name), tensor, tolerance, tolerance));
        RC_ASSERT(torch::equal(end.at(name), ends[0].at(name)));
      }
    }
  });
}

}  // namespace changes_law_test
}  // namespace accelerate
