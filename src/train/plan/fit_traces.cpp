#include "train/plan/fit_traces.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace accelerate::detail {

namespace {

// Smaller blocks can be missing from one of the traces.
constexpr double kSmallBytes = 128 << 10;

struct MomentaryBlocks {
  std::size_t num_events = 0;
  double largest_bytes = 0;
};

/// Reads a trace from the beginning.
class TraceReader {
 public:
  explicit TraceReader(const StepTrace& trace) : trace_(trace) {}

  [[nodiscard]] bool is_at_end() const { return at_ == trace_.events.size(); }
  [[nodiscard]] const TraceEvent& event() const { return trace_.events[at_]; }
  void advance(std::size_t num_events = 1) { at_ += num_events; }

  /// Blocks allocated from here on that are freed before any other event.
  [[nodiscard]] MomentaryBlocks momentary_blocks() const {
    MomentaryBlocks found;
    std::unordered_set<std::size_t> taken;
    for (std::size_t i = at_; i < trace_.events.size(); ++i) {
      const TraceEvent& each = trace_.events[i];
      if (each.kind == TraceEvent::Kind::allocate) {
        taken.insert(each.index);
        found.largest_bytes = std::max(found.largest_bytes, each.fixed_bytes);
      } else if (
          each.kind != TraceEvent::Kind::release ||
          taken.erase(each.index) == 0) {
        return {};
      }
      if (!taken.empty()) continue;
      found.num_events = i + 1 - at_;
      return found;
    }
    return {};
  }

  /// True for blocks that are small, or no larger than earlier blocks of the
  /// same operator.
  [[nodiscard]] bool may_leave_out(const MomentaryBlocks& blocks) const {
    if (blocks.num_events == 0) return false;
    const auto found = largest_.find(event().last_operator);
    return blocks.largest_bytes < kSmallBytes ||
        (found != largest_.end() && blocks.largest_bytes <= found->second);
  }
  /// Records that blocks that begin here are in the fitted trace.
  void note(const MomentaryBlocks& blocks) {
    double& largest = largest_[event().last_operator];
    largest = std::max(largest, blocks.largest_bytes);
  }

 private:
  const StepTrace& trace_;
  std::size_t at_ = 0;
  std::unordered_map<std::size_t, double> largest_;  // by operator
};

class TraceFit {
 public:
  TraceFit(
      const StepTrace& few,
      const StepTrace& more,
      std::int64_t num_samples)
      : few_(few), more_(more), num_samples_(static_cast<double>(num_samples)) {
    fitted_.num_allocations = few.num_allocations;
  }

  std::optional<StepTrace> run() {
    while (!few_.is_at_end() || !more_.is_at_end()) {
      const MomentaryBlocks in_few = few_.momentary_blocks();
      const MomentaryBlocks in_more = more_.momentary_blocks();
      const bool are_alike = !few_.is_at_end() && !more_.is_at_end() &&
          few_.event().last_operator == more_.event().last_operator &&
          in_few.num_events == in_more.num_events;
      if (!are_alike && more_.may_leave_out(in_more)) {
        more_.advance(in_more.num_events);
      } else if (!are_alike && few_.may_leave_out(in_few)) {
        few_.advance(in_few.num_events);
      } else if (few_.is_at_end() || more_.is_at_end()) {
        return std::nullopt;
      } else {
        if (in_few.num_events > 0) few_.note(in_few);
        if (in_more.num_events > 0) more_.note(in_more);
        // Blocks that differ can have others within.
        const std::size_t count = are_alike ? in_few.num_events : 0;
        for (std::size_t i = 0; i < std::max<std::size_t>(count, 1); ++i) {
          if (!add()) return std::nullopt;
        }
      }
    }
    return std::move(fitted_);
  }

 private:
  // Adds the next event of both traces; returns false if the events differ.
  bool add() {
    TraceEvent event = few_.event();
    const TraceEvent& other = more_.event();
    if (event.kind != other.kind ||
        event.is_kernels_own != other.is_kernels_own)
      return false;
    if (event.kind == TraceEvent::Kind::allocate) {
      in_more_[event.index] = other.index;
    } else if (
        event.kind == TraceEvent::Kind::release
            ? place_in_more(event.index) != other.index
            : event.index != other.index) {
      return false;
    }
    if (place_in_more(event.allocation) != other.allocation) return false;
    const double difference = other.fixed_bytes - event.fixed_bytes;
    event.fixed_bytes -= difference;
    event.bytes_per_sample = difference / num_samples_;
    fitted_.events.push_back(event);
    few_.advance();
    more_.advance();
    return true;
  }

  // The allocation of the larger run that matches `allocation` of the smaller.
  [[nodiscard]] std::size_t place_in_more(std::size_t allocation) const {
    const auto found = in_more_.find(allocation);
    return found == in_more_.end() ? TraceEvent::kNone : found->second;
  }

  TraceReader few_;
  TraceReader more_;
  double num_samples_;
  StepTrace fitted_;
  std::unordered_map<std::size_t, std::size_t> in_more_;
};

bool is_freed_at_once(const StepTrace& trace, std::size_t place) {
  const TraceEvent& event = trace.events[place];
  if (event.kind != TraceEvent::Kind::allocate ||
      place + 1 == trace.events.size())
    return false;
  const TraceEvent& next = trace.events[place + 1];
  return next.kind == TraceEvent::Kind::release && next.index == event.index;
}

}  // namespace

double bytes_of(const TraceEvent& event, std::int64_t samples) {
  const auto count = static_cast<double>(samples);
  const double size = event.fixed_bytes + event.bytes_per_sample * count;
  if (!event.grows_less) return std::max(size, 0.0);
  const double of_many =
      event.fixed_bytes_of_many + event.bytes_per_sample_of_many * count;
  return std::max(std::min(size, of_many), 0.0);
}

double peak_bytes(const StepTrace& trace, std::int64_t samples) {
  std::vector<double> sizes(trace.num_allocations, 0);
  double now = 0;
  double peak = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEvent::Kind::allocate) {
      now += sizes[event.index] = bytes_of(event, samples);
      peak = std::max(peak, now);
    } else if (event.kind == TraceEvent::Kind::release) {
      now -= sizes[event.index];
    }
  }
  return peak;
}

bool has_large_scratch(const StepTrace& trace, std::int64_t samples) {
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (is_freed_at_once(trace, i) && trace.events[i].bytes_per_sample > 0 &&
        bytes_of(trace.events[i], samples) >= kSmallBytes)
      return true;
  }
  return false;
}

void limit_scratch(StepTrace& trace, const StepTrace& of_many) {
  const bool are_alike = std::ranges::equal(
      trace.events,
      of_many.events,
      [](const TraceEvent& one, const TraceEvent& other) {
        return one.kind == other.kind && one.index == other.index &&
            one.last_operator == other.last_operator;
      });
  if (!are_alike) return;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    TraceEvent& event = trace.events[i];
    const TraceEvent& many = of_many.events[i];
    if (!is_freed_at_once(trace, i) ||
        many.bytes_per_sample >= event.bytes_per_sample)
      continue;
    event.grows_less = true;
    event.fixed_bytes_of_many = many.fixed_bytes;
    event.bytes_per_sample_of_many = many.bytes_per_sample;
  }
}

std::optional<StepTrace> fit_traces(
    const StepTrace& few,
    const StepTrace& more,
    std::int64_t num_samples) {
  return TraceFit(few, more, num_samples).run();
}

}  // namespace accelerate::detail
