#include <accelerate/experts.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/all_to_all.h"
#include "parallel/expert/expert_layer_state.h"
#include "parallel/expert/expert_losses.h"
#include "parallel/expert/expert_mlp.h"
#include "parallel/expert/full_precision.h"
#include "parallel/expert/token_plan.h"
#include "parallel/expert/unrecorded.h"

namespace accelerate {

namespace {

using detail::ExpertLayerState;
using detail::format;
using detail::RowCounts;
using detail::TokenPlan;

// A layer's experts that are user-defined modules, by number.
struct ExpertListImpl : torch::nn::Module {
  explicit ExpertListImpl(const ExpertLayerOptions& options) {
    for (std::int64_t i = 0; i < options.num_experts; ++i) {
      experts.push_back(options.make_expert(i));
      if (experts.back().is_empty()) {
        throw ConfigError(format(
            "[parallel] make_expert({}) must not return an empty AnyModule",
            i));
      }
      register_module(std::to_string(i), experts.back().ptr());
    }
  }

  // Applies the experts from `first` on, even those without tokens, so that
  // their gradients are zeros.
  at::Tensor compute(
      const at::Tensor& tokens,
      const std::vector<std::int64_t>& counts,
      std::int64_t first) {
    std::vector<at::Tensor> results;
    const auto by_expert = tokens.split_with_sizes(counts);
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const auto number = static_cast<std::size_t>(first) + e;
      results.push_back(
          experts[number].forward<at::Tensor>(at::Tensor(by_expert[e])));
      if (results.back().sizes() == by_expert[e].sizes()) continue;
      throw ConfigError(format(
          "[parallel] expert {} returned a tensor of shape {} for tokens of "
          "shape {}, but must return one row per token",
          number,
          results.back().sizes(),
          by_expert[e].sizes()));
    }
    // Backward must reach the tokens on a rank without experts as well.
    return results.empty() ? tokens * 1 : at::cat(results);
  }

  std::vector<torch::nn::AnyModule> experts;
};

// The MLP of a shared expert.
struct SharedMlpImpl : torch::nn::Cloneable<SharedMlpImpl> {
  SharedMlpImpl(std::int64_t hidden_size, const ExpertMlpOptions& options)
      : hidden_size_(hidden_size), options_(options) {
    detail::check_mlp(options);
    SharedMlpImpl::reset();
  }

  void reset() override {
    const auto linear =
        [&](const char* name, std::int64_t in, std::int64_t out) {
          return register_module(
              name,
              torch::nn::Linear(
                  torch::nn::LinearOptions(in, out).bias(options_.bias)));
        };
    const std::int64_t inner = options_.intermediate_size;
    if (options_.gated) gate_proj = linear("gate_proj", hidden_size_, inner);
    up_proj = linear("up_proj", hidden_size_, inner);
    down_proj = linear("down_proj", inner, hidden_size_);
  }

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor up = up_proj->forward(tokens);
    if (!options_.gated)
      return down_proj->forward(detail::activate(up, options_.activation));
    return down_proj->forward(
        detail::activate(gate_proj->forward(tokens), options_.activation) * up);
  }

  torch::nn::Linear gate_proj = nullptr, up_proj = nullptr, down_proj = nullptr;

 private:
  std::int64_t hidden_size_;
  ExpertMlpOptions options_;
};
TORCH_MODULE(SharedMlp);

void check_layer(const ExpertLayerOptions& options) {
  std::vector<std::string> complaints;
  if (options.mlp.has_value() == (options.make_expert != nullptr)) {
    complaints.emplace_back(
        "[parallel] an ExpertLayer must have either an `mlp` or `make_expert`; "
        "set exactly one of them");
  }
  if (options.shared_mlp && options.make_shared_expert) {
    complaints.emplace_back(
        "[parallel] an ExpertLayer has at most one shared expert; set "
        "shared_mlp or make_shared_expert, not both");
  }
  if (options.shared_expert_gate && !options.shared_mlp &&
      !options.make_shared_expert) {
    complaints.emplace_back(
        "[parallel] shared_expert_gate needs a shared expert; set shared_mlp "
        "or make_shared_expert as well");
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

// Under autocast, tokens are sent and computed in its dtype.
at::Tensor lowered(const at::Tensor& tokens) {
  const auto device = tokens.device().type();
  if (!at::autocast::is_autocast_enabled(device) ||
      tokens.scalar_type() != at::kFloat) {
    return tokens;
  }
  return tokens.to(at::autocast::get_autocast_dtype(device));
}

// The rows that this rank receives for each of its experts, and their order.
struct Arrival {
  RowCounts rows;
  /// Number of rows of each expert on this rank.
  std::vector<std::int64_t> counts;
  /// For each row sorted by expert, its place among the received rows, sorted
  /// by rank; undefined if both orders are the same.
  at::Tensor order;
};

Arrival arrival_of(const TokenPlan& plan, const ExpertLayerState& state) {
  const detail::Unrecorded unrecorded;
  const auto& counts = plan.host_counts_of_ranks;
  const auto own = static_cast<std::size_t>(state.ranks.experts.rank());
  const auto sum = [&](const std::vector<std::int64_t>& of, std::size_t rank) {
    return std::accumulate(
        of.begin() + state.begins[rank],
        of.begin() + state.begins[rank + 1],
        std::int64_t{0});
  };
  Arrival arrival;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    arrival.rows.sent.push_back(sum(counts[own], rank));
    arrival.rows.received.push_back(sum(counts[rank], own));
  }
  for (auto e = static_cast<std::size_t>(state.first_expert());
       e < static_cast<std::size_t>(state.last_expert());
       ++e) {
    arrival.counts.push_back(0);
    for (const auto& of_rank : counts) arrival.counts.back() += of_rank[e];
  }
  if (counts.size() == 1) return arrival;
  const at::Tensor own_experts = plan.counts_of_ranks.narrow(
      1, state.first_expert(), std::ssize(arrival.counts));
  const at::Tensor experts =
      at::arange(std::ssize(arrival.counts), own_experts.options())
          .repeat({std::ssize(counts)});
  const at::Tensor expert_of_row = at::repeat_interleave(
      experts,
      own_experts.reshape({-1}),
      0,
      std::accumulate(
          arrival.counts.begin(), arrival.counts.end(), std::int64_t{0}));
  arrival.order =
      at::argsort(expert_of_row, /*stable=*/true, 0, /*descending=*/false);
  return arrival;
}

// Exchanged rows are kept for backward rather than exchanged again.
void send_tokens(
    detail::RowExchange& exchange,
    const at::Tensor& rows,
    bool trains) {
  const detail::Unrecorded unrecorded;
  exchange.begin(rows, trains);
}

at::Tensor receive_tokens(detail::RowExchange& exchange) {
  const detail::Unrecorded unrecorded;
  return exchange.finish();
}

// The weighted sum of each token's rows; 0 for those that were dropped.
at::Tensor combine(
    const at::Tensor& rows,
    const TokenPlan& plan,
    const at::Tensor& weights) {
  const std::int64_t num_tokens = weights.size(0), top_k = weights.size(1);
  const std::int64_t num_slots = num_tokens * top_k;
  // Rows that fill up go to a slot of their own.
  at::Tensor by_slot =
      at::zeros(
          {num_slots + (plan.is_padded ? 1 : 0), rows.size(1)}, rows.options())
          .index_copy(0, plan.slots, rows);
  if (plan.is_padded) by_slot = by_slot.narrow(0, 0, num_slots);
  return at::bmm(
             weights.to(rows.scalar_type()).unsqueeze(1),
             by_slot.view({num_tokens, top_k, rows.size(1)}))
      .squeeze(1);
}

// Where the tokens are, so that the host reads counts only when it is asked.
void add_load(const TokenPlan& plan, ExpertLayerState& state) {
  const at::NoGradGuard no_grad;
  const detail::Unrecorded unrecorded;
  const at::Tensor counts = at::stack({plan.num_assigned, plan.num_kept});
  state.load = state.load.defined()
      ? state.load.to(counts.device()).add_(counts)
      : counts;
}

}  // namespace

double ExpertLoad::imbalance() const {
  const auto sum = static_cast<double>(
      std::accumulate(assigned.begin(), assigned.end(), std::int64_t{0}));
  if (sum == 0) return 1;
  const auto most =
      static_cast<double>(*std::max_element(assigned.begin(), assigned.end()));
  return most * static_cast<double>(assigned.size()) / sum;
}

ExpertLayerImpl::ExpertLayerImpl(const ExpertLayerOptions& options)
    : options_(options) {
  check_layer(options);
  ExpertLayerImpl::reset();
}

ExpertLayerImpl::~ExpertLayerImpl() = default;

void ExpertLayerImpl::reset() {
  const std::int64_t hidden = options_.hidden_size;
  gate_ = register_module(
      "gate", Router(hidden, options_.num_experts, options_.router));
  if (options_.mlp) {
    mlp_ = register_module(
        "experts", ExpertMlp(options_.num_experts, hidden, *options_.mlp));
  } else {
    const auto list = std::make_shared<ExpertListImpl>(options_);
    register_module("experts", std::shared_ptr<torch::nn::Module>(list));
    compute_ = [list](
                   const at::Tensor& tokens,
                   const std::vector<std::int64_t>& counts,
                   std::int64_t first) {
      return list->compute(tokens, counts, first);
    };
  }
  if (options_.shared_mlp) {
    shared_ = torch::nn::AnyModule(SharedMlp(hidden, *options_.shared_mlp));
  } else if (options_.make_shared_expert) {
    shared_ = options_.make_shared_expert();
    if (shared_.is_empty()) {
      throw ConfigError(
          "[parallel] make_shared_expert() must not return an empty AnyModule");
    }
  }
  if (!shared_.is_empty()) register_module("shared_expert", shared_.ptr());
  if (options_.shared_expert_gate) {
    shared_gate_ = register_module(
        "shared_expert_gate",
        torch::nn::Linear(torch::nn::LinearOptions(hidden, 1).bias(false)));
  }
  state_ = std::make_shared<ExpertLayerState>();
  state_->begins = {0, options_.num_experts};
}

void ExpertLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "accelerate::ExpertLayer(hidden_size=" << options_.hidden_size
         << ", num_experts=" << options_.num_experts
         << ", top_k=" << options_.router.top_k << ")";
}

at::Tensor ExpertLayerImpl::shared_result(const at::Tensor& tokens) {
  at::Tensor result = shared_.forward<at::Tensor>(at::Tensor(tokens));
  if (options_.shared_expert_gate)
    result = at::sigmoid(shared_gate_->forward(tokens)) * result;
  return result;
}

at::Tensor ExpertLayerImpl::expert_results(
    const at::Tensor& rows,
    const std::vector<std::int64_t>& counts) {
  if (compute_) return compute_(rows, counts, state_->first_expert());
  // Inside full_parameters() this rank has all experts.
  const std::int64_t first = mlp_->up_proj.size(0) == options_.num_experts
      ? state_->first_expert()
      : 0;
  return detail::compute_experts(
      *mlp_, rows, counts, first, state_->ranks.split);
}

at::Tensor ExpertLayerImpl::forward(const at::Tensor& x) {
  if (x.dim() < 1 || x.size(-1) != options_.hidden_size) {
    throw ConfigError(format(
        "[parallel] the last dimension of an ExpertLayer's input must be "
        "hidden_size = {}, but its shape is {}",
        options_.hidden_size,
        x.sizes()));
  }
  ExpertLayerState& state = *state_;
  const at::Tensor tokens = x.reshape({-1, options_.hidden_size});
  const Routing routing = gate_->forward(tokens);
  const TokenPlan plan = detail::plan_tokens(
      routing,
      options_.num_experts,
      options_.router,
      is_training(),
      state.ranks.experts);
  add_load(plan, state);
  if (is_training())
    detail::compute_losses(options_.router, routing, plan.num_assigned, state);

  const Arrival arrival = arrival_of(plan, state);
  const auto parameters = this->parameters();
  const bool trains = x.requires_grad() ||
      std::any_of(parameters.begin(),
                  parameters.end(),
                  [](const at::Tensor& each) { return each.requires_grad(); });
  detail::RowExchange there(state.ranks.route, arrival.rows);
  send_tokens(there, lowered(tokens).index_select(0, plan.tokens), trains);
  at::Tensor shared;
  if (!shared_.is_empty()) shared = shared_result(tokens);
  at::Tensor rows = receive_tokens(there);
  if (arrival.order.defined()) rows = rows.index_select(0, arrival.order);
  rows = expert_results(rows, arrival.counts);
  if (arrival.order.defined())
    rows = at::zeros_like(rows).index_copy(0, arrival.order, rows);
  detail::RowExchange back(state.ranks.route, arrival.rows.reversed());
  send_tokens(back, rows, trains);
  at::Tensor result = combine(receive_tokens(back), plan, routing.weights);
  if (shared.defined()) result = result + shared;
  return result.view(x.sizes());
}

const at::Tensor& ExpertLayerImpl::auxiliary_loss() const {
  return state_->auxiliary;
}

const at::Tensor& ExpertLayerImpl::balance_loss() const {
  return state_->balance_loss;
}

const at::Tensor& ExpertLayerImpl::z_loss() const { return state_->z_loss; }

ExpertLoad ExpertLayerImpl::take_load() {
  ExpertLoad load{
      state_->name,
      std::vector<std::int64_t>(
          static_cast<std::size_t>(options_.num_experts))};
  if (!state_->load.defined()) return load;
  const at::Tensor taken = state_->load.clone();
  // In place: a captured step goes on adding there.
  state_->load.zero_();
  // On the host: numbers for the program.
  const at::Tensor counts = taken.cpu();
  const auto* const values = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t e = 0; e < options_.num_experts; ++e) {
    load.assigned[static_cast<std::size_t>(e)] = values[e];
    load.dropped += values[e] - values[options_.num_experts + e];
  }
  return load;
}

std::int64_t ExpertLayerImpl::first_expert() const {
  return state_->first_expert();
}

std::int64_t ExpertLayerImpl::last_expert() const {
  return state_->last_expert();
}

at::Tensor auxiliary_loss(const torch::nn::Module& model) {
  const at::Tensor sum = detail::take_losses(model);
  if (sum.defined()) return sum;
  const auto layers = detail::expert_layers(model);
  const bool has_losses =
      std::any_of(layers.begin(), layers.end(), [](const auto& named) {
        const RouterOptions& router = named.layer->options().router;
        return named.layer->is_training() &&
            (router.balance_loss_coefficient > 0 ||
             router.z_loss_coefficient > 0);
      });
  if (has_losses) {
    throw ConfigError(
        "[parallel] auxiliary_loss() must be called once after each forward, "
        "but was called before a forward, or twice after one; call it in a "
        "statement of its own: C++ evaluates the operands of + in any order");
  }
  const auto parameters = model.parameters();
  return at::zeros(
      {},
      at::TensorOptions(at::kFloat)
          .device(
              parameters.empty() ? at::Device(at::kCPU)
                                 : parameters.front().device()));
}

TrackedValues to_tracked_values(const std::vector<ExpertLoad>& loads) {
  TrackedValues values;
  for (const ExpertLoad& load : loads) {
    const auto sum = static_cast<double>(std::max<std::int64_t>(
        1,
        std::accumulate(
            load.assigned.begin(), load.assigned.end(), std::int64_t{0})));
    const std::string prefix =
        load.layer.empty() ? "experts/" : format("experts/{}/", load.layer);
    values.push_back({prefix + "imbalance", load.imbalance()});
    values.push_back(
        {prefix + "dropped", static_cast<double>(load.dropped) / sum});
    TrackedValue::List shares;
    for (const std::int64_t assigned : load.assigned)
      shares.emplace_back(static_cast<double>(assigned) / sum);
    values.push_back({prefix + "load", std::move(shares)});
  }
  return values;
}

}  // namespace accelerate
