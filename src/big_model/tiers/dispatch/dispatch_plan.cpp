#include "big_model/tiers/dispatch/dispatch_plan.h"

#include <string_view>
#include <unordered_map>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/map_place.h"
#include "big_model/offload/offload_folder.h"
#include "modules/module_tree.h"

namespace accelerate::detail {

namespace {

// Orders places by their distance from the computing device.
int distance(const MapDevice& place) {
  if (place.is_accelerator()) return 0;
  if (place.is_cpu()) return 1;
  return place.is_disk() ? 2 : 3;
}

struct FoundTensor {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool is_buffer = false;
  MapDevice place = "cpu";
  std::size_t unit = 0;
};

class DispatchPlanner {
 public:
  DispatchPlanner(
      const torch::nn::Module& module,
      const DispatchRequest& request)
      : request_(request) {
    visit(module, "", std::nullopt);
  }

  DispatchPlan plan() {
    DispatchPlan plan;
    plan.kept.units = std::move(units_);
    std::set<std::string> devices;
    for (FoundTensor& each : found_) {
      const c10::Device device = each.place.is_accelerator()
          ? torch_device(each.place)
          : request_.main_device;
      const CodedUnit codes = coded_unit(each.tensor);
      if (codes.keeper != nullptr) {
        add_codes(plan, each, codes, device);
      } else if (is_offloaded(each)) {
        WeightUnit& unit = plan.kept.units[each.unit];
        unit.tensors.push_back(plan.kept.tensors.size());
        unit.num_bytes += num_bytes_of(each.tensor);
        plan.is_on_disk.push_back(each.place.is_disk());
        plan.is_code.push_back(false);
        plan.kept.tensors.push_back(
            {each.names.front(),
             each.tensor,
             {},
             device,
             each.unit,
             each.is_buffer});
        plan.kept_names.push_back(std::move(each.names));
      } else {
        plan.resident.emplace_back(each.tensor, device);
        plan.resident_names.push_back(std::move(each.names));
      }
      devices.insert(device.str());
    }
    plan.has_several_devices = devices.size() > 1;
    drop_empty_units(plan.kept);
    return plan;
  }

 private:
  void add_codes(
      DispatchPlan& plan,
      const FoundTensor& found,
      const CodedUnit& codes,
      c10::Device device) const {
    PlannedCodes planned{found.tensor, codes, device, {}};
    constexpr std::string_view kWeight = "weight";
    for (const std::string& name : found.names) {
      if (name == kWeight || name.ends_with(".weight"))
        planned.layers.push_back(name.substr(0, name.size() - kWeight.size()));
    }
    if (planned.layers.empty())
      planned.layers.push_back(found.names.front() + ".");
    planned.is_on_disk = is_offloaded(found) && found.place.is_disk();
    if (is_offloaded(found)) {
      WeightUnit& unit = plan.kept.units[found.unit];
      for (const CodeTensor& part : codes.keeper->code_tensors(codes.unit)) {
        if (!part.may_be_offloaded) continue;
        planned.kept.push_back(plan.kept.tensors.size());
        unit.tensors.push_back(plan.kept.tensors.size());
        unit.num_bytes += num_bytes_of(part.tensor);
        plan.is_on_disk.push_back(found.place.is_disk());
        plan.is_code.push_back(true);
        std::vector<std::string> names;
        for (const std::string& layer : planned.layers)
          names.push_back(layer + part.name);
        plan.kept.tensors.push_back(
            {names.front(), part.tensor, {}, device, found.unit});
        plan.kept_names.push_back(std::move(names));
      }
    }
    plan.codes.push_back(std::move(planned));
  }

  [[nodiscard]] bool is_offloaded(const FoundTensor& each) const {
    if (each.place.is_accelerator()) return false;
    if (each.is_buffer && !request_.offload_buffers) return false;
    return each.place.is_disk() || request_.offloads_host;
  }

  static void drop_empty_units(KeptWeights& kept) {
    std::vector<WeightUnit> used;
    for (WeightUnit& unit : kept.units) {
      if (unit.tensors.empty()) continue;
      for (const std::size_t tensor : unit.tensors)
        kept.tensors[tensor].unit = used.size();
      used.push_back(std::move(unit));
    }
    kept.units = std::move(used);
  }

  void visit(
      const torch::nn::Module& module,
      const std::string& name,
      std::optional<std::size_t> unit) {
    const ModuleNode node{"", module.name(), {}, {}, {}};
    if (!unit) {
      units_.push_back({name, {}, 0});
      const bool is_whole = request_.is_one_unit ||
          is_one_of(node, request_.preload_module_classes);
      if (is_whole) unit = units_.size() - 1;
    }
    const std::size_t own = unit.value_or(units_.size() - 1);
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add(dotted_name(name, item.key()), item.value(), false, own);
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      add(dotted_name(name, item.key()), item.value(), true, own);
    for (const auto& child : module.named_children())
      visit(*child.value(), dotted_name(name, child.key()), unit);
  }

  void add(
      const std::string& name,
      const at::Tensor& tensor,
      bool is_buffer,
      std::size_t unit) {
    if (!tensor.defined()) return;
    const auto place = request_.device_map->device_of(name);
    // The map was checked, so only tensors outside the state dict have no
    // place.
    const MapDevice own = place.value_or(MapDevice("cpu"));
    const auto [known, is_new] =
        places_.emplace(tensor.unsafeGetTensorImpl(), found_.size());
    if (is_new) {
      found_.push_back({{name}, tensor, is_buffer, own, unit});
      return;
    }
    FoundTensor& found = found_[known->second];
    found.names.push_back(name);
    if (distance(own) < distance(found.place)) found.place = own;
  }

  const DispatchRequest& request_;
  std::vector<FoundTensor> found_;
  std::vector<WeightUnit> units_;
  std::unordered_map<const void*, std::size_t> places_;
};

}  // namespace

DispatchPlan plan_dispatch(
    const torch::nn::Module& module,
    const DispatchRequest& request) {
  return DispatchPlanner(module, request).plan();
}

void StoredWeights::add(StoredTensors tensors) {
  for (auto& [name, stored] : tensors)
    tensors_.insert_or_assign(
        name, std::make_shared<const StoredTensor>(std::move(stored)));
}

void StoredWeights::add(
    const OffloadIndex& index,
    const std::filesystem::path& folder) {
  std::map<std::filesystem::path, StoredTensors> files;
  for (const auto& [name, weight] : index.entries()) {
    if (weight.safetensors_file.empty()) {
      tensors_.insert_or_assign(
          name,
          std::make_shared<const StoredTensor>(
              stored_in_dat_file(offloaded_file(folder, name), weight)));
      continue;
    }
    auto file = files.find(weight.safetensors_file);
    if (file == files.end()) {
      file = files
                 .emplace(
                     weight.safetensors_file,
                     stored_in_safetensors(weight.safetensors_file))
                 .first;
    }
    const std::string& key =
        weight.weight_name.empty() ? name : weight.weight_name;
    const auto found = file->second.find(key);
    if (found == file->second.end()) {
      throw CheckpointError(format(
          "[big_model] {} has no tensor \"{}\", which the offload index names",
          weight.safetensors_file.string(),
          printable(key)));
    }
    tensors_.insert_or_assign(
        name, std::make_shared<const StoredTensor>(found->second));
  }
}

std::shared_ptr<const StoredTensor> StoredWeights::find(
    const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second;
  }
  return nullptr;
}

}  // namespace accelerate::detail
