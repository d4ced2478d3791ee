#include <accelerate/accelerator.h>

#include <array>
#include <exception>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "config/launch_settings.h"
#include "parallel/plan.h"
#include "train/session.h"

namespace accelerate {

namespace {

using detail::concat;
using detail::Session;

Precision choose_precision(
    const AcceleratorOptions& options,
    const detail::Settings& settings) {
  if (options.mixed_precision) return *options.mixed_precision;
  return parse_precision(*settings.text("mixed_precision"));
}

std::optional<std::string> precision_complaint(Precision precision) {
  if (precision == Precision::no || precision == Precision::bf16) return std::nullopt;
  return concat(
      "[precision] mixed precision ", name_of(precision),
      " was asked for, which this version does not have; use bf16 or no");
}

// What the code says, as one more source of settings.
detail::Source source_from_code(const AcceleratorOptions& options) {
  detail::Source source{detail::Origin::code, {}};
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) source.add(key, concat(*value), "code");
  };
  if (options.mixed_precision) {
    source.add("mixed_precision", std::string(name_of(*options.mixed_precision)), "code");
  }
  if (options.cpu) source.add("use_cpu", *options.cpu ? "true" : "false", "code");
  add("gradient_accumulation_steps", options.gradient_accumulation_steps);
  add("parallelism_config_dp_replicate_size", options.parallel.replicate);
  add("parallelism_config_dp_shard_size", options.parallel.shard);
  add("parallelism_config_tp_size", options.parallel.tensor);
  add("parallelism_config_cp_size", options.parallel.context);
  add("parallelism_config_pp_size", options.parallel.pipeline);
  return source;
}

int choose_window(const AcceleratorOptions& options, const detail::Settings& settings) {
  if (options.gradient_accumulation_steps) return *options.gradient_accumulation_steps;
  return static_cast<int>(*settings.integer("gradient_accumulation_steps"));
}

// Collects what `body` has to complain about; other errors pass.
template <class Body>
void note_complaints(std::vector<std::string>& complaints, Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
}

std::shared_ptr<Session> make_session(const AcceleratorOptions& options) {
  const detail::Environment environment = detail::Environment::current();
  detail::Settings settings = detail::launch_settings(environment);
  WorldOptions world_options = options.world;
  if (options.cpu.value_or(false)) world_options.device = at::kCPU;
  World world(world_options);

  std::vector<std::string> complaints;
  const Precision precision = choose_precision(options, settings);
  if (auto complaint = precision_complaint(precision)) complaints.push_back(*complaint);
  const int window = choose_window(options, settings);
  if (window < 1) {
    complaints.push_back(concat(
        "[train] gradient_accumulation_steps is ", window, "; it is at least 1"));
  }
  std::array<int, kNumAxes> degrees{};
  note_complaints(complaints, [&] {
    degrees = detail::plan_degrees(options.parallel, settings, world.size());
  });
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  const std::array sources{
      detail::source_from_handover(environment), detail::source_from_environment(environment),
      source_from_code(options)};
  settings = detail::resolve(sources);

  Mesh mesh(world, degrees);
  return std::make_shared<Session>(Session{
      .settings = std::move(settings),
      .world = std::move(world),
      .mesh = std::move(mesh),
      .parallel = options.parallel,
      .precision = precision,
      .project_dir = options.project_dir,
      .clock = detail::StepClock(window),
      .models = {},
      .optimizers = {},
      .schedulers = {},
      .active_loaders = {},
      .local_group = {}});
}

void run_backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (!loss.defined()) {
    throw ConfigError("[train] backward() was given an undefined loss; give it the model's loss");
  }
  const std::optional<bool> retain_graph =
      options.retain_graph ? std::optional<bool>(true) : std::nullopt;
  loss.backward({}, retain_graph, options.create_graph);
}

}  // namespace

Accelerator::Accelerator(const AcceleratorOptions& options) : session_(make_session(options)) {}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) const {
  Session& session = *session_;
  for (const auto& model : session.models) {
    for (const auto& strategy : model->strategies) {
      strategy->before_backward(model->sync_gradients);
    }
  }
  try {
    const int window = session.clock.window();
    run_backward(window > 1 && loss.defined() ? loss / window : loss, options);
  } catch (const std::exception& error) {
    for (const auto& model : session.models) {
      for (const auto& strategy : model->strategies) strategy->on_failure(error);
    }
    throw;
  }
  for (const auto& model : session.models) {
    auto& strategies = model->strategies;
    for (auto strategy = strategies.rbegin(); strategy != strategies.rend(); ++strategy) {
      (*strategy)->after_backward(model->sync_gradients);
    }
  }
  for (const auto& optimizer : session.optimizers) optimizer->is_accumulating = true;
}

MicroStep::MicroStep(
    std::shared_ptr<detail::Session> session,
    std::vector<std::shared_ptr<detail::PreparedModel>> models,
    bool sync_gradients)
    : session_(std::move(session)), models_(std::move(models)) {
  for (const auto& model : models_) {
    before_.push_back(model->sync_gradients);
    model->sync_gradients = sync_gradients;
  }
}

MicroStep::~MicroStep() {
  for (std::size_t i = 0; i < models_.size(); ++i) models_[i]->sync_gradients = before_[i];
}

MicroStep Accelerator::begin_micro_step(
    std::vector<std::shared_ptr<detail::PreparedModel>> models) const {
  const detail::LoaderProgress* loader = session_->active_loader();
  session_->clock.begin_micro_step(loader != nullptr && loader->is_last_batch);
  return MicroStep(session_, std::move(models), session_->clock.sync_gradients());
}

bool Accelerator::sync_gradients() const { return session_->clock.sync_gradients(); }

int Accelerator::gradient_accumulation_steps() const { return session_->clock.window(); }

AutocastScope Accelerator::autocast() const {
  const bool is_on = session_->precision == Precision::bf16;
  return AutocastScope(
      device().type(), is_on ? std::optional<at::ScalarType>(at::kBFloat16) : std::nullopt);
}

at::Device Accelerator::device() const { return session_->world.device(); }

int Accelerator::num_processes() const { return session_->world.size(); }

int Accelerator::process_index() const { return session_->world.rank(); }

int Accelerator::local_process_index() const { return session_->world.local_rank(); }

bool Accelerator::is_main_process() const { return process_index() == 0; }

bool Accelerator::is_local_main_process() const { return local_process_index() == 0; }

bool Accelerator::is_last_process() const { return process_index() == num_processes() - 1; }

Precision Accelerator::mixed_precision() const { return session_->precision; }

const std::string& Accelerator::project_dir() const { return session_->project_dir; }

const World& Accelerator::world() const { return session_->world; }

const Mesh& Accelerator::mesh() const { return session_->mesh; }

void Accelerator::set_trigger() const { session_->trigger = true; }

bool Accelerator::check_trigger() const {
  const at::Tensor flag = at::full({}, session_->trigger ? 1 : 0, at::kLong);
  world().group().all_reduce(flag, ReduceOp::max);
  const bool was_set = flag.item<std::int64_t>() != 0;
  if (was_set) session_->trigger = false;
  return was_set;
}

std::string Accelerator::explain_settings() const { return session_->settings.explain(); }

std::int64_t Accelerator::loader_remainder() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch ? loader->remainder : 0;
}

at::Tensor Accelerator::first_rows(const at::Tensor& tensor, std::int64_t rows) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) <= rows) return tensor;
  return tensor.narrow(0, 0, rows);
}

}  // namespace accelerate
