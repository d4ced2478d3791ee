#include "parallel/expert/experts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/experts.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "comm/mesh.h"
#include "gate/gate.h"
#include "parallel/expert/expert_layer_state.h"
#include "parallel/expert/expert_losses.h"
#include "parallel/full_scope.h"
#include "parallel/replicate/same_model.h"
#include "parallel/shard/prepare/bind_locals.h"
#include "parallel/shard/prepare/initial_values.h"
#include "parallel/sliced_parameters.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kNoJoin =
    "[parallel] the ranks of a model with divided experts send each other "
    "tokens in every step, so all must take every step; use even_batches";
constexpr std::string_view kNoLocalSgd =
    "[parallel] with LocalSGD, parameters differ between ranks between "
    "averages, but ranks that share experts need equal ones; set expert to 1";

/// A parameter of a layer's experts, and how its dimensions are divided.
struct ExpertParameter {
  Parameter* row = nullptr;
  /// The first row of each rank along `expert`, and the end; empty for a
  /// parameter that stays as it is.
  std::vector<std::int64_t> begins = {};
  /// The dimension divided along `tensor`; negative for none.
  std::int64_t split_dim = -1;
};

class Experts final : public Strategy {
 public:
  Experts(const Mesh& mesh, const ExpertRequest& request)
      : mesh_(mesh),
        num_expert_ranks_(mesh.degree(Axis::expert)),
        num_split_ranks_(
            request.splits_over_tensor ? mesh.degree(Axis::tensor) : 1) {}

  ~Experts() override {
    for (const auto& [tensor, hook] : hooks_) tensor.remove_hook(hook);
  }

  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits{
        // `shard` allocates memory for parameters that this strategy does not
        // divide.
        .takes_empty = mesh_.degree(Axis::shard) > 1};
    if (num_expert_ranks_ == 1) return traits;
    traits.join_complaint = kNoJoin;
    traits.local_sgd_complaint = kNoLocalSgd;
    return traits;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    const std::vector<NamedExpertLayer> layers = expert_layers(module);
    if (layers.empty()) return warn_without_layers();
    connect(layers, table.name_of(""));
    if (num_expert_ranks_ == 1 && num_split_ranks_ == 1) return;
    std::vector<ExpertParameter> parameters;
    for (const NamedExpertLayer& layer : layers)
      find_parameters(layer, table, parameters);
    require_same_model(replica_group(Layout(), mesh_), table, {});
    InitialValues values(mesh_, table);
    values.broadcast(table);
    for (const ExpertParameter& parameter : parameters)
      divide(parameter, values);
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    bind_locals(optimizer, table);
  }

  void before_backward(bool, const at::Tensor&) override {
    full_.require_closed();
    scale_gradients();
  }
  void before_plain_backward(bool sync_gradients) override {
    before_backward(sync_gradients, {});
  }
  void before_forward() override { scale_gradients(); }

  [[nodiscard]] std::shared_ptr<void> unshard_parameters() override {
    return full_.enter();
  }

 private:
  void warn_without_layers() const {
    // Other stages of a pipeline may have them.
    if (mesh_.degree(Axis::pipeline) > 1) return;
    mesh_.world().logger().log_once_per_world(
        LogLevel::warning,
        "parallel",
        format(
            "expert is {}, but a model has no ExpertLayer, so nothing is "
            "divided; build its experts as one (experts.h)",
            num_expert_ranks_));
  }

  // Tells the layers which ranks they compute with.
  void connect(
      const std::vector<NamedExpertLayer>& layers,
      const std::string& prefix) {
    const Mesh experts = mesh_.experts();
    ExpertRanks ranks{
        .experts = experts.group(Axis::expert),
        .route =
            {.group = dedicated_group(experts, Axis::expert, "tokens"),
             .rows = "the tokens of experts"},
        .split = num_split_ranks_ > 1 ? mesh_.group(Axis::tensor) : Group(),
        .balance = mesh_.gradient_group()};
    for (const NamedExpertLayer& each : layers) {
      ExpertLayerState& state = each.layer->state();
      state.ranks = ranks;
      state.name = prefix + each.name;
      state.ranks.route.what =
          format("exchanging the tokens of {}", state.name);
      state.begins =
          slice_begins(each.layer->options().num_experts, num_expert_ranks_);
    }
  }

  static Parameter& row_of(ParameterTable& table, const std::string& name) {
    for (Parameter& row : table.rows()) {
      if (row.name == name) return row;
    }
    throw ConfigError(format(
        "[parallel] \"{}\" shares its tensor with a parameter outside its "
        "expert, which no other rank would have; give each expert parameters "
        "of its own, or set expert to 1",
        name));
  }

  // How the parameters of a layer's experts are divided.
  void find_parameters(
      const NamedExpertLayer& named,
      ParameterTable& table,
      std::vector<ExpertParameter>& parameters) const {
    const std::string prefix =
        named.name.empty() ? "experts." : named.name + ".experts.";
    const ExpertLayerImpl& layer = *named.layer;
    const auto& begins = layer.state().begins;
    for (const auto& item :
         layer.named_children()["experts"]->named_parameters()) {
      if (!item.value().defined()) continue;
      ExpertParameter parameter{
          &row_of(table, table.name_of(prefix + item.key()))};
      if (layer.options().mlp) {
        if (num_expert_ranks_ > 1) parameter.begins = begins;
        parameter.split_dim = split_dim_of(item.key());
      } else if (num_expert_ranks_ > 1) {
        parameter.begins = begins_of_module(item.key(), item.value(), begins);
      }
      parameters.push_back(std::move(parameter));
    }
  }

  // The dimension that has the intermediate size.
  [[nodiscard]] std::int64_t split_dim_of(const std::string& name) const {
    if (num_split_ranks_ == 1 || name == "down_bias") return -1;
    return name == "down_proj" ? 2 : 1;
  }

  // For a parameter of one expert, named like "3.weight": that expert's rank
  // has all rows.
  static std::vector<std::int64_t> begins_of_module(
      const std::string& name,
      const at::Tensor& parameter,
      const std::vector<std::int64_t>& first_experts) {
    if (parameter.dim() == 0) {
      throw ConfigError(format(
          "[parallel] parameter \"{}\" of an expert must have a dimension to "
          "be divided among ranks, but is a single number",
          name));
    }
    const auto number = parse_int(name.substr(0, name.find('.')));
    std::vector<std::int64_t> begins{0};
    for (std::size_t rank = 1; rank < first_experts.size(); ++rank)
      begins.push_back(*number < first_experts[rank] ? parameter.size(0) : 0);
    return begins;
  }

  void divide(const ExpertParameter& parameter, const InitialValues& values) {
    Parameter& row = *parameter.row;
    if (parameter.begins.empty() && parameter.split_dim < 0) return;
    at::Tensor own = row.tensor.detach();
    if (!parameter.begins.empty()) {
      own = values.own_box(row, Axis::expert, 0, parameter.begins);
      note_division(row, parameter.begins);
    }
    if (parameter.split_dim >= 0) own = split(parameter, own);
    become_slice(row.tensor, own.clone(at::MemoryFormat::Contiguous));
    if (num_expert_ranks_ > 1 && row.tensor.numel() > 0)
      unscaled_.push_back(row.tensor);
    scale_gradients();
  }

  void note_division(Parameter& row, const std::vector<std::int64_t>& begins) {
    const Group& group = mesh_.experts().group(Axis::expert);
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::int64_t count = begins[rank + 1] - begins[rank];
    row.layout.split(Axis::expert, 0, begins[rank], count);
    row.policy = format(
        "experts divided over {} ranks, {} of {} rows here",
        group.size(),
        count,
        row.layout.global_shape[0]);
    divided_.add(row.tensor, 0, ranges_between(begins), group);
  }

  at::Tensor split(const ExpertParameter& parameter, const at::Tensor& own) {
    Parameter& row = *parameter.row;
    const Group& group = mesh_.group(Axis::tensor);
    const std::int64_t dim = parameter.split_dim;
    const auto begins = slice_begins(own.size(dim), group.size());
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::int64_t count = begins[rank + 1] - begins[rank];
    row.layout.split(Axis::tensor, dim, begins[rank], count);
    row.policy += format(
        "{}split along dimension {} over {} ranks, {} to {} here",
        row.policy.empty() ? "" : "; ",
        dim,
        group.size(),
        begins[rank],
        begins[rank] + count);
    split_.add(row.tensor, dim, ranges_between(begins), group);
    return own.narrow(dim, begins[rank], count);
  }

  // An expert's gradient is the sum over the ranks that send it tokens. A
  // frozen parameter takes no hook, but may be unfrozen later.
  void scale_gradients() {
    std::erase_if(unscaled_, [this](const at::Tensor& tensor) {
      if (!tensor.requires_grad()) return false;
      const double scale = 1.0 / num_expert_ranks_;
      hooks_.emplace_back(
          tensor, tensor.register_hook([scale](const at::Tensor& gradient) {
            return gradient * scale;
          }));
      return true;
    });
  }

  Mesh mesh_;
  int num_expert_ranks_;
  int num_split_ranks_;
  SlicedParameters divided_;
  SlicedParameters split_;
  /// Hooks on the tensors of trained parameters.
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  /// Divided parameters that were always frozen so far.
  std::vector<at::Tensor> unscaled_;
  /// The open full_parameters() scope.
  // The dimension divided last is gathered first.
  FullScope full_{
      [this] {
        split_.open();
        divided_.open();
      },
      [this] {
        divided_.close();
        split_.close();
      }};
};

}  // namespace

bool has_experts(const torch::nn::Module& model) {
  return !expert_layers(model).empty();
}

std::unique_ptr<Strategy> make_experts(
    const Mesh& mesh,
    const ExpertRequest& request) {
  return std::make_unique<Experts>(mesh, request);
}

}  // namespace accelerate::detail
