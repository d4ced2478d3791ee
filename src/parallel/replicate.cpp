#include "parallel/replicate.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/group_impl.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBroadcastBytes = 250 << 20;

// Reducer keeps to itself whether a backward has begun and not ended.
class OpenReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  [[nodiscard]] bool is_unfinished() const { return require_finalize_; }
  void ignore_gradients() { expect_autograd_hooks_ = false; }
};

struct TrainableRows {
  std::vector<at::Tensor> tensors;
  std::unordered_map<std::size_t, std::string> names;
};

TrainableRows trainable_rows(const ParameterTable& table) {
  TrainableRows rows;
  for (const Parameter* row : table.trainable()) {
    rows.names.emplace(rows.tensors.size(), row->name);
    rows.tensors.push_back(row->tensor);
  }
  return rows;
}

// The constructor grew defaulted arguments after LibTorch 2.11; the twelve it
// had then are enough for all.
template <class Reducer = OpenReducer>
std::unique_ptr<Reducer> make_reducer(
    const TrainableRows& rows,
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
    const ReplicateOptions& options) {
  const std::vector<bool> dense(rows.tensors.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      rows.tensors,
      {static_cast<std::size_t>(options.first_bucket_bytes),
       static_cast<std::size_t>(options.bucket_bytes)},
      dense);
  // Gradients become ready from the last layer to the first.
  std::reverse(buckets.begin(), buckets.end());
  auto reducer = std::make_unique<Reducer>(
      rows.tensors, std::move(buckets), process_group, dense, options.bucket_bytes,
      options.find_unused_parameters, options.gradient_as_bucket_view, rows.names,
      options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>{});
  if (options.static_graph) reducer->set_static_graph();
  return reducer;
}

// LibTorch lists the parameters without gradient by index.
std::vector<std::string> names_in(
    const std::string& message,
    const std::unordered_map<std::size_t, std::string>& names) {
  constexpr std::string_view kMark = "did not receive grad for rank ";
  std::vector<std::string> found;
  std::size_t at = message.find(kMark);
  if (at == std::string::npos) return found;
  at = message.find(':', at);
  while (at != std::string::npos && ++at < message.size()) {
    if (message[at] == ' ') continue;
    std::size_t end = at;
    while (end < message.size() && std::isdigit(static_cast<unsigned char>(message[end]))) ++end;
    if (end == at) break;
    const auto name = names.find(std::stoul(message.substr(at, end - at)));
    if (name != names.end()) found.push_back(concat("\"", name->second, "\""));
    at = end - 1;
  }
  return found;
}

bool is_about_communication(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return text.find("/gloo/") != std::string_view::npos ||
      text.find("Connection closed by peer") != std::string_view::npos ||
      text.find("Connection reset by peer") != std::string_view::npos ||
      text.find("Timed out waiting") != std::string_view::npos;
}

class Replicate final : public Strategy {
 public:
  Replicate(Group group, const ReplicateOptions& options)
      : group_(std::move(group)), options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "replicate"; }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
    guard("comparing the models of all ranks", [&] {
      std::vector<at::Tensor> parameters;
      for (const Parameter& row : table.rows()) parameters.push_back(row.tensor);
      require_same_model(table);
      broadcast(parameters);
      broadcast(buffers_);
    });
    const TrainableRows rows = trainable_rows(table);
    if (rows.tensors.empty()) return;
    names_ = rows.names;
    reducer_ = make_reducer(rows, process_group(), options_);
    reducer_->ignore_gradients();
  }

  void before_forward() override { had_forward_ = true; }

  [[nodiscard]] bool needs_outputs() const override {
    return reducer_ != nullptr && options_.find_unused_parameters;
  }

  void after_forward(const ForwardOutputs& outputs) override {
    if (!needs_outputs()) return;
    if (!outputs.is_known) {
      throw ConfigError(
          "[parallel] find_unused_parameters must see what the model returns, but its type is not "
          "known; give it a visit_tensors function (nested.h)");
    }
    if (std::exchange(outputs_are_spent_, false)) outputs_.clear();
    for (const at::Tensor& tensor : outputs.tensors) {
      if (tensor.defined() && tensor.requires_grad()) outputs_.push_back(tensor);
    }
  }

  void before_backward(bool sync_gradients) override {
    if (!reducer_ || !sync_gradients) return;
    // Counts iterations: once a reduction, however many forwards lead to it.
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward(outputs_);
  }

  void after_backward(bool sync_gradients) override {
    if (!reducer_ || !sync_gradients) return;
    if (options_.static_graph && std::exchange(is_first_reduction_, false)) {
      // The first backward only learns which parameters are used.
      reducer_->delay_all_reduce();
    }
    try {
      // Fails if this backward reached some parameters and not others.
      reducer_->rebuild_buckets();
    } catch (const c10::DistError&) {
      throw;
    } catch (const c10::Error& error) {
      explain_unused(error);
    }
    // A backward that passed this model by: nothing was sent.
    reducer_->ignore_gradients();
    outputs_are_spent_ = true;
    if (std::exchange(had_forward_, false) && options_.broadcast_buffers && !buffers_.empty()) {
      const at::NoGradGuard no_grad;
      guard("sending buffers to all ranks", [&] {
        broadcast(buffers_);
      });
    }
  }

  void on_failure(const std::exception& error) override {
    if (!is_about_communication(error)) return;
    fail_collective(*group_.impl(), "averaging gradients", ++group_.impl()->sequence, error);
  }

 private:
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const {
    return group_.impl()->process_group;
  }

  template <class Body>
  void guard(const char* operation, Body&& body) {
    const std::uint64_t sequence = ++group_.impl()->sequence;
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_collective(*group_.impl(), operation, sequence, error);
    }
  }

  void broadcast(const std::vector<at::Tensor>& tensors) {
    if (!tensors.empty()) c10d::broadcast_coalesced(process_group(), tensors, kBroadcastBytes);
  }

  // Broadcasting over different models would hang or mix up their weights.
  void require_same_model(const ParameterTable& table) {
    std::string mine;
    for (const Parameter& row : table.rows()) {
      mine += concat(
          row.name, " ", c10::toString(row.tensor.scalar_type()), " ", row.tensor.sizes(),
          row.tensor.requires_grad() ? "" : " frozen", "\n");
    }
    for (const at::Tensor& buffer : buffers_) {
      mine += concat("buffer ", c10::toString(buffer.scalar_type()), " ", buffer.sizes(), "\n");
    }
    const std::vector<std::string> all = group_.all_gather_bytes(mine);
    std::vector<std::string> complaints;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      const std::vector<std::string> first = split(all[0], '\n');
      const std::vector<std::string> other = split(all[rank], '\n');
      std::size_t line = 0;
      while (line < std::min(first.size(), other.size()) && first[line] == other[line]) ++line;
      const auto at = [&](const std::vector<std::string>& lines) {
        return line < lines.size() && !lines[line].empty() ? lines[line] : std::string("nothing");
      };
      complaints.push_back(concat(
          "[parallel] the model of rank ", group_.world_ranks()[rank],
          " is not that of rank ", group_.world_ranks()[0], ": it has \"", at(other),
          "\" where rank ", group_.world_ranks()[0], " has \"", at(first),
          "\"; build the same model on all ranks"));
    }
    if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  }

  [[noreturn]] void explain_unused(const c10::Error& error) {
    if (!reducer_->is_unfinished()) throw;
    const std::vector<std::string> unused = names_in(error.what_without_backtrace(), names_);
    throw ConfigError(concat(
        "[parallel] the backward pass gave no gradient to ",
        unused.empty() ? std::string("some parameters") : join(unused, ", "),
        ", so ranks would wait for each other; let them take part in the loss, freeze them "
        "(requires_grad_(false)) before prepare(), or set "
        "ReplicateOptions::find_unused_parameters"));
  }

  Group group_;
  ReplicateOptions options_;
  std::unique_ptr<OpenReducer> reducer_;
  std::unordered_map<std::size_t, std::string> names_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> outputs_;
  bool outputs_are_spent_ = false;
  bool had_forward_ = false;
  bool is_first_reduction_ = true;
};

}  // namespace

std::optional<std::string> validate_replicate(const ParallelOptions& options) {
  const ReplicateOptions& replicate = options.replicate_options;
  if (replicate.bucket_bytes < 1 || replicate.first_bucket_bytes < 1) {
    return concat(
        "[parallel] bucket_bytes is ", replicate.bucket_bytes, " and first_bucket_bytes ",
        replicate.first_bucket_bytes, "; both are at least 1");
  }
  if (replicate.find_unused_parameters && replicate.static_graph) {
    return "[parallel] find_unused_parameters and static_graph were both asked for; a static "
           "graph finds unused parameters by itself in the first step: unset "
           "find_unused_parameters";
  }
  return std::nullopt;
}

std::unique_ptr<Strategy> make_replicate(const Mesh& mesh, const ParallelOptions& options) {
  return std::make_unique<Replicate>(mesh.group(Axis::replicate), options.replicate_options);
}

}  // namespace accelerate::detail
