#include "big_model/model/module_tensor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/gate_entry.h"

namespace accelerate::detail {

namespace {

struct TensorSearch {
  ModuleTensorHandle found;
  /// The module in which the search ended, and what it lacks.
  const torch::nn::Module* module = nullptr;
  std::string wanted;
  bool wanted_is_module = false;
};

TensorSearch search(const torch::nn::Module& root, const std::string& name) {
  TensorSearch result;
  result.module = &root;
  std::string_view rest = name;
  for (std::size_t dot = rest.find('.'); dot != std::string_view::npos;
       dot = rest.find('.')) {
    const std::string child(rest.substr(0, dot));
    const auto children = result.module->named_children();
    const auto* const found = children.find(child);
    if (found == nullptr || !*found) {
      result.wanted = child;
      result.wanted_is_module = true;
      return result;
    }
    result.module = found->get();
    rest.remove_prefix(dot + 1);
  }
  result.wanted = rest;
  const auto parameters = result.module->named_parameters(/*recurse=*/false);
  const auto buffers = result.module->named_buffers(/*recurse=*/false);
  if (const auto* const tensor = parameters.find(result.wanted)) {
    result.found = {*tensor, true};
  } else if (const auto* const buffer = buffers.find(result.wanted)) {
    result.found = {*buffer, false};
  }
  return result;
}

}  // namespace

ModuleTensorHandle require_module_tensor(
    const torch::nn::Module& module,
    const std::string& name) {
  const TensorSearch result = search(module, name);
  if (result.found.tensor.defined()) return result.found;
  throw ConfigError(format(
      "[big_model] the model has no tensor \"{}\": {} has no {} named \"{}\"",
      printable(name),
      result.module->name(),
      result.wanted_is_module ? "module" : "parameter or buffer",
      printable(result.wanted)));
}

void replace_in_place(const at::Tensor& tensor, const at::Tensor& contents) {
  if (!torch::autograd::isDifferentiableType(contents.scalar_type()) &&
      tensor.requires_grad()) {
    tensor.requires_grad_(false);
  }
  std::vector<TensorWatch> watches = take_watches(tensor);
  // set_data() refuses a tensor of another device type.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
  if (contents.is_meta()) return;
  for (TensorWatch& watch : watches) watch_tensor(tensor, std::move(watch));
}

std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 20;
  const auto count =
      static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNames));
  std::string text = join(
      std::vector<std::string>(names.begin(), names.begin() + count), ", ");
  if (names.size() > kMostNames)
    text += format(" and {} more", names.size() - kMostNames);
  return text;
}

}  // namespace accelerate::detail
