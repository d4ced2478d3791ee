#include "parallel/disk/disk_shards.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/disk_directories.h"
#include "gate/gate.h"
#include "modules/disk_buffers.h"
#include "params/optimizer_algorithms.h"

namespace accelerate::detail {

namespace {

// As far as there is room.
constexpr std::size_t kPartsAhead = 3;

// The tensors of an optimizer's state for a parameter that have its size.
std::vector<at::Tensor> moments_of(
    const torch::optim::Optimizer& optimizer,
    const OptimizerAlgorithm& algorithm,
    const at::Tensor& parameter) {
  std::vector<at::Tensor> moments;
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return moments;
  const StateDict state = algorithm.state_of(*found->second);
  for (const auto& [name, value] : state.values()) {
    const auto* const tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && tensor->defined() &&
        tensor->sizes() == parameter.sizes()) {
      moments.push_back(*tensor);
    }
  }
  return moments;
}

}  // namespace

DiskShards::DiskShards(
    const DiskRequest& request,
    int rank,
    c10::Device device,
    std::int64_t largest_shard) {
  const auto complaints = directory_complaints(request);
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  const auto bytes = static_cast<std::int64_t>(disk_buffer_bytes(
      {.elements = request.buffer_elements,
       .count = request.buffer_count,
       .largest_shard = largest_shard}));
  part_bytes_ = bytes / kDiskParts;
  elements_left_ = request.elements_in_memory.value_or(0);
  const auto make = [&](const std::string& directory, std::string_view what) {
    return std::make_shared<DiskTensors>(DiskTensors::Options{
        .directory = directory,
        .what = format("the {} of rank {}", what, rank),
        .memory_bytes = static_cast<std::uint64_t>(bytes),
        .reads_ahead = request.overlaps_reads,
        .writes_behind = request.overlaps_writes,
        .device = device});
  };
  if (request.keeps_optimizer_state)
    state_ = make(request.directory, "optimizer state");
  if (request.keeps_parameters) {
    parameters_ = make(
        request.parameter_directory.empty() ? request.directory
                                            : request.parameter_directory,
        "parameters");
  }
}

DiskShards::~DiskShards() = default;

MakeTensor DiskShards::state_maker() const {
  if (!state_) return nullptr;
  return
      [disk = state_](at::IntArrayRef sizes, const at::TensorOptions& options) {
        return disk->make(sizes, options);
      };
}

void DiskShards::keep(const at::Tensor& local, const at::Tensor& rows) {
  locals_.push_back(local);
  rows_of_.emplace(local.unsafeGetTensorImpl(), rows);
  const bool is_master = rows.defined();
  const at::Tensor& parameter = is_master ? rows : local;
  const bool stays = parameter.numel() <= elements_left_;
  if (stays) elements_left_ -= parameter.numel();
  if (parameters_ && !stays) parameters_->add(parameter);
  if (!is_master) return;
  if (state_) {
    state_->add(local);
  } else if (parameters_ && !stays) {
    parameters_->add(local);
  }
}

void DiskShards::bind(torch::optim::Optimizer& optimizer) {
  const auto steps_on_shards = [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& stepped) {
      return rows_of_.contains(stepped.unsafeGetTensorImpl());
    });
  };
  if (std::ranges::none_of(optimizer.param_groups(), steps_on_shards)) return;
  const OptimizerAlgorithm* const algorithm = find_algorithm(optimizer);
  if (algorithm == nullptr) {
    throw ConfigError(
        "[parallel] an optimizer of shards in files must be SGD, Adam, AdamW, "
        "Adagrad or RMSprop, but is of another class, which may not step on a "
        "part of its parameters at a time; use one of these, or keep shards in "
        "memory");
  }
  if (!state_) return;
  for (const at::Tensor& local : locals_) {
    for (const at::Tensor& moment : moments_of(optimizer, *algorithm, local))
      state_->add(moment);
  }
}

void DiskShards::reserve(const torch::optim::Optimizer& optimizer) const {
  const OptimizerAlgorithm& algorithm = *find_algorithm(optimizer);
  std::uint64_t bytes = 0;
  for (const auto& group : optimizer.param_groups()) {
    const int count = algorithm.num_moments(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const auto present =
          static_cast<int>(moments_of(optimizer, algorithm, parameter).size());
      bytes += static_cast<std::uint64_t>(std::max(count - present, 0)) *
          ScratchFile::rounded(parameter.nbytes());
    }
  }
  state_->reserve(bytes);
}

void DiskShards::forget_unused() const {
  for (const auto& disk : {state_, parameters_}) {
    if (disk) disk->forget_unused();
  }
}

std::vector<ParameterPart> DiskShards::step_parts(
    const torch::optim::Optimizer& optimizer) {
  forget_unused();
  // A disk that is full must not end a step half way.
  if (state_) reserve(optimizer);
  std::vector<at::Tensor> locals;
  for (const auto& group : optimizer.param_groups()) {
    std::ranges::copy_if(
        group.params(),
        std::back_inserter(locals),
        [&](const at::Tensor& parameter) {
          return rows_of_.contains(parameter.unsafeGetTensorImpl());
        });
  }
  return parts_of(locals);
}

std::vector<ParameterPart> DiskShards::parts_of(
    std::span<const at::Tensor> locals) const {
  std::vector<ParameterPart> parts;
  std::int64_t bytes = 0;
  for (const at::Tensor& local : locals) {
    const auto needed =
        static_cast<std::int64_t>(local.nbytes()) * kDiskStepTensors;
    if (parts.empty() || bytes + needed > part_bytes_) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(local);
    bytes += needed;
  }
  return parts;
}

DiskShards::StepTensors DiskShards::tensors_of(
    const torch::optim::Optimizer& optimizer,
    const ParameterPart& part,
    bool expects_gradients) {
  const OptimizerAlgorithm& algorithm = *find_algorithm(optimizer);
  StepTensors tensors;
  for (const at::Tensor& parameter : part) {
    // A parameter without a gradient is not stepped on.
    if (!parameter.grad().defined() && !expects_gradients) continue;
    if (parameter.grad().defined())
      tensors.gradients.push_back(parameter.grad());
    tensors.changed.push_back(parameter);
    for (at::Tensor& moment : moments_of(optimizer, algorithm, parameter))
      tensors.changed.push_back(std::move(moment));
  }
  return tensors;
}

void DiskShards::before_part(
    const torch::optim::Optimizer& optimizer,
    std::span<const ParameterPart> parts) {
  if (expects_steps_ && state_ && has_room_.insert(&optimizer).second)
    reserve(optimizer);
  const auto fetch = [](const StepTensors& tensors) {
    begin_fetch(tensors.gradients);
    begin_fetch(tensors.changed);
  };
  const StepTensors now = tensors_of(optimizer, parts.front(), false);
  fetch(now);
  held_gradients_.emplace(now.gradients);
  held_state_.emplace(now.changed, DiskUse::change);
  for (std::size_t i = 1; i < std::min(parts.size(), kPartsAhead + 1); ++i)
    fetch(tensors_of(optimizer, parts[i], expects_steps_));
}

void DiskShards::after_part(
    const torch::optim::Optimizer& optimizer,
    const ParameterPart& part) {
  const at::NoGradGuard no_grad;
  held_gradients_.reset();
  const OptimizerAlgorithm& algorithm = *find_algorithm(optimizer);
  for (const at::Tensor& local : part) {
    if (state_) {
      // Those that this step has made.
      for (const at::Tensor& moment : moments_of(optimizer, algorithm, local))
        state_->add(moment);
    }
    if (local.grad().defined()) round_rows(local);
  }
  held_state_.reset();
}

void DiskShards::round_rows(const at::Tensor& local) const {
  const at::Tensor& rows = rows_of_.at(local.unsafeGetTensorImpl());
  if (!rows.defined()) return;
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  const HeldTensors from({local});
  const HeldTensors to({rows}, DiskUse::replace);
  rows.copy_(local);
}

void DiskShards::refresh_rows() const {
  for (const at::Tensor& local : locals_) round_rows(local);
}

}  // namespace accelerate::detail
