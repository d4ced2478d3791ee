#include "cli/watch/report_page.h"

#include <set>
#include <utility>

#include "cli/watch/web/page.h"
#include "cli/watch/web/run_json.h"

namespace accelerate::cli {

namespace {

constexpr std::size_t kCurveColumns = 1000;
constexpr std::size_t kSystemColumns = 400;
constexpr std::size_t kReportRankSamples = 300;

}  // namespace

std::string report_page(const std::vector<std::unique_ptr<RunRecord>>& runs) {
  using Members = std::vector<std::pair<std::string, std::string>>;
  std::vector<std::string> about, system, ranks, events;
  std::set<std::string> names;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = *runs[i];
    about.push_back(run_json(run, i));
    system.push_back(system_json(run, kSystemColumns));
    ranks.push_back(ranks_json(run, kReportRankSamples));
    events.push_back(events_json(run, true));
    for (const auto& [name, points] : run.series()) names.insert(name);
  }
  CurveRequest request;
  request.num_columns = kCurveColumns;
  Members series;
  for (const std::string& name : names) {
    Members curves;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i]->series().contains(name))
        curves.emplace_back(
            std::to_string(i), curve_json(*runs[i], name, request));
    }
    series.emplace_back(name, json_object(curves));
  }
  return make_page(json_object(
      {{"runs", json_list(about)},
       {"series", json_object(series)},
       {"system", json_list(system)},
       {"ranks", json_list(ranks)},
       {"events", json_list(events)}}));
}

}  // namespace accelerate::cli
