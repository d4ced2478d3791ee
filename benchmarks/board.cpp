// What recording the beginning and end of a collective on the board costs a
// rank, and how long the launcher takes to check the pages of eight ranks.
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "launch/board/board_writer.h"
#include "launch/board/hang_detector.h"
#include "launch/board/rank_activity.h"
#include "report.h"

namespace {

using namespace accelerate;
using Clock = std::chrono::steady_clock;

constexpr int kRuns = 15;

template <class Body>
double nanoseconds_per_call(int num_calls, Body&& body) {
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < num_calls; ++i) body();
    times.push_back(
        std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
        num_calls);
  }
  return benchmarks::median(times);
}

void report(const char* metric, double value, const char* unit) {
  benchmarks::report({"board", metric, value, unit, 0, 0, kRuns});
}

}  // namespace

int main() {
  constexpr int kRanks = 8;
  const detail::Board board = detail::Board::create({.num_pages = kRanks});
  std::vector<std::unique_ptr<detail::BoardWriter>> writers;
  for (int rank = 0; rank < kRanks; ++rank) {
    writers.push_back(std::make_unique<detail::BoardWriter>(
        detail::Board::open(board.ticket()), rank, rank));
  }
  const std::array<std::int64_t, 2> shape{1024, 768};
  const detail::NotedCall call{
      .operation = "all_reduce",
      .dtype = "Float",
      .shape = shape,
      .place = {"src/comm/group.cpp", 120}};
  for (const auto& writer : writers) {
    for (const char* const group : {"world", "replicate", "shard", "tensor"}) {
      detail::BoardLaneWriter* const lane = writer->add_lane(group);
      lane->end(lane->begin(call));
    }
  }
  detail::BoardLaneWriter* const lane = writers.front()->add_lane("world");
  report(
      "note_ns",
      nanoseconds_per_call(1'000'000, [&] { lane->end(lane->begin(call)); }),
      "ns");
  report(
      "phase_ns",
      nanoseconds_per_call(
          1'000'000,
          [&] {
            const detail::BoardPhaseScope scope(
                writers.front().get(), detail::RankPhase::forward);
          }),
      "ns");
  detail::HangDetector detector(std::chrono::seconds(10));
  report(
      "look_us",
      nanoseconds_per_call(
          200,
          [&] {
            std::vector<detail::ObservedRank> ranks;
            for (auto& activity : detail::read_activities(board))
              ranks.push_back({std::move(activity), 'R'});
            detector.look(ranks, Clock::now());
          }) /
          1000,
      "us");
}
