#include "big_model/plan/device_map_inference.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "big_model/plan/pending_modules.h"
#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

namespace {

// A device being filled.
struct Filling {
  MapDevice device;
  std::optional<double> max_memory;
  // Whether layers of other devices are moved to it to compute.
  bool is_main = false;
  double used = 0;
  double buffers = 0;
  std::optional<double> minimum_needed = std::nullopt;
  // Items that the fallback has moved to the front for this device, so that two
  // items are not exchanged forever.
  std::set<int> tried = {};
};

std::vector<Filling> fillings_of(const MaxMemory& max_memory) {
  std::vector<Filling> list;
  for (const auto& [device, size] : max_memory) {
    if (device.is_meta() || device.is_disk()) continue;
    list.push_back({device, static_cast<double>(size.bytes())});
  }
  list.push_back({MapDevice("disk"), std::nullopt});
  const bool has_mps = std::ranges::any_of(list, [](const Filling& each) {
    return each.device == MapDevice("mps");
  });
  for (Filling& each : list) {
    each.is_main = has_mps ? each.device == MapDevice("mps")
                           : each.device.is_cpu() ||
            (each.device.is_accelerator() && &each == &list.front());
  }
  return list;
}

// Items that must be placed together with another one, and their total size.
struct Company {
  std::vector<int> holders;
  double num_bytes = 0;
};

class Inference {
 public:
  Inference(const ModuleNode& root, const InferAutoDeviceMapOptions& options)
      : options_(options),
        tree_(
            root,
            {options.dtype, options.special_dtypes},
            options.no_split_module_classes),
        pending_(tree_),
        devices_(fillings_of(options.max_memory)) {}

  DeviceMap run() {
    while (!pending_.empty()) step();
    std::vector<DeviceUse> uses;
    for (const Filling& each : devices_) {
      if (each.used == 0 && !each.minimum_needed) continue;
      const auto limit = each.max_memory
          ? std::optional(static_cast<std::int64_t>(*each.max_memory))
          : std::nullopt;
      uses.push_back(
          {each.device,
           limit,
           each.used - reserved_of(each),
           reserved_of(each),
           each.minimum_needed});
    }
    DeviceMap map(std::move(placements_), std::move(uses), warnings());
    return options_.clean_result ? clean_device_map(map) : map;
  }

 private:
  Filling& device() { return devices_[current_]; }

  double reserved_of(const Filling& filling) const {
    const auto found = std::ranges::find_if(reserved_, [&](const auto& entry) {
      return entry.first == filling.device;
    });
    return found == reserved_.end() ? 0 : found->second;
  }

  // Places the first item, or changes the list, or moves on to the next device.
  void step() {
    const int item = pending_.take_front();
    const Company company = company_of(item);
    Filling& to = device();
    if (!to.max_memory) return assign(item, company, PlacementReason::last);
    const double reserve = to.is_main ? pending_.largest_layer() : 0;
    const double room = *to.max_memory - reserve - to.used;
    const double size = tree_[item].num_bytes;
    if (company.num_bytes <= room) {
      const Company everyone = closure_of(item, company);
      if (everyone.num_bytes <= room) {
        return assign(
            item,
            everyone,
            to.tried.contains(item) ? PlacementReason::fallback
                                    : PlacementReason::fits);
      }
    }
    if (!company.holders.empty() && size <= room && split_one_of(company)) {
      pending_.put_front(item);
      pending_.find_largest_layer();
      return;
    }
    if (size >= room && tree_.is_splittable(item)) {
      pending_.put_front(tree_.parts(item));
      pending_.find_largest_layer();
      return;
    }
    if (options_.fallback_allocation && to.used == 0 &&
        fall_back(item, company.num_bytes)) {
      return;
    }
    leave_device(item, company.num_bytes, reserve);
  }

  void leave_device(int item, double needed, double reserve) {
    Filling& from = device();
    if (from.used == 0) from.minimum_needed = needed + reserve;
    from.used += reserve;
    reserved_.emplace_back(from.device, reserve);
    ++current_;
    pending_.put_front(item);
  }

  // The items that hold parameters tied to one inside `item`.
  Company company_of(int item) const {
    Company company{{}, tree_[item].num_bytes};
    for (const int parameter : tree_.tied_outside(item)) {
      const int holder = pending_.holder_of(parameter);
      // Already placed, or just taken from the list.
      if (holder < 0) continue;
      company.holders.push_back(holder);
      // A holder that shares two parameters counts twice, as in Accelerate. The
      // tied parameter itself counts in one of the two, wherever it comes
      // first.
      company.num_bytes += tree_[holder].num_bytes;
    }
    return company;
  }

  // Adds the items tied to the companions, transitively.
  Company closure_of(int item, const Company& company) const {
    std::set<int> all(company.holders.begin(), company.holders.end());
    std::vector<int> to_visit(all.begin(), all.end());
    double added = 0;
    while (!to_visit.empty()) {
      const int next = to_visit.back();
      to_visit.pop_back();
      for (const int parameter : tree_.tied_outside(next)) {
        const int holder = pending_.holder_of(parameter);
        if (holder < 0 || holder == item || !all.insert(holder).second)
          continue;
        added += tree_[holder].num_bytes;
        to_visit.push_back(holder);
      }
    }
    if (added == 0 && all.size() == company.holders.size()) return company;
    Company everyone{company.holders, company.num_bytes + added};
    for (const int holder : company.holders) all.erase(holder);
    everyone.holders.insert(everyone.holders.end(), all.begin(), all.end());
    return everyone;
  }

  void assign(int item, const Company& company, PlacementReason reason) {
    Company all = company;
    if (reason == PlacementReason::last) all = closure_of(item, company);
    Filling& to = device();
    place(item, reason);
    for (const int holder : all.holders) {
      if (pending_.holder_of(holder) != holder) continue;
      pending_.remove(holder);
      place(holder, PlacementReason::tied);
    }
    to.used += all.num_bytes;
    if (!options_.offload_buffers && tree_.is_module(item))
      to.buffers += tree_[item].num_buffer_bytes;
  }

  void place(int node, PlacementReason reason) {
    const Filling& to = device();
    placements_.push_back(
        {tree_.name_of(node),
         to.device,
         reason,
         tree_[node].num_bytes,
         to.used,
         to.is_main ? pending_.largest_layer() : 0});
  }

  // Splits the first companion that can be split.
  bool split_one_of(const Company& company) {
    for (const int holder : company.holders) {
      if (!tree_.is_splittable(holder)) continue;
      pending_.replace(holder, tree_.parts(holder));
      return true;
    }
    return false;
  }

  // Looks for something that fits on an unused device instead of `item`, and
  // moves it to the front.
  bool fall_back(int item, double needed) {
    Filling& to = device();
    const double room =
        *to.max_memory - std::max(pending_.largest_layer(), needed);
    const int found = first_that_fits(item, room);
    if (found < 0 || !to.tried.insert(found).second) return false;
    // Items that contain it are split on the way down to it.
    for (int holder = pending_.holder_of(found); holder != found;
         holder = pending_.holder_of(found)) {
      pending_.replace(holder, tree_.parts(holder));
    }
    pending_.remove(found);
    pending_.put_front(item);
    pending_.put_front(found);
    return true;
  }

  int first_that_fits(int front, double room) const {
    std::vector<int> to_visit = pending_.items();
    std::ranges::reverse(to_visit);
    while (!to_visit.empty()) {
      const int node = to_visit.back();
      to_visit.pop_back();
      if (size_with_ties(front, node) <= room) return node;
      if (!tree_.is_splittable(node)) continue;
      const std::vector<int> parts = tree_.parts(node);
      to_visit.insert(to_visit.end(), parts.rbegin(), parts.rend());
    }
    return -1;
  }

  // Bytes of a part and its companions, once the items that contain the part
  // are split on the way down to it. `front` is the item at the front.
  double size_with_ties(int front, int node) const {
    double size = tree_[node].num_bytes;
    for (const int parameter : tree_.tied_outside(node)) {
      int holder = tree_.is_inside(parameter, front)
          ? front
          : pending_.holder_of(parameter);
      if (tree_.is_inside(node, holder))
        holder = sibling(holder, node, parameter);
      size += tree_[holder].num_bytes;
    }
    return size;
  }

  // The largest part below `holder` that contains `parameter` but not `node`.
  int sibling(int holder, int node, int parameter) const {
    int part = parameter;
    while (tree_[part].parent != holder &&
           !tree_.is_inside(node, tree_[part].parent)) {
      part = tree_[part].parent;
    }
    return part;
  }

  // Buffers of offloaded modules stay on an accelerator.
  std::vector<std::string> warnings() const {
    double buffers = 0;
    bool has_accelerator = false;
    for (const Filling& each : devices_) {
      if (each.device.is_accelerator()) {
        has_accelerator = true;
      } else {
        buffers += each.buffers;
      }
    }
    if (options_.offload_buffers || buffers == 0 || !has_accelerator) return {};
    for (const Filling& each : devices_) {
      if (each.device.is_accelerator() &&
          *each.max_memory >= buffers + each.used) {
        return {};
      }
    }
    return {format(
        "[big_model] buffers of offloaded modules take {}, but no accelerator "
        "device has room for them; set offload_buffers, so that they travel "
        "with their modules",
        format_size(buffers))};
  }

  const InferAutoDeviceMapOptions& options_;
  SizedTree tree_;
  PendingModules pending_;
  std::vector<Filling> devices_;
  std::size_t current_ = 0;
  std::vector<Placement> placements_;
  std::vector<std::pair<MapDevice, double>> reserved_;
};

}  // namespace

DeviceMap infer_device_map(
    const ModuleNode& root,
    const InferAutoDeviceMapOptions& options) {
  if (options.max_memory.empty())
    throw InternalError("[big_model] a device map needs limits of memory");
  return Inference(root, options).run();
}

}  // namespace accelerate::detail
