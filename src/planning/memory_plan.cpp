#include <accelerate/memory_plan.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

std::string_view name_of_precision(FloatType precision) {
  switch (precision) {
    case FloatType::fp32:
      return "no";
    case FloatType::fp16:
      return "fp16";
    case FloatType::bf16:
      return "bf16";
  }
  return "no";
}

std::string precision_text(const MemoryCase& at) {
  return at.uses_fp8 ? "fp8" : std::string(name_of_precision(at.precision));
}

double relative_time_of(const MemoryCase& at) {
  double time = at.recomputes ? 4.0 / 3.0 : 1;
  switch (at.split) {
    case MemorySplit::replicated:
      break;
    case MemorySplit::zero_1:
      time += 0.01;
      break;
    case MemorySplit::zero_2:
      time += 0.02;
      break;
    case MemorySplit::hybrid_shard:
      time += 0.05;
      break;
    case MemorySplit::full_shard:
      time += 0.1;
      break;
  }
  return time + 0.02 * std::log2(static_cast<double>(at.accumulation_steps));
}

std::string bytes_text(std::uint64_t bytes) {
  return detail::format_size(static_cast<double>(bytes));
}

// Formats a table as text, with the first column left-aligned.
std::string columns_of(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - line[i].size(), ' ');
      if (i > 0) row += "  ";
      row += i == 0 ? line[i] + padding : padding + line[i];
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string split_text(const MemoryCase& at) {
  if (at.split == MemorySplit::replicated)
    return std::string(name_of(at.split));
  return detail::format("{} over {}", name_of(at.split), at.num_shards);
}

}  // namespace

std::string_view name_of(MemorySplit split) {
  switch (split) {
    case MemorySplit::replicated:
      return "replicated";
    case MemorySplit::zero_1:
      return "ZeRO-1";
    case MemorySplit::zero_2:
      return "ZeRO-2";
    case MemorySplit::full_shard:
      return "full shard";
    case MemorySplit::hybrid_shard:
      return "hybrid shard";
  }
  return "replicated";
}

MemoryPlan::MemoryPlan(Facts facts, Estimate estimate)
    : facts_(std::move(facts)), estimate_(std::move(estimate)) {
  if (facts_.num_ranks < 1 || facts_.num_local_ranks < 1 ||
      facts_.batch_size < 1) {
    throw ConfigError(detail::format(
        "[planning] num_ranks, num_local_ranks and batch_size must be at least "
        "1, but are {}, {} and {}",
        facts_.num_ranks,
        facts_.num_local_ranks,
        facts_.batch_size));
  }
  if (std::min({facts_.tensor, facts_.context, facts_.pipeline}) < 1 ||
      facts_.num_ranks % (facts_.tensor * facts_.context * facts_.pipeline) !=
          0) {
    throw ConfigError(detail::format(
        "[planning] the product of tensor, context and pipeline must divide "
        "the ranks, but a memory plan has {} ranks with tensor {}, context {} "
        "and pipeline {}",
        facts_.num_ranks,
        facts_.tensor,
        facts_.context,
        facts_.pipeline));
  }
  for (const MemoryCase& at : cases(/*every_degree=*/false))
    rows_.push_back(row(at));
  if (!rows_.empty()) return;
  throw ConfigError(detail::format(
      "[planning] {} ranks with tensor {} and pipeline {} cannot share a model "
      "{} ways; shards divide the ranks that the others leave",
      facts_.num_ranks,
      facts_.tensor,
      facts_.pipeline,
      facts_.num_shards.value_or(1)));
}

std::vector<MemoryCase> MemoryPlan::cases(bool every_degree) const {
  std::vector<MemoryCase> all;
  const auto add = [&](MemorySplit split, int num_shards) {
    if (facts_.num_shards && num_shards != *facts_.num_shards) return;
    for (const FloatType precision : facts_.precisions) {
      for (const bool recomputes : {false, true}) {
        if (facts_.recomputes && recomputes != *facts_.recomputes) continue;
        all.push_back(
            {.split = split,
             .num_ranks = facts_.num_ranks,
             .num_shards = num_shards,
             .precision = precision,
             .recomputes = recomputes,
             .micro_batch = facts_.batch_size,
             .uses_fp8 = facts_.uses_fp8,
             .tensor = facts_.tensor,
             .context = facts_.context,
             .pipeline = facts_.pipeline});
      }
    }
  };
  const int most_shards = facts_.num_ranks / (facts_.tensor * facts_.pipeline);
  add(MemorySplit::replicated, 1);
  if (most_shards == 1) return all;
  add(MemorySplit::zero_1, most_shards);
  add(MemorySplit::zero_2, most_shards);
  add(MemorySplit::full_shard, most_shards);
  for (int shards = 2; shards < most_shards; ++shards) {
    if (most_shards % shards != 0) continue;
    if (every_degree || shards == facts_.num_local_ranks ||
        facts_.num_shards == shards)
      add(MemorySplit::hybrid_shard, shards);
  }
  return all;
}

MemoryRow MemoryPlan::row(const MemoryCase& at) const {
  const bool is_whole = at.split == MemorySplit::replicated;
  const bool has_degrees =
      std::min(
          {at.num_ranks, at.num_shards, at.tensor, at.context, at.pipeline}) >=
      1;
  if (!has_degrees || at.micro_batch < 1 || at.accumulation_steps < 1 ||
      at.num_ranks % (at.num_shards * at.tensor * at.pipeline) != 0 ||
      at.num_ranks % (at.context * at.tensor * at.pipeline) != 0 ||
      (is_whole && at.num_shards > 1)) {
    throw ConfigError(detail::format(
        "[planning] {} over {} of {} ranks, with {} samples in each of {} "
        "micro-steps, cannot be planned; numbers must be at least 1, degrees "
        "must divide the ranks, and a replicated model must have one shard",
        name_of(at.split),
        at.num_shards,
        at.num_ranks,
        at.micro_batch,
        at.accumulation_steps));
  }
  MemoryRow row = estimate_(at);
  row.at = at;
  return row;
}

MemoryRow
MemoryPlan::row(MemorySplit split, FloatType precision, bool recomputes) const {
  for (const MemoryRow& row : rows_) {
    if (row.at.split == split && row.at.precision == precision &&
        row.at.recomputes == recomputes)
      return row;
  }
  throw ConfigError(detail::format(
      "[planning] the plan has no row for {} with precision {}: it is for {} "
      "ranks, {} of them on a node; change its options, or call row() with a "
      "MemoryCase",
      name_of(split),
      name_of_precision(precision),
      facts_.num_ranks,
      facts_.num_local_ranks));
}

// Memory grows with the micro-batch, so a binary search finds the largest that
// fits.
std::int64_t MemoryPlan::largest_micro_batch(
    MemoryCase at,
    std::uint64_t num_bytes) const {
  const auto fits = [&](std::int64_t micro_batch) {
    at.micro_batch = micro_batch;
    at.accumulation_steps = (facts_.batch_size + micro_batch - 1) / micro_batch;
    return row(at).total() <= num_bytes;
  };
  if (!fits(1)) return 0;
  std::int64_t fitting = 1;
  std::int64_t beyond = facts_.batch_size + 1;
  while (beyond - fitting > 1) {
    const std::int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

std::vector<MemoryFit> MemoryPlan::fits(std::uint64_t num_bytes) const {
  std::vector<MemoryFit> found;
  for (MemoryCase at : cases(/*every_degree=*/true)) {
    const std::int64_t most = largest_micro_batch(at, num_bytes);
    if (most == 0) continue;
    at.accumulation_steps = (facts_.batch_size + most - 1) / most;
    // Evens out the micro-steps without changing their number.
    at.micro_batch =
        (facts_.batch_size + at.accumulation_steps - 1) / at.accumulation_steps;
    found.push_back({row(at), relative_time_of(at)});
  }
  std::ranges::stable_sort(found, {}, &MemoryFit::relative_time);
  return found;
}

MemoryRow MemoryPlan::smallest() const {
  std::vector<MemoryRow> all;
  for (MemoryCase at : cases(/*every_degree=*/true)) {
    at.micro_batch = 1;
    at.accumulation_steps = facts_.batch_size;
    all.push_back(row(at));
  }
  return *std::ranges::min_element(
      all, [](const MemoryRow& a, const MemoryRow& b) {
        return a.total() < b.total();
      });
}

std::int64_t MemoryPlan::starting_batch_size(
    std::uint64_t num_bytes,
    MemorySplit split,
    FloatType precision,
    bool recomputes) const {
  MemoryCase at = row(split, precision, recomputes).at;
  return std::max<std::int64_t>(largest_micro_batch(at, num_bytes), 1);
}

std::string MemoryPlan::table() const {
  std::vector<std::vector<std::string>> lines{
      {"split",
       "precision",
       "recompute",
       "weights",
       "gradients",
       "optimizer",
       "buckets",
       "units",
       "activations",
       "workspace",
       "total"}};
  const bool has_disk = std::ranges::any_of(
      rows_, [](const MemoryRow& row) { return row.on_disk > 0; });
  if (has_disk) lines.front().emplace_back("on disk");
  for (const MemoryRow& row : rows_) {
    lines.push_back(
        {split_text(row.at),
         precision_text(row.at),
         row.at.recomputes ? "yes" : "no",
         bytes_text(row.weights),
         bytes_text(row.gradients),
         bytes_text(row.optimizer_state),
         bytes_text(row.buckets),
         bytes_text(row.units),
         bytes_text(row.activations),
         bytes_text(row.workspace),
         bytes_text(row.total())});
    if (has_disk) lines.back().push_back(bytes_text(row.on_disk));
  }
  std::string text = columns_of(lines);
  for (const std::string& note : facts_.notes) text += note + "\n";
  return text;
}

std::string MemoryPlan::explain_fits(
    std::uint64_t num_bytes,
    std::size_t max_fits) const {
  std::vector<MemoryFit> found = fits(num_bytes);
  if (found.empty()) {
    const MemoryRow least = smallest();
    return detail::format(
        "Nothing fits into {}: the smallest needs {} per rank ({}, precision "
        "{}, {}, one sample at a time).\n",
        bytes_text(num_bytes),
        bytes_text(least.total()),
        split_text(least.at),
        precision_text(least.at),
        least.at.recomputes ? "recomputing activations"
                            : "keeping activations");
  }
  found.resize(std::min(found.size(), max_fits));
  std::vector<std::vector<std::string>> lines{
      {"fits, cheapest first",
       "precision",
       "recompute",
       "micro-batch",
       "accumulation",
       "per rank",
       "time"}};
  const bool has_disk = std::ranges::any_of(
      found, [](const MemoryFit& fit) { return fit.row.on_disk > 0; });
  if (has_disk) lines.front().emplace_back("on disk");
  for (const MemoryFit& fit : found) {
    const MemoryCase& at = fit.row.at;
    const auto hundredths =
        static_cast<std::int64_t>(std::lround(fit.relative_time * 100));
    lines.push_back(
        {split_text(at),
         precision_text(at),
         at.recomputes ? "yes" : "no",
         std::to_string(at.micro_batch),
         std::to_string(at.accumulation_steps),
         bytes_text(fit.row.total()),
         detail::format(
             "{}.{}{} x",
             hundredths / 100,
             hundredths / 10 % 10,
             hundredths % 10)});
    if (has_disk) lines.back().push_back(bytes_text(fit.row.on_disk));
  }
  return columns_of(lines);
}

}  // namespace accelerate
