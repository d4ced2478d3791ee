#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include <accelerate/elastic.h>
#include <accelerate/error.h>

#include "base/require.h"
#include "config/environment.h"
#include "config/settings.h"
#include "config/thread_environment.h"
#include "launch/elastic/elastic_seat.h"
#include "train/elastic/elastic_run.h"

namespace accelerate {

namespace {

using detail::ElasticPlace;
using detail::ElasticRun;
using detail::ElasticSeat;
using detail::RankVariables;

// A launcher notices the end of a process slightly later than the process's
// peers, and that of a silent machine possibly much later.
std::chrono::milliseconds patience_of(const ElasticSeat& seat) {
  return std::chrono::seconds(seat.spans_machines() ? 30 : 5);
}

// Null if the launcher replaces no ranks.
std::unique_ptr<ElasticSeat> find_seat(const RankVariables& identity) {
  if (identity.board.empty()) return nullptr;
  try {
    detail::Board board = detail::Board::open(identity.board);
    if (identity.board_page >= board.num_pages()) return nullptr;
    auto seat = std::make_unique<ElasticSeat>(
        std::move(board),
        identity.board_page,
        static_cast<std::uint32_t>(identity.first_generation));
    return seat->is_elastic() ? std::move(seat) : nullptr;
  } catch (const detail::SegmentError&) {
    return nullptr;
  }
}

// The variables as if the launcher had started this process for the generation.
std::map<std::string, std::string> variables_of(const ElasticPlace& place) {
  const std::string rank = std::to_string(place.rank);
  const std::string size = std::to_string(place.num_ranks);
  return {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"ROLE_RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", std::to_string(place.num_local_ranks)},
      {"ROLE_WORLD_SIZE", size},
      {detail::kGenerationVariable, std::to_string(place.generation)}};
}

// Fills in what the program left unset with the launcher's values.
void resolve(ElasticRun& run, const detail::Settings& settings) {
  ElasticOptions& options = run.options;
  const auto use = [&](const char* key) {
    run.used_settings.emplace_back(key);
  };
  if (!options.redundancy) {
    use("redundancy");
    options.redundancy = settings.text("redundancy") == "neighbour"
        ? Redundancy::neighbour
        : Redundancy::none;
  }
  if (!options.redundancy_steps) {
    use("redundancy_steps");
    options.redundancy_steps =
        static_cast<int>(*settings.integer("redundancy_steps"));
  }
  if (!options.batch) {
    use("elastic_batch");
    options.batch = settings.text("elastic_batch") == "per_rank"
        ? ElasticBatch::per_rank
        : ElasticBatch::global;
  }
}

std::shared_ptr<ElasticRun> make_run(
    const ElasticOptions& options,
    ElasticSeat* seat) {
  const detail::Environment environment = detail::Environment::current();
  auto run = std::make_shared<ElasticRun>();
  run->options = options;
  resolve(*run, detail::launch_settings(environment));
  const int steps = detail::require_at_least(
      "train", "redundancy_steps", *run->options.redundancy_steps, 1);
  if (run->options.redundancy == Redundancy::neighbour)
    run->kept.steps_between = steps;
  run->identity = detail::read_rank_variables(environment);
  run->seat = seat;
  run->most_ranks = seat != nullptr ? seat->most_ranks() : run->identity.size;
  return run;
}

ElasticEnd end_of(const ElasticRun& run) {
  return run.is_preempted ? ElasticEnd::preempted : ElasticEnd::finished;
}

}  // namespace

ElasticEnd run_elastic(
    const std::function<void(ElasticContext&)>& function,
    const ElasticOptions& options) {
  const std::unique_ptr<ElasticSeat> seat =
      find_seat(detail::read_rank_variables(detail::Environment::current()));
  if (seat == nullptr) {
    const auto run = make_run(options, nullptr);
    ElasticContext context(run);
    function(context);
    return end_of(*run);
  }
  while (true) {
    const ElasticPlace place = seat->take_place();
    if (place.rank < 0) return ElasticEnd::left;
    const detail::ThreadEnvironment environment(variables_of(place));
    const auto run = make_run(options, seat.get());
    try {
      ElasticContext context(run);
      function(context);
    } catch (const DistributedError&) {
      if (seat->was_broken(patience_of(*seat))) continue;
      throw;
    } catch (const std::exception&) {
      // A peer's end may cause any exception, but these arrive after the
      // launcher has noticed.
      if (seat->was_broken(std::chrono::milliseconds(0))) continue;
      throw;
    }
    if (run->is_resizing) continue;
    seat->withdraw();
    return end_of(*run);
  }
}

}  // namespace accelerate
