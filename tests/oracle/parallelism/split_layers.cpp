#include <algorithm>
#include <map>
#include <string>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerator.h>

#include "oracle/parallelism/parallelism.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle::topic_parallelism {

namespace split_layers_detail {

namespace nn = torch::nn;

at::Tensor activated(const std::string& name, const at::Tensor& x) {
  if (name == "tanh") return x.tanh();
  if (name == "relu") return x.relu();
  return at::gelu(x);
}

struct RecordedMlp : nn::Module {
  RecordedMlp(const Json& model, bool has_bias)
      : act(model.at("act")),
        up(nn::LinearOptions(model.at("width"), model.at("hidden"))
               .bias(has_bias)),
        down(nn::LinearOptions(model.at("hidden"), model.at("width"))
                 .bias(has_bias)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down(activated(act, up(x)));
  }

  std::string act;
  nn::Linear up, down;
};

/// One of the recorded models, by its class.
struct RecordedLayers : nn::Module {
  explicit RecordedLayers(const Json& model) : kind(model.at("class")) {
    const std::int64_t width = model.at("width");
    const bool has_bias = model.value("bias", true);
    if (kind == "Mlp") {
      mlp = std::make_shared<RecordedMlp>(model, has_bias);
      register_module("up", mlp->up);
      register_module("down", mlp->down);
    } else if (kind == "Attention") {
      heads = model.at("heads");
      for (const char* const name : {"q", "k", "v", "o"}) {
        projections.push_back(register_module(
            name, nn::Linear(nn::LinearOptions(width, width).bias(has_bias))));
      }
    } else if (kind == "Block") {
      norm =
          register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
      mlp = register_module(
          "mlp", std::make_shared<RecordedMlp>(model, has_bias));
    } else {
      embed = register_module(
          "embed", nn::Embedding(model.at("words").get<std::int64_t>(), width));
      norm =
          register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
      head = register_module(
          "head",
          nn::Linear(nn::LinearOptions(width, model.at("words")).bias(false)));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    if (kind == "Mlp") return mlp->forward(x);
    if (kind == "Block") return x + mlp->forward(norm(x));
    if (kind == "Language") return head(norm(embed(x)));
    const auto split = [&](nn::Linear& projection) {
      const at::Tensor y = projection(x);
      const std::int64_t size = projections[0]->options.out_features() / heads;
      return y.unflatten(-1, {-1, size}).transpose(1, 2);
    };
    const at::Tensor attended = at::scaled_dot_product_attention(
        split(projections[0]), split(projections[1]), split(projections[2]));
    return projections[3](attended.transpose(1, 2).flatten(-2));
  }

  std::string kind;
  std::int64_t heads = 0;
  std::shared_ptr<RecordedMlp> mlp;
  std::vector<nn::Linear> projections;
  nn::LayerNorm norm{nullptr};
  nn::Embedding embed{nullptr};
  nn::Linear head{nullptr};
};

void fill(nn::Module& model) {
  const at::NoGradGuard no_grad;
  std::int64_t seed = 0;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    const bool is_norm = item.key().find("norm.weight") != std::string::npos;
    const at::Tensor filled =
        values(tensor.sizes().vec(), ++seed, tensor.dim() > 1 ? 0.5 : 0.25);
    tensor.copy_(is_norm ? filled + 1 : filled);
  }
}

TensorPlacement
placement(const Json& style, const char* name, TensorPlacement unset) {
  if (!style.contains(name)) return unset;
  const std::string text = style.at(name);
  if (text == "replicate") return Replicate{};
  return Shard{std::stoi(text.substr(5))};
}

// A recorded plan as this library takes it. Modules of LibTorch have no hooks,
// so what the plan prepares for the model is done by its caller, and what it
// prepares for a module of the model's own code is asked of its first layer.
struct RecordedPlan {
  explicit RecordedPlan(const Json& entries) {
    std::map<std::string, Json> inputs;  // by the prefix of the module's layers
    for (const Json& entry : entries) {
      const std::string module = entry[0];
      const Json& style = entry[1];
      if (style.at("style") == "PrepareModuleInput") {
        require(
            style, "input_layouts", module.empty() ? "replicate" : "shard1");
        require(
            style,
            "desired_input_layouts",
            module.empty() ? "shard1" : "replicate");
        if (module.empty()) {
          slices_input = true;
        } else {
          inputs[module + "."] = style.at("input_layouts");
        }
      } else if (style.at("style") == "PrepareModuleOutput") {
        if (!module.empty()) throw NotBuilt("PrepareModuleOutput of " + module);
        require(style, "output_layouts", "shard1");
        require(style, "desired_output_layouts", "replicate");
        gathers_output = true;
      } else {
        layers.push_back(entry);
      }
    }
    for (const auto& [prefix, layout] : inputs) {
      const auto first = std::find_if(
          layers.begin(), layers.end(), [&prefix = prefix](const Json& entry) {
            return entry[0].get<std::string>().starts_with(prefix);
          });
      if (first == layers.end()) throw NotBuilt("PrepareModuleInput");
      (*first)[1]["input_layouts"] = layout;
    }
  }

  Json layers = Json::array();
  /// Each rank gives the model its slice of the sequence.
  bool slices_input = false;
  /// The model returns slices of the sequence.
  bool gathers_output = false;

 private:
  static void
  require(const Json& style, const char* name, const char* expected) {
    if (style.at(name) != expected)
      throw NotBuilt(std::string(name) + " " + style.at(name).dump());
  }
};

ParallelizePlan plan_of(const Json& entries) {
  ParallelizePlan plan;
  for (const Json& entry : entries) {
    const Json& style = entry[1];
    const std::string name = style.at("style");
    if (name == "ColwiseParallel") {
      plan.emplace_back(
          entry[0],
          ColwiseParallel{
              .input_layouts = placement(style, "input_layouts", Replicate{}),
              .output_layouts = placement(style, "output_layouts", Shard{-1})});
    } else if (name == "RowwiseParallel") {
      plan.emplace_back(
          entry[0],
          RowwiseParallel{
              .input_layouts = placement(style, "input_layouts", Shard{-1}),
              .output_layouts =
                  placement(style, "output_layouts", Replicate{})});
    } else if (name == "SequenceParallel") {
      plan.emplace_back(entry[0], SequenceParallel{});
    } else {
      throw NotBuilt(name);
    }
  }
  return plan;
}

// The dimension along which a rank's tensor is sharded; nothing if it is full.
std::optional<std::int64_t> split_dim(
    const at::Tensor& part,
    const at::Tensor& whole) {
  for (std::int64_t dim = 0; dim < whole.dim(); ++dim)
    if (part.size(dim) != whole.size(dim)) return dim;
  return std::nullopt;
}

// Returns "Replicate()" for full tensors of modules that the plan names.
Json placement_json(
    const std::string& name,
    const std::optional<std::int64_t>& dim,
    const Json& plan) {
  if (dim) return Json::array({"Shard(dim=" + std::to_string(*dim) + ")"});
  const std::string module = name.substr(0, name.rfind('.'));
  for (const Json& entry : plan)
    if (entry[0] == module) return Json::array({"Replicate()"});
  return nullptr;
}

}  // namespace split_layers_detail

Json split_layers(const Json& input) {
  using namespace split_layers_detail;
  const int num_ranks = input.at("num_processes");
  const Json& model = input.at("model");
  const RecordedPlan recorded(input.at("plan"));
  const ParallelizePlan plan = plan_of(recorded.layers);
  const auto whole = std::make_shared<RecordedLayers>(model);
  const std::vector<std::int64_t> rows{input.at("batch"), input.at("length")};
  const bool takes_words = model.at("class") == "Language";
  const std::int64_t width =
      takes_words ? model.at("words") : model.at("width");
  std::vector<std::int64_t> shape = rows;
  shape.push_back(width);
  const at::Tensor x = takes_words ? at::arange(rows[0] * rows[1], at::kLong)
                                         .mul(5)
                                         .remainder(width)
                                         .view(rows)
                                   : values(shape, 40);
  const at::Tensor target = values(shape, 50);

  Json outcome;
  std::vector<Json> local(static_cast<std::size_t>(num_ranks), Json::array());
  testing::run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel = {.tensor = num_ranks, .parallelize_plan = plan},
         .world = world});
    const auto net = std::make_shared<RecordedLayers>(model);
    fill(*net);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [prepared, optimizer] = accelerator.prepare(net, sgd);
    const Group& group = accelerator.mesh().group(Axis::tensor);
    const auto slice_if = [&](bool slices, const at::Tensor& full) {
      return slices
          ? full.chunk(num_ranks, 1)[static_cast<std::size_t>(group.rank())]
          : full;
    };
    at::Tensor output = prepared(slice_if(recorded.slices_input, x));
    // A rank's slice has its summands of the mean over the sequence.
    at::Tensor loss =
        (output - slice_if(recorded.gathers_output, target)).square().sum() /
        target.numel();
    accelerator.backward(loss);
    if (recorded.gathers_output) {
      output = at::cat(group.all_gather(output.detach()), 1);
      loss = at::stack(group.all_gather(loss.detach())).sum();
    }
    const auto sizes = whole->named_parameters();
    Json gradients = Json::array();
    for (const auto& item : net->named_parameters()) {
      const auto dim = split_dim(item.value(), sizes[item.key()]);
      local[static_cast<std::size_t>(accelerator.process_index())].push_back(
          {item.key(),
           item.value().sizes().vec(),
           placement_json(item.key(), dim, input.at("plan"))});
      at::Tensor gradient = item.value().grad().contiguous();
      if (dim) gradient = at::cat(group.all_gather(gradient), *dim);
      gradients.push_back({item.key(), write_tensor(gradient)});
    }
    if (!accelerator.is_main_process()) return;
    outcome["loss"] = loss.item<double>();
    outcome["output"] = write_tensor(output.detach());
    outcome["gradients"] = std::move(gradients);
  });
  outcome["local"] = local;
  return outcome;
}

}  // namespace accelerate::oracle::topic_parallelism
