#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/device_map.h>

#include "big_model/module_trees.h"
#include "big_model/plan/check_map.h"
#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "modules/module_tree.h"

namespace accelerate::detail {
namespace device_map_law_test {

/// A tree of up to three levels with some tied tensors and no-split blocks.
class TreeOfChance {
 public:
  ModuleNode module(const std::string& name, int depth) {
    ModuleNode node{
        name, *rc::gen::element<std::string>("Block", "Net"), {}, {}, {}};
    for (int i = 0, count = *rc::gen::inRange(0, 3); i < count; ++i)
      node.parameters.push_back(parameter("p" + std::to_string(i)));
    if (*rc::gen::inRange(0, 4) == 0)
      node.buffers.push_back(make_.tensor("shift", *rc::gen::inRange(1, 20)));
    if (depth == 0) return node;
    for (int i = 0, count = *rc::gen::inRange(1, 4); i < count; ++i)
      node.children.push_back(module(std::to_string(i), depth - 1));
    return node;
  }

 private:
  ModuleTensor parameter(const std::string& name) {
    if (!made_.empty() && *rc::gen::inRange(0, 8) == 0) {
      ModuleTensor tied = *rc::gen::elementOf(made_);
      tied.name = name;
      return tied;
    }
    made_.push_back(make_.tensor(name, *rc::gen::inRange(1, 100)));
    return made_.back();
  }

  testing::TreeMaker make_;
  std::vector<ModuleTensor> made_;
};

ModuleNode tree_of_chance() {
  TreeOfChance chance;
  ModuleNode root = chance.module("", *rc::gen::inRange(1, 4));
  root.class_name = "Model";
  return root;
}

MaxMemory limits_of_chance() {
  MaxMemory limits;
  for (int i = 0, count = *rc::gen::inRange(0, 3); i < count; ++i)
    limits.emplace_back(i, *rc::gen::inRange(0, 2000));
  limits.emplace_back("cpu", *rc::gen::inRange(0, 2000));
  return limits;
}

InferAutoDeviceMapOptions options_of_chance() {
  InferAutoDeviceMapOptions options;
  options.max_memory = limits_of_chance();
  if (*rc::gen::arbitrary<bool>()) options.no_split_module_classes = {"Block"};
  options.offload_buffers = *rc::gen::arbitrary<bool>();
  options.fallback_allocation = *rc::gen::arbitrary<bool>();
  options.clean_result = *rc::gen::arbitrary<bool>();
  return options;
}

template <class Visit>
void for_each_module(
    const ModuleNode& module,
    const std::string& name,
    const Visit& visit) {
  visit(module, name);
  for (const ModuleNode& child : module.children)
    for_each_module(child, dotted_name(name, child.name), visit);
}

std::vector<std::string> tensor_names(const ModuleNode& root) {
  std::vector<std::string> names;
  for_each_module(root, "", [&](const ModuleNode& module, const auto& name) {
    for (const auto* tensors : {&module.parameters, &module.buffers})
      for (const ModuleTensor& tensor : *tensors)
        names.push_back(dotted_name(name, tensor.name));
  });
  return names;
}

TEST(DeviceMapLaws, EveryTensorHasAPlace) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    const DeviceMap map =
        complete_device_map(root, infer_device_map(root, options_of_chance()));
    const DeviceMapComplaints complaints = find_complaints(root, map);
    RC_ASSERT(complaints.missing.empty());
    RC_ASSERT(complaints.unknown.empty());
  }));
}

TEST(DeviceMapLaws, DevicesKeepTheirLimits) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    const InferAutoDeviceMapOptions options = options_of_chance();
    const DeviceMap map = infer_device_map(root, options);
    std::map<MapDevice, double> used;
    for (const Placement& each : map.placements())
      used[each.device] += each.num_bytes;
    for (const auto& [device, size] : options.max_memory)
      RC_ASSERT(used[device] <= static_cast<double>(size.bytes()));
  }));
}

TEST(DeviceMapLaws, ModulesThatAreNotSplitHaveOnePlace) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    InferAutoDeviceMapOptions options = options_of_chance();
    options.no_split_module_classes = {"Block"};
    const DeviceMap map = infer_device_map(root, options);
    for_each_module(root, "", [&](const ModuleNode& module, const auto& name) {
      if (name.empty() || module.class_name != "Block") return;
      for (const Placement& each : map.placements())
        RC_ASSERT(!each.name.starts_with(name + "."));
    });
  }));
}

TEST(DeviceMapLaws, TiedParametersHaveOnePlace) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    const DeviceMap map = infer_device_map(root, options_of_chance());
    for (const auto& group : tied_parameters(root)) {
      for (const std::string& name : group)
        RC_ASSERT(map.device_of(name) == map.device_of(group.front()));
    }
  }));
}

TEST(DeviceMapLaws, CleaningChangesNoPlace) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    InferAutoDeviceMapOptions options = options_of_chance();
    options.clean_result = false;
    const DeviceMap map =
        complete_device_map(root, infer_device_map(root, options));
    const DeviceMap clean = clean_device_map(map);
    RC_ASSERT(clean.size() <= map.size());
    for (const std::string& name : tensor_names(root))
      RC_ASSERT(clean.device_of(name) == map.device_of(name));
    RC_ASSERT(clean_device_map(clean) == clean);
  }));
}

TEST(DeviceMapLaws, BalancedLimitsAreNotAboveTheGivenOnes) {
  EXPECT_TRUE(rc::check([] {
    const ModuleNode root = tree_of_chance();
    const MaxMemory given = normalised_memory(limits_of_chance());
    const bool low_zero = *rc::gen::arbitrary<bool>();
    const MaxMemory balanced =
        balanced_memory(root, given, {.low_zero = low_zero});
    RC_ASSERT(balanced.size() == given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      RC_ASSERT(balanced[i].first == given[i].first);
      RC_ASSERT(balanced[i].second.bytes() <= given[i].second.bytes());
    }
  }));
}

}  // namespace device_map_law_test
}  // namespace accelerate::detail
