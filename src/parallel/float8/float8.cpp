#include "parallel/float8/float8.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/watched_tensor.h"
#include "kernels/device/device_kernels.h"
#include "parallel/context/attention_scope.h"
#include "parallel/float8/float8_figures.h"
#include "precision/arriving_numbers.h"
#include "precision/fp8/device_scales.h"
#include "precision/fp8/float8_keeper.h"
#include "precision/fp8/float8_layers.h"
#include "precision/fp8/float8_rules.h"

namespace accelerate::detail {

namespace {

std::unordered_set<const torch::nn::Module*> modules_of(
    const torch::nn::Module& module) {
  // A module that is on the stack has no shared pointer to itself.
  std::unordered_set<const torch::nn::Module*> found{&module};
  for (const auto& each : module.modules(/*include_self=*/false))
    found.insert(each.get());
  return found;
}

// Number of consecutive steps after which an ill-fitting delayed scale is
// reported.
constexpr std::int64_t kMisfitsToName = 10;

constexpr std::string_view name_of(Float8Layer::Role role) {
  switch (role) {
    case Float8Layer::input:
      return "input";
    case Float8Layer::weight:
      return "weight";
    case Float8Layer::grad_output:
      return "gradient of the output";
  }
  return "";
}

// Explains what a lasting misfit means, and what to do.
std::string
explain_misfit(const DelayedScale& scale, float amax, float used_scale) {
  constexpr std::string_view kRemedy =
      "; take new scales more often (interval), from the largest value of the "
      "history (amax_compute_algo max), or use another recipe";
  switch (scale.fit()) {
    case ScaleFit::saturates:
      return format(
          "the largest value {} times the scale {} is above {}, so that large "
          "values are cut off{}",
          amax,
          used_scale,
          2 * largest_value(scale.format()),
          kRemedy);
    case ScaleFit::vanishes:
      return format(
          "the largest value {} times the scale {} is so small that all values "
          "become 0{}",
          amax,
          used_scale,
          kRemedy);
    case ScaleFit::not_finite:
      return "values are infinite or NaN, and the scale stays as it was; look "
             "for what overflows, or lower the learning rate";
    case ScaleFit::good:
      break;
  }
  return "";
}

std::string name_in(const std::string& layer, std::string_view parameter) {
  return layer.empty() ? std::string(parameter)
                       : format("{}.{}", layer, parameter);
}

class Float8 final : public Strategy, public StrategyState {
 public:
  Float8(
      const Mesh& mesh,
      const Float8Request& request,
      std::shared_ptr<const torch::nn::Module> whole_model)
      : mesh_(mesh),
        request_(request),
        whole_model_(std::move(whole_model)),
        figures_(mesh, request.statistics_interval) {
    std::visit(
        [this](const auto& recipe) {
          rules_ = float8_rules_of(recipe);
          layer_rule_ = layer_rule_of(recipe);
        },
        request_.recipe);
    if (const auto* const te = std::get_if<TERecipeKwargs>(&request_.recipe)) {
      is_te_ = true;
      in_evaluation_ = *te->use_autocast_during_eval;
    } else {
      const auto* const ao = std::get_if<AORecipeKwargs>(&request_.recipe);
      emulates_ = ao != nullptr && ao->config->emulate;
    }
    keeper_ = std::make_shared<Float8Keeper>(/*only_in_forwards=*/is_te_);
  }

  ~Float8() override {
    for (const at::Tensor& weight : weights_)
      unwatch_tensor(weight, keeper_.get());
  }

  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits;
    if (!rules_.delayed) return traits;
    traits.join_complaint =
        "[parallel] the ranks of a model with delayed fp8 scaling agree on "
        "scales at each step, so all must take every step; use even_batches, "
        "or another recipe";
    return traits;
  }

  [[nodiscard]] StrategyState* state() override {
    return rules_.delayed ? this : nullptr;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    module_ = &module;
    std::vector<Float8LayerChoice> choices;
    const std::unordered_set<const torch::nn::Module*> own = modules_of(module);
    std::size_t count = 0;
    for (LinearLayer& layer : choose_linear_layers(
             whole_model_ ? *whole_model_ : module, layer_rule_)) {
      count += layer.choice.is_float8 ? 1 : 0;
      if (layer.choice.is_float8 && own.contains(layer.module))
        add(layer.weight, layer.choice.name, table);
      choices.push_back(std::move(layer.choice));
    }
    const bool is_none = count == 0;
    std::string lines = explain_float8_layers(choices);
    if (!lines.empty()) lines.pop_back();
    mesh_.world().logger().log_once_per_world(
        is_none ? LogLevel::warning : LogLevel::info,
        "precision",
        format(
            "{} of {} linear layers compute in float8{}\n{}",
            count,
            choices.size(),
            is_none ? ", so mixed_precision fp8 amounts to bf16" : "",
            lines));
    figures_.begin_step(keeper_->layers());
  }

  void before_forward() override {
    keeper_->begin_forward(module_->is_training() || in_evaluation_);
  }
  void after_forward(const ForwardOutputs&) override { keeper_->end_forward(); }
  void on_failure(const std::exception&) override {
    keeper_->abandon_forward();
  }

  // The program may step the optimizer itself, without after_step(); versions
  // do not show it either, since torch::optim::SGD changes `data()`.
  void after_backward(bool sync_gradients) override {
    if (sync_gradients) forget_weights();
  }
  void after_plain_backward(bool sync_gradients) override {
    after_backward(sync_gradients);
  }
  void after_step() override {
    forget_weights();
    figures_.end_step(keeper_->layers());
    update_scales();
  }

  [[nodiscard]] std::vector<StepFigure> take_figures() override {
    return figures_.take();
  }

  void after_load() override { forget_weights(); }

  /// State by layer: "scale" [roles], "amax_history" [roles, length] from the
  /// place of the current step to the newest value, and "num_updates".
  [[nodiscard]] SharedStates shared_states() const override {
    settle_scales();
    SharedStates states;
    for (const auto& layer : keeper_->layers()) {
      std::vector<float> scales, history;
      for (const auto& tensor : layer->delayed) {
        const DelayedScale& scale = tensor->scale();
        scales.push_back(scale.scale());
        history.insert(
            history.end(), scale.history().begin(), scale.history().end());
      }
      const auto roles = static_cast<std::int64_t>(scales.size());
      const auto add = [&](std::string_view key, at::Tensor tensor) {
        states.push_back(
            {format("{}/{}", layer->name, key),
             std::move(tensor),
             name_in(layer->name, "weight")});
      };
      add("scale", at::tensor(scales));
      add("amax_history", at::tensor(history).view({roles, -1}));
      add("num_updates",
          at::full(
              {}, layer->delayed.front()->scale().num_updates(), at::kLong));
    }
    return states;
  }

  void load_shared_states(const SavedSharedStates& saved) override {
    settle_scales();
    device_scales_.reset();
    for (const auto& layer : keeper_->layers()) {
      const auto find = [&](std::string_view key) {
        const auto found = saved.find(format("{}/{}", layer->name, key));
        return found == saved.end() ? at::Tensor() : found->second;
      };
      const at::Tensor scales = find("scale");
      const at::Tensor history = find("amax_history");
      const at::Tensor num_updates = find("num_updates");
      // A layer that was not float8 when the state was saved starts afresh.
      if (!scales.defined()) continue;
      const auto roles = static_cast<std::int64_t>(layer->delayed.size());
      if (!history.defined() || !num_updates.defined() ||
          scales.sizes() != at::IntArrayRef({roles}) || history.dim() != 2 ||
          history.size(0) != roles) {
        throw CheckpointError(format(
            "[parallel] the fp8 scales of layer \"{}\" are of shape {} instead "
            "of [{}], or lack their history; the checkpoint is damaged",
            layer->name,
            scales.sizes(),
            roles));
      }
      for (std::int64_t r = 0; r < roles; ++r) {
        const at::Tensor row = history[r].to(at::kFloat).contiguous();
        const auto* const values = row.const_data_ptr<float>();
        layer->delayed[static_cast<std::size_t>(r)]->restore(
            scales[r].item<float>(),
            {values, values + row.numel()},
            num_updates.item<std::int64_t>());
      }
    }
  }

 private:
  void update_scales() {
    if (!rules_.delayed || keeper_->layers().empty()) return;
    const at::NoGradGuard no_grad;
    at::Tensor amaxes = take_amaxes(keeper_->layers(), mesh_.world().device());
    mesh_.gradient_group().all_reduce(amaxes, ReduceOp::max);
    if (mesh_.degree(Axis::tensor) > 1)
      mesh_.group(Axis::tensor).all_reduce(amaxes, ReduceOp::max);
    if (amaxes.is_cpu()) return update_tensors(amaxes);
    update_on_device(amaxes.flatten());
  }

  // The host learns the amaxes a step later, when it need not wait for them.
  void update_on_device(const at::Tensor& amaxes) {
    settle_scales();
    std::vector<DelayedTensor*> tensors;
    for (const auto& layer : keeper_->layers())
      for (const auto& tensor : layer->delayed) tensors.push_back(tensor.get());
    if (!device_scales_) {
      std::vector<const DelayedScale*> scales;
      for (const DelayedTensor* const tensor : tensors)
        scales.push_back(&tensor->scale());
      device_scales_.emplace(scales, *rules_.delayed, amaxes.device());
    }
    device_scales_->update(amaxes);
    const std::vector<at::Tensor> scales = device_scales_->scales().unbind();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i]->use(scales[i]);
    arriving_amaxes_.emplace(amaxes);
  }

  void settle_scales() const {
    if (!arriving_amaxes_) return;
    update_tensors(arriving_amaxes_->get());
    arriving_amaxes_.reset();
  }

  // `amaxes`: in the order of layers and roles.
  void update_tensors(const at::Tensor& amaxes) const {
    const at::Tensor values = amaxes.contiguous();
    const auto* value = values.const_data_ptr<float>();
    // A second optimizer of the model finds nothing left to add.
    if (std::all_of(value, value + values.numel(), [](float amax) {
          return amax == 0;
        }))
      return;
    for (const auto& layer : keeper_->layers())
      for (std::size_t role = 0; role < layer->delayed.size(); ++role)
        update(*layer, static_cast<Float8Layer::Role>(role), *value++);
  }

  // Ends a step of one tensor, and reports it if its scales keep not fitting.
  void update(Float8Layer& layer, Float8Layer::Role role, float amax) const {
    DelayedTensor& tensor = *layer.delayed[role];
    const float used_scale = tensor.scale().scale();
    tensor.update(amax);
    if (tensor.scale().num_misfits() != kMisfitsToName) return;
    // All ranks that share the layer have the same information.
    if (mesh_.gradient_group().rank() != 0 ||
        mesh_.coordinate(Axis::tensor) != 0 ||
        !named_misfits_.emplace(&layer, role).second) {
      return;
    }
    mesh_.world().logger().log(
        LogLevel::warning,
        "precision",
        format(
            "layer \"{}\": for {} steps the delayed fp8 scale of its {} has "
            "not fitted: {}",
            layer.name,
            kMisfitsToName,
            name_of(role),
            explain_misfit(tensor.scale(), amax, used_scale)));
  }

  // Makes ranks that divide the layer agree on scales.
  void share(
      Float8Layer& layer,
      const at::Tensor& weight,
      const ParameterTable& table) const {
    const Parameter* const row = table.find(weight);
    if (row == nullptr || !row->layout.is_split_over(Axis::tensor)) return;
    const auto agree = [group =
                            mesh_.group(Axis::tensor)](const at::Tensor& amax) {
      group.all_reduce(amax, ReduceOp::max);
    };
    const auto divide = [&](Float8Layer::Role role, std::int64_t dim) {
      layer.divisions[role].push_back({dim, agree});
    };
    const bool divides_outputs = weight.size(0) != row->layout.global_shape[0];
    if (divides_outputs) {
      divide(Float8Layer::weight, 0);
      divide(Float8Layer::grad_output, 1);
    } else {
      divide(Float8Layer::weight, 1);
      divide(Float8Layer::input, 1);
    }
  }

  // Makes ranks that divide sequences agree on scales.
  void share_positions(Float8Layer& layer) const {
    if (mesh_.degree(Axis::context) == 1) return;
    layer.has_positions = &divides_sequence;
    layer.agree_on_positions =
        [group = mesh_.group(Axis::context)](const at::Tensor& amax) {
          group.all_reduce(amax, ReduceOp::max);
        };
  }

  void add(
      const at::Tensor& weight,
      const std::string& name,
      const ParameterTable& table) {
    for (const at::Tensor& other : weights_) {
      // The weight is shared by two layers; the first one counts.
      if (other.is_same(weight)) return;
    }
    auto layer = c10::make_intrusive<Float8Layer>(name, rules_);
    probe(*layer, weight.device());
    if (!rules_.delayed) {
      share(*layer, weight, table);
      share_positions(*layer);
    }
    if (const Parameter* const row = table.find(weight))
      layer->gathered_scale = row->gathered_scale;
    // A weight whose memory comes and goes must not leave copies behind.
    layer->keeps_weight = keeper_of(weight) == nullptr;
    layer->warn = [logger = mesh_.world().logger()](const std::string& text) {
      logger.log(LogLevel::warning, "precision", text);
    };
    const std::size_t unit =
        keeper_->add(std::move(layer), weight.sizes().vec());
    watch_tensor(weight, {keeper_, unit, keeper_.get()});
    weights_.push_back(weight);
  }

  // All layers have the device multiply the same kinds of operands.
  void probe(Float8Layer& layer, c10::Device device) {
    if (emulates_) return;
    if (probed_) {
      for (std::size_t i = 0; i < layer.ways.size(); ++i)
        layer.ways[i] = probed_->ways[i].load();
      return;
    }
    layer.probe(device);
    probed_ = c10::make_intrusive<Float8Layer>("", rules_);
    for (std::size_t i = 0; i < layer.ways.size(); ++i)
      probed_->ways[i] = layer.ways[i].load();
    const std::string missing = missing_kernels();
    if (missing.empty() || !device.is_cuda()) return;
    mesh_.world().logger().log(
        LogLevel::info,
        "precision",
        format(
            "casts to float8 take several passes of LibTorch's operators: {}",
            missing));
  }

  void forget_weights() {
    for (const auto& layer : keeper_->layers()) layer->forget_weight();
  }

  Mesh mesh_;
  Float8Request request_;
  std::shared_ptr<const torch::nn::Module> whole_model_;
  Float8Rules rules_;
  Float8LayerRule layer_rule_;
  bool is_te_ = false;
  bool in_evaluation_ = true;
  bool emulates_ = false;
  c10::intrusive_ptr<Float8Layer> probed_;
  std::shared_ptr<Float8Keeper> keeper_;
  std::vector<at::Tensor> weights_;
  mutable std::set<std::pair<const Float8Layer*, Float8Layer::Role>>
      named_misfits_;
  /// Set once a device computes the scales.
  std::optional<DeviceScales> device_scales_;
  mutable std::optional<ArrivingNumbers> arriving_amaxes_;
  torch::nn::Module* module_ = nullptr;
  Float8Figures figures_;
};

// Returns the weights that are read only by one float8 layer of `module`.
std::vector<at::Tensor> weights_to_gather(
    const torch::nn::Module& module,
    const torch::nn::Module& whole_model,
    const Float8LayerRule& rule) {
  std::map<const void*, int> num_readers;
  const auto count = [&](const torch::nn::Module& each) {
    for (const at::Tensor& parameter : each.parameters(/*recurse=*/false))
      ++num_readers[parameter.unsafeGetTensorImpl()];
  };
  count(module);
  for (const auto& each : module.modules(/*include_self=*/false)) count(*each);
  const std::unordered_set<const torch::nn::Module*> own = modules_of(module);
  std::vector<at::Tensor> weights;
  for (const LinearLayer& layer : choose_linear_layers(whole_model, rule)) {
    if (!layer.choice.is_float8 || !own.contains(layer.module)) continue;
    if (num_readers[layer.weight.unsafeGetTensorImpl()] == 1)
      weights.push_back(layer.weight);
  }
  return weights;
}

}  // namespace

std::optional<Float8Gather> float8_gather_of(
    const Float8Request& request,
    std::shared_ptr<const torch::nn::Module> whole_model) {
  if (!gathers_in_float8(request)) return std::nullopt;
  const auto& recipe = std::get<AORecipeKwargs>(request.recipe);
  return Float8Gather{
      *float8_rules_of(recipe).weight,
      [rule = layer_rule_of(recipe),
       whole = std::move(whole_model)](const torch::nn::Module& module) {
        return weights_to_gather(module, whole ? *whole : module, rule);
      }};
}

std::unique_ptr<Strategy> make_float8(
    const Mesh& mesh,
    const Float8Request& request,
    std::shared_ptr<const torch::nn::Module> whole_model) {
  return std::make_unique<Float8>(mesh, request, std::move(whole_model));
}

}  // namespace accelerate::detail
