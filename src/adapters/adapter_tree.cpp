#include "adapters/adapter_tree.h"

#include <algorithm>
#include <functional>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr const char* kDicts[] = {
    "lora_A",
    "lora_B",
    "lora_embedding_A",
    "lora_embedding_B",
    "lora_magnitude_vector",
    "modules_to_save"};

std::shared_ptr<AdapterDict> dict_of(
    torch::nn::Module& module,
    const std::string& name) {
  const auto children = module.named_children();
  const auto* const found = children.find(name);
  return found == nullptr ? nullptr
                          : std::dynamic_pointer_cast<AdapterDict>(*found);
}

AdapterDict& made_dict(
    torch::nn::Module& module,
    const std::string& name,
    const std::shared_ptr<AdapterKeeper>& keeper) {
  if (const auto known = dict_of(module, name)) return *known;
  return *module.register_module(name, std::make_shared<AdapterDict>(keeper));
}

void visit_modules(
    torch::nn::Module& module,
    const std::string& name,
    const std::function<void(torch::nn::Module&, const std::string&)>& visit) {
  visit(module, name);
  for (const auto& child : module.named_children()) {
    if (child.value())
      visit_modules(*child.value(), joined(name, child.key()), visit);
  }
}

// Makes a plain module with copies of a module's parameters, its children's
// included.
std::shared_ptr<torch::nn::Module> copy_of(
    torch::nn::Module& module,
    const std::string& name,
    const std::string& adapter,
    const std::string& root,
    AdapterKeeper& keeper) {
  auto copy = std::make_shared<torch::nn::Module>(module.name());
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const std::string full = joined(name, item.key());
    CopiedParameter* known = keeper.copied(full);
    if (known == nullptr) {
      known =
          &keeper.add_copied({.name = full, .module_name = root}, item.value());
    }
    const at::NoGradGuard no_grad;
    at::Tensor values = item.value().clone();
    known->copies[adapter] = copy->register_parameter(item.key(), values);
  }
  for (const auto& child : module.named_children()) {
    if (child.value() == nullptr ||
        std::dynamic_pointer_cast<AdapterDict>(child.value()) != nullptr) {
      continue;
    }
    copy->register_module(
        child.key(),
        copy_of(
            *child.value(), joined(name, child.key()), adapter, root, keeper));
  }
  return copy;
}

bool trains_bias(
    const AdapterKeeper& keeper,
    const std::string& module,
    const std::string& parameter) {
  if (parameter != "bias") return false;
  return std::ranges::any_of(keeper.active, [&](const auto& name) {
    const KnownAdapter& known = keeper.adapters.at(name);
    if (!known.is_trainable) return false;
    const AdapterBias bias = known.options.bias;
    return bias == AdapterBias::all ||
        (bias == AdapterBias::lora_only && keeper.layer(module) != nullptr);
  });
}

}  // namespace

void AdapterDict::erase(const std::string& name) {
  if (named_children().contains(name)) unregister_module(name);
  if (parameters_.contains(name)) parameters_.erase(name);
}

std::string joined(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

std::string module_part(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::vector<NamedModule> modules_without_adapters(torch::nn::Module& model) {
  std::vector<NamedModule> modules;
  const std::function<void(torch::nn::Module&, const std::string&)> add =
      [&](torch::nn::Module& module, const std::string& name) {
        modules.push_back({name, nullptr, &module});
        for (const auto& child : module.named_children()) {
          if (child.value() &&
              std::dynamic_pointer_cast<AdapterDict>(child.value()) ==
                  nullptr) {
            add(*child.value(), joined(name, child.key()));
          }
        }
      };
  add(model, "");
  return modules;
}

std::shared_ptr<AdapterKeeper> keeper_in(torch::nn::Module& model) {
  std::shared_ptr<AdapterKeeper> keeper;
  visit_modules(model, "", [&](torch::nn::Module& module, const std::string&) {
    if (auto* const dict = dynamic_cast<AdapterDict*>(&module))
      keeper = dict->keeper();
  });
  if (keeper != nullptr && !keeper->is_of(model)) {
    throw ConfigError(format(
        "[adapters] the model must be the module to which the adapters were "
        "added, but {} is a part of it, or contains it",
        model.name()));
  }
  return keeper;
}

AdapterKeeper& require_keeper(torch::nn::Module& model) {
  const auto keeper = keeper_in(model);
  if (keeper != nullptr) return *keeper;
  throw ConfigError(format(
      "[adapters] the model must have adapters, but {} has none: call "
      "add_adapters() first",
      model.name()));
}

KnownAdapter& require_adapter(AdapterKeeper& keeper, const std::string& name) {
  const auto found = keeper.adapters.find(name);
  if (found != keeper.adapters.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, adapter] : keeper.adapters) names.push_back(known);
  throw ConfigError(format(
      "[adapters] the name of an adapter must be one of {}, but is \"{}\"",
      printable(join(names, ", ")),
      printable(name)));
}

torch::nn::Module& module_at(
    torch::nn::Module& model,
    const std::string& name) {
  torch::nn::Module* module = &model;
  for (const std::string& part :
       name.empty() ? std::vector<std::string>() : split(name, '.')) {
    const auto children = module->named_children();
    const auto* const found = children.find(part);
    if (found == nullptr || !*found) {
      throw ConfigError(format(
          "[adapters] the model must keep the module \"{}\", which has "
          "adapters, but it is gone",
          printable(name)));
    }
    module = found->get();
  }
  return *module;
}

at::Tensor parameter_at(
    const torch::nn::Module& model,
    const std::string& name) {
  torch::nn::Module& owner =
      module_at(const_cast<torch::nn::Module&>(model), module_part(name));
  return own_parameter(owner, name.substr(name.rfind('.') + 1).c_str());
}

void register_adapter(
    torch::nn::Module& layer,
    LayerKind kind,
    const std::string& name,
    LayerAdapter& adapter,
    const std::shared_ptr<AdapterKeeper>& keeper) {
  if (kind == LayerKind::embedding) {
    adapter.a = made_dict(layer, "lora_embedding_A", keeper)
                    .register_parameter(name, adapter.a);
    adapter.b = made_dict(layer, "lora_embedding_B", keeper)
                    .register_parameter(name, adapter.b);
  } else {
    const auto a =
        made_dict(layer, "lora_A", keeper)
            .register_module(name, std::make_shared<AdapterWeight>(adapter.a));
    const auto b =
        made_dict(layer, "lora_B", keeper)
            .register_module(name, std::make_shared<AdapterWeight>(adapter.b));
    adapter.a = a->weight;
    adapter.b = b->weight;
    adapter.mode = a;
    a->train(layer.is_training());
    b->train(layer.is_training());
  }
  if (!adapter.magnitude.defined()) return;
  const auto norms =
      made_dict(layer, "lora_magnitude_vector", keeper)
          .register_module(
              name, std::make_shared<AdapterWeight>(adapter.magnitude));
  adapter.magnitude = norms->weight;
}

void unregister_adapter(torch::nn::Module& layer, const std::string& name) {
  for (const char* const each : kDicts) {
    const auto dict = dict_of(layer, each);
    if (dict == nullptr) continue;
    dict->erase(name);
    if (dict->is_empty()) layer.unregister_module(each);
  }
}

void register_copies(
    const NamedModule& module,
    const std::string& name,
    const std::shared_ptr<AdapterKeeper>& keeper) {
  const auto copy =
      copy_of(*module.module, module.name, name, module.name, *keeper);
  copy->train(module.module->is_training());
  made_dict(*module.module, "modules_to_save", keeper)
      .register_module(name, copy);
}

void update_requires_grad(
    torch::nn::Module& model,
    const AdapterKeeper& keeper) {
  const auto set = [](const at::Tensor& tensor, bool trains) {
    if (tensor.requires_grad() == trains) return;
    tensor.set_requires_grad(trains);
    if (!trains) tensor.mutable_grad() = at::Tensor();
  };
  for (const NamedModule& each : modules_without_adapters(model)) {
    for (const auto& item : each.module->named_parameters(/*recurse=*/false)) {
      if (item.value().defined())
        set(item.value(), trains_bias(keeper, each.name, item.key()));
    }
  }
  const auto trains = [&](const std::string& name) {
    return keeper.is_active(name) && keeper.adapters.at(name).is_trainable;
  };
  for (const AdaptedLayer* const layer : keeper.layers()) {
    for (const auto& [name, adapter] : layer->adapters) {
      for (const at::Tensor& each : {adapter.a, adapter.b, adapter.magnitude})
        if (each.defined()) set(each, trains(name));
    }
  }
  for (const CopiedParameter* const parameter : keeper.all_copied()) {
    for (const auto& [name, copy] : parameter->copies) set(copy, trains(name));
  }
}

}  // namespace accelerate::detail
