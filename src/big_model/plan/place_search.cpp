#include "big_model/plan/block_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr std::size_t kMostBlocksExactly = 16;
constexpr std::size_t kMostBufferSizes = 16;
constexpr int kMostTiesApart = 3;
constexpr double kNever = std::numeric_limits<double>::infinity();

// A placement of the first blocks.
struct Way {
  ForwardTimeline timeline;
  int current = 0;     // the device being filled
  double used = 0;     // bytes on it
  double host = 0;     // bytes in host memory
  double bound = 0;    // no continuation is faster
  int last_step = -1;  // into the steps of all ways
};

bool is_no_worse(const Way& a, const Way& b) {
  const ForwardTimeline& x = a.timeline;
  const ForwardTimeline& y = b.timeline;
  return a.current == b.current && x.device == y.device &&
      x.compute <= y.compute && a.used <= b.used && a.host <= b.host &&
      x.disk <= y.disk && x.link <= y.link && x.free_buffer <= y.free_buffer &&
      x.other_buffer <= y.other_buffer;
}

// One search, with buffers of one size and given places of tied blocks.
class PlaceSearch {
 public:
  PlaceSearch(
      const std::vector<PlanBlock>& blocks,
      const PlanLimits& limits,
      const MachineSpeeds& speeds,
      std::vector<BlockPlace> tie_places,
      double buffer)
      : blocks_(blocks),
        limits_(limits),
        speeds_(speeds),
        tie_places_(std::move(tie_places)),
        buffer_(buffer) {
    limits_.devices.front() -= 2 * buffer;
    if (limits_.host && limits_.has_accelerator) *limits_.host -= 2 * buffer;
    seconds_left_.assign(blocks.size() + 1, 0);
    bytes_left_.assign(blocks.size() + 1, 0);
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const PlanBlock& block = blocks[i];
      seconds_left_[i] = seconds_left_[i + 1] + block.seconds;
      bytes_left_[i] = bytes_left_[i + 1];
      if (block.tie < 0) {
        bytes_left_[i] += block.num_bytes;
      } else {
        take_tied(block);
      }
    }
  }

  // The best places that take less than `seconds`, which is set to their time.
  std::optional<std::vector<BlockPlace>> run(
      double& seconds,
      std::size_t most_ways) {
    if (!is_possible()) return std::nullopt;
    std::vector<Way> ways(1);
    for (std::size_t i = 0; i < blocks_.size() && !ways.empty(); ++i) {
      std::vector<Way> next;
      for (const Way& way : ways) extend(way, i, seconds, next);
      ways = frontier(std::move(next), most_ways);
    }
    const auto best =
        std::ranges::min_element(ways, [](const Way& a, const Way& b) {
          return a.timeline.compute < b.timeline.compute;
        });
    if (best == ways.end() || best->timeline.compute >= seconds)
      return std::nullopt;
    seconds = best->timeline.compute;
    return places_of(*best);
  }

 private:
  void take_tied(const PlanBlock& block) {
    const BlockPlace place = tie_places_[static_cast<std::size_t>(block.tie)];
    if (place == 0) limits_.devices.front() -= block.num_bytes;
    if (place == kFromHost && limits_.host) *limits_.host -= block.num_bytes;
  }

  [[nodiscard]] bool is_possible() const {
    if (limits_.devices.front() < 0) return false;
    if (!limits_.host) {
      return std::ranges::find(tie_places_, kFromHost) == tie_places_.end();
    }
    return *limits_.host >= 0;
  }

  void extend(
      const Way& way,
      std::size_t i,
      double seconds,
      std::vector<Way>& next) {
    const PlanBlock& block = blocks_[i];
    if (block.tie >= 0) {
      const auto place = tie_places_[static_cast<std::size_t>(block.tie)];
      if (place == 0 || block.num_bytes_fetched <= buffer_)
        add(way, i, place, seconds, next);
      return;
    }
    const int num_devices = static_cast<int>(limits_.devices.size());
    for (int device = way.current; device < num_devices; ++device) {
      const double used = device == way.current ? way.used : 0;
      if (used + block.num_bytes <=
          limits_.devices[static_cast<std::size_t>(device)])
        add(way, i, device, seconds, next);
    }
    if (block.num_bytes_fetched > buffer_) return;
    if (limits_.host && way.host + block.num_bytes <= *limits_.host)
      add(way, i, kFromHost, seconds, next);
    add(way, i, kFromDisk, seconds, next);
  }

  void add(
      const Way& way,
      std::size_t i,
      BlockPlace place,
      double seconds,
      std::vector<Way>& next) {
    Way longer = way;
    const PlanBlock& block = blocks_[i];
    if (block.tie < 0 && place >= 0) {
      if (place != way.current) longer.used = 0;
      longer.current = place;
      longer.used += block.num_bytes;
    }
    if (block.tie < 0 && place == kFromHost) longer.host += block.num_bytes;
    longer.timeline.add(block, place, speeds_, limits_.has_accelerator);
    longer.bound = bound_of(longer, i + 1);
    if (longer.bound >= seconds) return;
    longer.last_step = static_cast<int>(steps_.size());
    steps_.emplace_back(way.last_step, place);
    next.push_back(longer);
  }

  // All blocks have to compute, and what exceeds the remaining memory has to be
  // fetched.
  [[nodiscard]] double bound_of(const Way& way, std::size_t i) const {
    double room = -way.used;
    for (auto device = static_cast<std::size_t>(way.current);
         device < limits_.devices.size();
         ++device) {
      room += limits_.devices[device];
    }
    const double fetched = bytes_left_[i] - room;
    const double from_disk =
        fetched - (limits_.host ? *limits_.host - way.host : 0);
    double bound = way.timeline.compute + seconds_left_[i];
    // Rounding must not make a bound exceed the value that it bounds.
    constexpr double kSlack = 1 - 1e-9;
    if (fetched > 0 && limits_.has_accelerator)
      bound = std::max(
          bound,
          (way.timeline.link + fetched / speeds_.link_bytes_per_second) *
              kSlack);
    if (from_disk > 0)
      bound = std::max(
          bound,
          (way.timeline.disk + from_disk / speeds_.disk_bytes_per_second) *
              kSlack);
    return bound;
  }

  // The ways that no other one dominates, most promising first.
  static std::vector<Way> frontier(
      std::vector<Way> ways,
      std::size_t most_ways) {
    std::ranges::stable_sort(ways, [](const Way& a, const Way& b) {
      return std::pair(a.bound, a.timeline.compute) <
          std::pair(b.bound, b.timeline.compute);
    });
    std::vector<Way> kept;
    for (const Way& way : ways) {
      if (kept.size() == most_ways) break;
      const bool is_superfluous = std::ranges::any_of(
          kept, [&](const Way& other) { return is_no_worse(other, way); });
      if (!is_superfluous) kept.push_back(way);
    }
    return kept;
  }

  [[nodiscard]] std::vector<BlockPlace> places_of(const Way& way) const {
    std::vector<BlockPlace> places;
    for (int i = way.last_step; i >= 0;) {
      const auto& [before, place] = steps_[static_cast<std::size_t>(i)];
      places.push_back(place);
      i = before;
    }
    std::ranges::reverse(places);
    return places;
  }

  const std::vector<PlanBlock>& blocks_;
  PlanLimits limits_;
  const MachineSpeeds& speeds_;
  std::vector<BlockPlace> tie_places_;
  double buffer_;
  std::vector<double> seconds_left_;
  std::vector<double> bytes_left_;
  std::vector<std::pair<int, BlockPlace>> steps_;
};

// Zero, for a fully resident model, and the sizes of blocks.
std::vector<double> buffer_sizes(const std::vector<PlanBlock>& blocks) {
  std::vector<double> sizes{0};
  for (const PlanBlock& block : blocks)
    sizes.push_back(block.num_bytes_fetched);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.size() <= kMostBufferSizes) return sizes;
  std::vector<double> some;
  for (std::size_t i = 0; i < kMostBufferSizes; ++i)
    some.push_back(sizes[i * (sizes.size() - 1) / (kMostBufferSizes - 1)]);
  return some;
}

// Every combination of places for the groups of tied blocks.
std::vector<std::vector<BlockPlace>> tie_places(int num_ties) {
  std::vector<std::vector<BlockPlace>> all{{}};
  for (int i = 0; i < num_ties; ++i) {
    std::vector<std::vector<BlockPlace>> longer;
    for (const auto& places : all) {
      for (const BlockPlace place : {0, kFromHost, kFromDisk}) {
        longer.push_back(places);
        longer.back().push_back(place);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Moves blocks closer if that costs no time.
void bring_closer(
    const std::vector<PlanBlock>& blocks,
    const PlanLimits& limits,
    const MachineSpeeds& speeds,
    std::vector<BlockPlace>& places) {
  const auto seconds = [&] {
    return forward_seconds(blocks, places, speeds, limits.has_accelerator);
  };
  double best = seconds();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const BlockPlace closer : {0, kFromHost}) {
      const BlockPlace now = places[i];
      if (now >= 0 || (now == kFromHost && closer == kFromHost) ||
          blocks[i].tie >= 0)
        continue;
      places[i] = closer;
      const double then =
          keeps_limits(blocks, places, limits) ? seconds() : kNever;
      if (then <= best) {
        best = then;
        break;
      }
      places[i] = now;
    }
  }
}

}  // namespace

std::optional<std::vector<BlockPlace>> find_places(
    const std::vector<PlanBlock>& given,
    const PlanLimits& limits,
    const MachineSpeeds& speeds) {
  std::vector<PlanBlock> blocks = given;
  int num_ties = 0;
  for (const PlanBlock& block : blocks)
    num_ties = std::max(num_ties, block.tie + 1);
  if (num_ties > kMostTiesApart) {
    // If there are many groups, they are placed together.
    for (PlanBlock& block : blocks) block.tie = std::min(block.tie, 0);
    num_ties = 1;
  }
  std::vector<std::size_t> widths{64};
  widths.push_back(
      blocks.size() <= kMostBlocksExactly
          ? std::numeric_limits<std::size_t>::max()
          : std::max<std::size_t>(64, 20000 / blocks.size()));
  if (widths[0] == widths[1]) widths.pop_back();
  double seconds = kNever;
  std::optional<std::vector<BlockPlace>> best;
  for (const std::size_t width : widths) {
    for (const auto& ties : tie_places(num_ties)) {
      for (const double buffer : buffer_sizes(blocks)) {
        auto found = PlaceSearch(blocks, limits, speeds, ties, buffer)
                         .run(seconds, width);
        if (found) best = std::move(found);
      }
    }
  }
  if (best) bring_closer(blocks, limits, speeds, *best);
  return best;
}

}  // namespace accelerate::detail
