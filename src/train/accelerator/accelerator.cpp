#include <accelerate/accelerator.h>

#include <array>
#include <csignal>
#include <exception>
#include <string>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/progress/progress_bar.h"
#include "base/require.h"
#include "base/text.h"
#include "checkpoint/save/save_target.h"
#include "comm/collectives/any_rank.h"
#include "comm/collectives/group_impl.h"
#include "config/settings.h"
#include "config/terminal_variables.h"
#include "engines/fp8_recipe.h"
#include "engines/settings_in_force.h"
#include "parallel/plan.h"
#include "precision/support.h"
#include "track/store_rank_board.h"
#include "train/run_state.h"
#include "train/session.h"
#include "train/settings/ignored_options.h"
#include "train/step/accumulation_window.h"

namespace accelerate {

namespace {

// Saves and loads that take less show no bar.
constexpr double kProgressDelaySeconds = 2;

using detail::format;
using detail::Session;

Precision requested_precision(
    const AcceleratorOptions& options,
    const detail::Settings& settings) {
  if (options.mixed_precision) return *options.mixed_precision;
  return parse_precision(*settings.text("mixed_precision"));
}

void add_world_options(
    detail::Source& source,
    const AcceleratorOptions& options) {
  const WorldOptions& world = options.world;
  const bool keeps_to_cpu = options.cpu.value_or(false);
  if (keeps_to_cpu || world.device) {
    const at::Device device = keeps_to_cpu ? at::kCPU : *world.device;
    source.add("device", device.str(), "code");
    source.add("use_cpu", device.is_cpu() ? "true" : "false", "code");
  }
  if (world.timeout) {
    source.add(
        "timeout_seconds",
        format("{}", static_cast<double>(world.timeout->count()) / 1000),
        "code");
  }
  if (world.transport) source.add("transport", *world.transport, "code");
  if (world.debug) source.add("debug", *world.debug ? "true" : "false", "code");
}

// Accelerate's launcher always names a precision, "no" by default.
bool precision_is_open(
    const AcceleratorOptions& options,
    const detail::Settings& settings) {
  return !options.mixed_precision &&
      requested_precision(options, settings) == Precision::no;
}

// The options given in code, as one more source of settings.
detail::Source source_from_code(const AcceleratorOptions& options) {
  detail::Source source{detail::Origin::code, {}};
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) source.add(key, format("{}", *value), "code");
  };
  if (options.mixed_precision) {
    source.add(
        "mixed_precision",
        std::string(name_of(*options.mixed_precision)),
        "code");
  }
  if (const auto cpu = options.cpu ? options.cpu : options.world.cpu)
    source.add("use_cpu", *cpu ? "true" : "false", "code");
  add_world_options(source, options);
  add("run_name", options.run_name);
  add("gradient_accumulation_steps",
      options.gradient_accumulation.num_steps
          ? options.gradient_accumulation.num_steps
          : options.gradient_accumulation_steps);
  source.values.merge(detail::source_of_options(options.parallel).values);
  return source;
}

// Collects the ConfigError that `body` throws, if any; other errors pass.
template <class Body>
void note_complaints(std::vector<std::string>& complaints, Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    complaints.emplace_back(error.what());
  }
}

ProjectConfiguration project_configuration(const AcceleratorOptions& options) {
  ProjectConfiguration project = options.project_configuration;
  if (project.project_dir.empty()) {
    project.set_directories(options.project_dir);
  }
  return project;
}

// What options, launcher and other engines' settings amount to.
struct Decisions {
  Precision precision = Precision::no;
  int window = 1;
  detail::RequestSources request_sources;
  detail::PlanRequest plan_request;
  detail::ParallelPlan plan;
};

// The window that a DeepSpeed configuration sets, if it does.
void apply_window_of_engine(
    const AcceleratorOptions& options,
    Decisions& decisions,
    std::vector<std::string>& complaints) {
  const auto steps =
      decisions.plan_request.training.step.gradient_accumulation_steps;
  if (!steps) return;
  const bool is_set = options.gradient_accumulation_steps.value_or(1) > 1 ||
      options.gradient_accumulation.num_steps;
  if (is_set && decisions.window != *steps) {
    complaints.push_back(format(
        "[train] gradient_accumulation_steps is {}, and {} in the DeepSpeed "
        "configuration; correct it there, or write \"auto\"",
        decisions.window,
        *steps));
  }
  decisions.window = *steps;
}

// DeepSpeed's configuration chooses the precision if nothing else did.
void apply_precision_of_engine(Decisions& decisions) {
  const std::string& chosen =
      decisions.plan_request.training.precision.mixed_precision;
  decisions.precision = parse_precision(chosen);
  decisions.request_sources.mixed_precision = chosen;
  decisions.request_sources.precision_is_open = false;
}

void read_float8(
    const AcceleratorOptions& options,
    const detail::Settings& settings,
    const detail::Environment& environment,
    Decisions& decisions) {
  const std::int64_t statistics_interval = options.fp8_statistics_interval;
  if (statistics_interval < 0) {
    throw ConfigError(detail::format(
        "[train] fp8_statistics_interval is {}; it must be a number of steps, "
        "or 0 for none",
        statistics_interval));
  }
  if (decisions.precision == Precision::fp8) {
    decisions.plan_request.float8 =
        detail::read_float8_request(options.fp8_recipe, settings, environment);
    decisions.plan_request.float8->statistics_interval = statistics_interval;
    if (!options.fp8_recipe) return;
    for (auto& setting : detail::recipe_without_effect(*options.fp8_recipe))
      decisions.plan_request.training.ignored.push_back(std::move(setting));
    return;
  }
  const auto ignore = [&](std::string name) {
    decisions.plan_request.training.ignored.push_back(
        {std::move(name), "mixed_precision is not fp8", "code"});
  };
  if (options.fp8_recipe) ignore("fp8_recipe");
  if (statistics_interval != 0) ignore("fp8_statistics_interval");
}

// Throws one ConfigError with everything that is wrong.
Decisions decide(
    const AcceleratorOptions& options,
    const std::vector<detail::AddedTechnique>& added,
    const World& world,
    const detail::Settings& settings,
    const detail::Environment& environment) {
  Decisions decisions;
  std::vector<std::string> complaints;
  note_complaints(complaints, [&] {
    decisions.window = detail::accumulation_window(options, settings);
  });
  note_complaints(complaints, [&] {
    detail::SignalFlag::check(options.preemption_signals);
  });
  decisions.request_sources = {
      .parallel = options.parallel,
      .mixed_precision =
          std::string(name_of(requested_precision(options, settings))),
      .precision_is_open = precision_is_open(options, settings),
      .num_local_ranks = world.local_size(),
      .settings = settings,
      .environment = environment};
  decisions.plan_request = {
      .training = detail::read_training_request(decisions.request_sources),
      .replicate = options.parallel.replicate_options,
      .master_weights = options.master_weights,
      .keep_freed_blocks = options.keep_freed_blocks,
      .heap_is_tuned = environment.has("MALLOC_MMAP_THRESHOLD_"),
      .num_ranks = world.size(),
      .num_local_ranks = world.local_size(),
      .device = world.device(),
      .added = added};
  if (decisions.plan_request.training.precision.master_weights)
    decisions.plan_request.master_weights = true;
  apply_precision_of_engine(decisions);
  if (auto complaint =
          detail::precision_complaint(decisions.precision, world.device())) {
    complaints.push_back(*complaint);
  }
  note_complaints(
      complaints, [&] { const GradScaler checked(options.grad_scaler); });
  note_complaints(complaints, [&] {
    detail::require_valid(options.project_configuration);
  });
  note_complaints(complaints, [&] {
    auto& ignored = decisions.plan_request.training.ignored;
    for (auto& setting :
         detail::options_without_effect(options, settings, decisions.precision))
      ignored.push_back(std::move(setting));
  });
  note_complaints(complaints, [&] {
    read_float8(options, settings, environment, decisions);
  });
  note_complaints(complaints, [&] {
    decisions.plan = detail::make_plan(decisions.plan_request);
  });
  apply_window_of_engine(options, decisions, complaints);
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  return decisions;
}

std::optional<GradScaler> make_scaler(
    const GradScalerOptions& options,
    Precision precision,
    const World& world) {
  if (precision != Precision::fp16) return std::nullopt;
  return GradScaler(
      options,
      world.device(),
      world.size() > 1 ? std::optional<Group>(world.group()) : std::nullopt);
}

struct SettingsInForce {
  detail::Settings settings;
  std::vector<detail::IgnoredSetting> ignored;
};

// The settings of code, launcher and variables, with what was chosen where they
// leave something open, and those that an engine ignores.
SettingsInForce settings_in_force(
    const AcceleratorOptions& options,
    const Decisions& decisions,
    const World& world) {
  const detail::RequestSources& sources = decisions.request_sources;
  const std::array all{
      detail::source_from_handover(sources.environment),
      detail::source_from_environment(sources.environment),
      source_from_code(options)};
  detail::Settings settings = detail::resolve(all);
  settings.share_reads_with(sources.settings);
  if (options.world.logger) {
    for (const char* key : {"log_level", "log_levels", "log_format"})
      settings.mark_read(key);
  }

  const detail::TrainingRequest& training = decisions.plan_request.training;
  std::vector<detail::IgnoredSetting> ignored = training.ignored;
  ignored.insert(
      ignored.end(),
      decisions.plan.ignored.begin(),
      decisions.plan.ignored.end());
  for (auto& overruled : detail::settle_engine(settings, sources, training))
    ignored.push_back(std::move(overruled));
  settings.settle(
      "device",
      world.device().str(),
      settings.boolean("use_cpu")   ? settings.find("use_cpu")->where
          : world.device().is_cpu() ? "no accelerator"
                                    : "the accelerator of this local rank");
  settings.settle(
      "mixed_precision", std::string(name_of(decisions.precision)), "default");
  if (decisions.precision != requested_precision(options, sources.settings)) {
    settings.overrule(
        "mixed_precision",
        std::string(name_of(decisions.precision)),
        "DeepSpeed configuration");
  }
  settings.settle(
      "gradient_accumulation_steps",
      std::to_string(decisions.window),
      training.step.gradient_accumulation_steps ? "DeepSpeed configuration"
                                                : "default");
  settings.settle(
      "timeout_seconds",
      format("{}", static_cast<double>(world.timeout().count()) / 1000),
      "default");
  for (const auto& [key, axis] :
       {std::pair("parallelism_config_pp_size", Axis::pipeline),
        std::pair("parallelism_config_dp_replicate_size", Axis::replicate),
        std::pair("parallelism_config_dp_shard_size", Axis::shard),
        std::pair("parallelism_config_ep_size", Axis::expert),
        std::pair("parallelism_config_cp_size", Axis::context),
        std::pair("parallelism_config_tp_size", Axis::tensor)}) {
    settings.settle(
        key,
        std::to_string(decisions.plan.degree(axis)),
        "from the number of ranks");
  }
  return {std::move(settings), std::move(ignored)};
}

std::unique_ptr<detail::RunTracking> make_tracking(
    const AcceleratorOptions& options,
    const Session& session,
    const detail::Environment& environment) {
  const ProjectConfiguration& project = session.checkpoints->project;
  auto warnings = std::make_shared<detail::WarningTap>();
  detail::RunTrackingOptions tracking{
      .log_with = options.log_with,
      .is_main_process = session.world.rank() == 0,
      .journal = options.journal,
      .opens_at_once = !project.project_dir.empty(),
      .logging_dir = project.logging_dir.empty() ? project.project_dir
                                                 : project.logging_dir,
      .run_name = session.settings.text("run_name"),
      .environment = environment,
      .logger = session.world.logger(),
      .warnings = warnings,
      .describe = detail::describe_process(session.world, session.mesh),
      .figures_interval = options.figures_interval,
      .num_steps = [counts = session.step_counts] { return counts->most(); },
      .rank = session.world.rank()};
  if (session.world.size() > 1)
    tracking.board = std::make_shared<detail::StoreRankBoard>(session.world);
  const auto& board = session.world.group().impl()->world->board;
  if (board) {
    tracking.rank_reports = [board,
                             reports = std::make_shared<detail::BoardReports>(
                                 board->board())] { return reports->news(); };
  }
  Logger& logger = session.world.group().impl()->world->logger;
  logger = logger.also_to(
      [warnings](const LogRecord& record) { warnings->take(record); });
  return std::make_unique<detail::RunTracking>(std::move(tracking));
}

// The session, which reports settings without effect when its last handle is
// destroyed, if no step and no finish() has done so.
std::shared_ptr<Session> reporting_at_its_end(
    std::shared_ptr<Session> session) {
  Session* const shared = session.get();
  return {shared, [session = std::move(session)](Session* ended) {
            try {
              detail::report_settings_without_effect(*ended);
            } catch (const std::exception&) {
              // The program's logger threw, and a destructor must not.
            }
          }};
}

WorldOptions world_options(const AcceleratorOptions& options) {
  WorldOptions world = options.world;
  if (options.cpu.value_or(false)) world.device = at::kCPU;
  if (options.cpu) world.cpu = options.cpu;
  return world;
}

// Adds what the session owns and that refers to other parts of it.
void add_services(
    Session& session,
    const AcceleratorOptions& options,
    const detail::Environment& environment) {
  session.agreement = std::make_unique<detail::RankAgreement>(
      session.world,
      [passes = session.num_averaging_passes,
       group = session.world.group().impl()] {
        return detail::DesyncDetector::Position{
            passes->load(), static_cast<std::int64_t>(group->sequence.load())};
      });
  session.checkpoints = std::make_unique<detail::Checkpoints>(
      session.world, *session.agreement, project_configuration(options));
  session.checkpoints->progress = detail::progress_options_of_rank(
      {.delay_seconds = kProgressDelaySeconds,
       .disable = !options.progress_bars},
      session.world.is_local_main_process(),
      detail::terminal_variables(environment).has_utf8);
  session.tracking = make_tracking(options, session, environment);
  session.checkpoints->components.push_back(
      detail::run_component(*session.tracking));
}

std::shared_ptr<Session> make_session(
    const AcceleratorOptions& options,
    const std::vector<detail::AddedTechnique>& added) {
  const detail::Environment environment = detail::Environment::current();
  World world(world_options(options));
  Decisions decisions = decide(
      options,
      added,
      world,
      world.group().impl()->world->settings,
      environment);
  SettingsInForce in_force = settings_in_force(options, decisions, world);
  const detail::TrainingRequest& training = decisions.plan_request.training;
  const std::optional<double> max_gradient_norm =
      training.step.gradient_clipping;
  Mesh mesh(world, decisions.plan.degrees);
  auto scaler = make_scaler(options.grad_scaler, decisions.precision, world);
  auto session = std::make_shared<Session>(Session{
      .clock = detail::StepClock(decisions.window),
      .settings = std::move(in_force.settings),
      .report = {.ignored = std::move(in_force.ignored)},
      .world = std::move(world),
      .plan = std::move(decisions.plan),
      .mesh = std::move(mesh),
      .plan_request = std::move(decisions.plan_request),
      .request_sources = std::move(decisions.request_sources),
      .precision = decisions.precision,
      .autocast = options.autocast,
      .accumulation = options.gradient_accumulation,
      .scheduling = options.scheduler,
      .dataloader_config = options.dataloader_config,
      .rng_types = options.rng_types,
      .device_placement = options.device_placement,
      .max_gradient_norm = max_gradient_norm,
      .scaler = std::move(scaler),
      .models = {},
      .optimizers = {},
      .schedulers = {},
      .agreement = nullptr,
      .tracking = nullptr,
      .checkpoints = nullptr});
  session->steps = session->world.group().impl()->world->steps;
  session->profile_options = options.profile.value_or(ProfileOptions());
  session->preemption_signals = options.preemption_signals;
  add_services(*session, options, environment);
  return reporting_at_its_end(std::move(session));
}

}  // namespace

int detail::accumulation_window(
    const AcceleratorOptions& options,
    const Settings& settings) {
  const auto& steps = options.gradient_accumulation_steps;
  const auto& num_steps = options.gradient_accumulation.num_steps;
  if (steps && num_steps && *steps != 1 && *steps != *num_steps) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps is {} and "
        "gradient_accumulation.num_steps {}; give one of them",
        *steps,
        *num_steps));
  }
  const int window = num_steps ? *num_steps
      : steps
      ? *steps
      : static_cast<int>(*settings.integer("gradient_accumulation_steps"));
  return detail::require_at_least(
      "train", "gradient_accumulation_steps", window, 1);
}

Accelerator::Accelerator(const AcceleratorOptions& options)
    : Accelerator(options, {}) {}

Accelerator::Accelerator(
    const AcceleratorOptions& options,
    const std::vector<detail::AddedTechnique>& added)
    : AcceleratorTracking(make_session(options, added)),
      step_(&session_->step) {}

AutocastScope Accelerator::autocast() const {
  return autocast(session_->autocast);
}

AutocastScope Accelerator::autocast(const AutocastOptions& options) const {
  return AutocastScope(
      device().type(), detail::autocast_dtype(session_->precision), options);
}

const std::string& Accelerator::deepspeed_config() const {
  return session_->plan_request.training.deepspeed_config;
}

at::Device AcceleratorProcesses::device() const {
  return session_->world.device();
}

int AcceleratorProcesses::num_processes() const {
  return session_->world.size();
}

int AcceleratorProcesses::process_index() const {
  return session_->world.rank();
}

int AcceleratorProcesses::local_process_index() const {
  return session_->world.local_rank();
}

bool AcceleratorProcesses::is_main_process() const {
  return process_index() == 0;
}

bool AcceleratorProcesses::is_local_main_process() const {
  return local_process_index() == 0;
}

bool AcceleratorProcesses::is_last_process() const {
  return process_index() == num_processes() - 1;
}

Precision AcceleratorProcesses::mixed_precision() const {
  return session_->precision;
}

const std::string& AcceleratorProcesses::project_dir() const {
  return session_->checkpoints->project.project_dir;
}

const World& AcceleratorProcesses::world() const { return session_->world; }

const Mesh& AcceleratorProcesses::mesh() const { return session_->mesh; }

void AcceleratorCollectives::set_trigger() const { session_->trigger = true; }

bool AcceleratorCollectives::check_trigger() const {
  const bool was_set =
      detail::is_true_on_any_rank(world().group(), session_->trigger);
  if (was_set) session_->trigger = false;
  return was_set;
}

bool AcceleratorCollectives::is_told_to_end() const {
  Session& session = *session_;
  if (!session.preemption) {
    std::vector<int> signals = session.preemption_signals;
    if (signals.empty()) signals.push_back(SIGTERM);
    session.preemption = std::make_unique<detail::SignalFlag>(signals);
  }
  return session.preemption->received() != 0;
}

bool AcceleratorCollectives::check_preemption() const {
  return detail::is_true_on_any_rank(world().group(), is_told_to_end());
}

std::string Accelerator::explain_settings() const {
  return session_->settings.explain(detail::ExplainedRows::of_program);
}

std::int64_t AcceleratorCollectives::loader_remainder() const {
  const detail::LoaderProgress* loader = session_->active_loader();
  return loader != nullptr && loader->is_last_batch ? loader->remainder : 0;
}

void AcceleratorCollectives::refuse_gather_object() {
  throw ConfigError(
      "[train] gather_for_metrics was given use_gather_object for values that "
      "cannot be sent as objects; define object_to_bytes() and "
      "object_from_bytes() for their type, or leave the option out");
}

at::Tensor AcceleratorCollectives::first_rows(
    const at::Tensor& tensor,
    std::int64_t rows) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) <= rows)
    return tensor;
  return tensor.narrow(0, 0, rows);
}

}  // namespace accelerate
