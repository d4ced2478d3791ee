#include "train/accelerator/make_session.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <accelerate/world.h>

#include "base/progress/progress_bar.h"
#include "checkpoint/run/save_target.h"
#include "comm/group/group_impl.h"
#include "config/user_variables.h"
#include "track/run_figures.h"
#include "train/accelerator/decisions.h"
#include "train/session/session.h"
#include "train/step/step_counts.h"
#include "train/step/step_watch.h"
#include "train/tracking/run_state.h"

namespace accelerate::detail {

namespace {

// A board in the store of a world. It uses the world's own connection, with
// short requests only.
class StoreRankBoard final : public RankBoard {
 public:
  explicit StoreRankBoard(World world)
      : world_(std::move(world)),
        store_(world_.store().with_prefix("run_figures")) {}

  void put(const JournalRank& mine) override {
    store_.set(std::to_string(mine.rank), ranks_event({mine}).body);
  }

  std::vector<JournalRank> others() override {
    std::vector<JournalRank> all;
    for (int rank = 0; rank < world_.size(); ++rank) {
      const std::string key = std::to_string(rank);
      if (rank == world_.rank() || !store_.has(key)) continue;
      for (const JournalRank& each : read_ranks(store_.get(key)))
        all.push_back(each);
    }
    return all;
  }

 private:
  World world_;
  Store store_;
};

// Saves and loads that take less time show no bar.
constexpr double kProgressDelaySeconds = 2;

void add_tracking(
    Session& session,
    const AcceleratorOptions& options,
    const Environment& environment) {
  const ProjectConfiguration& project = session.services.checkpoints->project;
  auto warnings = std::make_shared<WarningTap>();
  RunTrackingOptions tracking{
      .log_with = options.log_with,
      .is_main_process = session.world.rank() == 0,
      .journal = options.journal,
      .opens_at_once = !project.project_dir.empty(),
      .logging_dir = project.logging_dir.empty() ? project.project_dir
                                                 : project.logging_dir,
      .run_name = session.layout.settings.text("run_name"),
      .environment = environment,
      .logger = session.world.logger(),
      .warnings = warnings,
      .describe = describe_process(session.world, session.layout.mesh),
      .figures_interval = options.figures_interval,
      .num_steps =
          [counts = session.prepared.step_counts] { return counts->most(); },
      .rank = session.world.rank()};
  if (session.world.size() > 1)
    tracking.board = std::make_shared<StoreRankBoard>(session.world);
  const auto& board = session.world.group().impl()->world->board;
  if (board) {
    tracking.rank_reports =
        [board, reports = std::make_shared<BoardReports>(board->board())] {
          return reports->news();
        };
  }
  Logger& logger = session.world.group().impl()->world->logger;
  logger = logger.also_to(
      [warnings](const LogRecord& record) { warnings->take(record); });
  session.services.tracking =
      std::make_unique<RunTracking>(std::move(tracking));
  session.services.checkpoints->components.push_back(
      run_component(*session.services.tracking));
}

// The session, which reports settings without effect when its last handle is
// destroyed, unless a step or end_training() has done so.
std::shared_ptr<Session> reporting_at_its_end(
    std::shared_ptr<Session> session) {
  Session* const shared = session.get();
  return {shared, [session = std::move(session)](Session* ended) {
            try {
              report_settings_without_effect(*ended);
            } catch (const std::exception&) {
              // The program's logger threw, and a destructor must not.
            }
          }};
}

// Adds the parts that the session owns and that refer to other parts of it.
void add_services(
    Session& session,
    const AcceleratorOptions& options,
    const Environment& environment) {
  session.services.agreement = std::make_unique<RankAgreement>(
      session.world,
      [passes = session.window.num_averaging_passes,
       group = session.world.group().impl()] {
        return DesyncDetector::Position{
            passes->load(), static_cast<std::int64_t>(group->sequence.load())};
      });
  // In other worlds, the board shows what the other ranks do.
  const bool sees_all_ranks =
      session.world.group().impl()->world->board != nullptr &&
      session.world.local_size() == session.world.size();
  if (!sees_all_ranks) session.services.agreement->start_detector();
  ProjectConfiguration project = options.project_configuration;
  if (project.project_dir.empty()) project.set_directories(options.project_dir);
  session.services.checkpoints = std::make_unique<CheckpointState>(
      session.world, *session.services.agreement, std::move(project));
  session.services.checkpoints->progress = progress_options_of_rank(
      {.delay_seconds = kProgressDelaySeconds,
       .disable = !options.progress_bars},
      session.world.is_local_main_process(),
      terminal_variables(environment).has_utf8);
  add_tracking(session, options, environment);
}

}  // namespace

std::shared_ptr<Session> make_session(
    const AcceleratorOptions& options,
    const std::vector<AddedTechnique>& added) {
  const Environment environment = Environment::current();
  WorldOptions world_options = options.world;
  if (options.cpu) world_options.cpu = options.cpu;
  if (options.cpu == true) world_options.device = at::kCPU;
  World world(world_options);
  Decisions decisions = decide(
      options,
      added,
      world,
      world.group().impl()->world->settings,
      environment);
  const TrainingRequest& training = decisions.plan_request.training;
  const std::optional<double> max_gradient_norm =
      training.step.gradient_clipping;
  Mesh mesh(world, decisions.plan.degrees);
  auto session = std::make_shared<Session>(Session{
      .clock = StepClock(decisions.window),
      .loading =
          {.config = options.dataloader_config,
           .rng_types = options.rng_types,
           .device_placement = options.device_placement},
      .world = std::move(world),
      .layout =
          {.settings = std::move(decisions.settings),
           .report = {.ignored = std::move(decisions.ignored)},
           .plan = std::move(decisions.plan),
           .mesh = std::move(mesh),
           .plan_request = std::move(decisions.plan_request),
           .request_sources = std::move(decisions.request_sources)},
      .options =
          {.precision = decisions.precision,
           .autocast = options.autocast,
           .accumulation = options.gradient_accumulation,
           .scheduling = options.scheduler,
           .fused_linear = options.fused_linear,
           .keep_casts = options.keep_casts,
           .fused_optimizers = options.fused_optimizers},
      .scaling = {
          .scaler = std::move(decisions.scaler),
          .max_gradient_norm = max_gradient_norm}});
  session->prepared.step_watch = std::make_shared<StepWatch>();
  session->prepared.step_counts = std::make_shared<StepCounts>();
  session->services.steps = session->world.group().impl()->world->steps;
  session->services.profile_options =
      options.profile.value_or(ProfileOptions());
  session->services.ending.preemption_signals = options.preemption_signals;
  add_services(*session, options, environment);
  return reporting_at_its_end(std::move(session));
}

}  // namespace accelerate::detail
