#include "big_model/plan/sized_tree.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "base/text/sizes.h"

namespace accelerate::detail {

// Bytes of one element, by the rules of Accelerate's compute_module_sizes.
class ElementSizes {
 public:
  explicit ElementSizes(const ModuleSizesOptions& options) {
    if (!options.dtype.empty()) most_ = dtype_bytes(options.dtype);
    for (const auto& [name, dtype] : options.special_dtypes)
      special_.insert_or_assign(name, dtype_bytes(dtype));
  }

  [[nodiscard]] bool has_special() const { return !special_.empty(); }

  // `name` is dotted, and read only if some tensors have special dtypes.
  [[nodiscard]] double num_bytes(
      const ModuleTensor& tensor,
      const std::string& name) const {
    const auto count = static_cast<double>(tensor.num_elements);
    if (has_special()) {
      const auto found = special_.find(name);
      if (found != special_.end()) return count * found->second;
    }
    const bool is_bool = tensor.dtype == "bool";
    const double own = is_bool ? count * dtype_bytes(tensor.dtype)
                               : static_cast<double>(tensor.num_bytes);
    const bool is_integer = is_bool || tensor.dtype.starts_with("int") ||
        tensor.dtype.starts_with("uint");
    return most_ && !is_integer ? std::min(own, count * *most_) : own;
  }

 private:
  std::optional<double> most_;
  std::unordered_map<std::string, double> special_;
};

// Ids seen so far. Those of a program's module count up from 0.
class SeenIds {
 public:
  // Returns whether the id is new.
  bool insert(std::uint64_t id) {
    if (id >= kMostInOrder) return others_.insert(id).second;
    const auto place = static_cast<std::size_t>(id);
    if (place >= has_.size()) has_.resize(2 * place + 1, false);
    const bool is_new = !has_[place];
    has_[place] = true;
    return is_new;
  }

 private:
  static constexpr std::uint64_t kMostInOrder = std::uint64_t{1} << 22U;
  std::vector<bool> has_;
  std::unordered_set<std::uint64_t> others_;
};

namespace {

std::size_t num_nodes(const ModuleNode& module) {
  std::size_t count = 1 + module.parameters.size() + module.buffers.size();
  for (const ModuleNode& child : module.children) count += num_nodes(child);
  return count;
}

}  // namespace

class SizedTree::Builder {
 public:
  Builder(
      SizedTree& tree,
      const ModuleSizesOptions& sizes,
      const std::vector<std::string>& no_split)
      : tree_(tree),
        sizes_(sizes),
        buffers_only_(sizes.buffers_only),
        no_split_(no_split) {}

  void reserve(std::size_t num_nodes) {
    tree_.nodes_.reserve(num_nodes);
    ids_.reserve(num_nodes);
  }

  void add_module(const ModuleNode& module, int parent) {
    const int self = add({SizedNode::Kind::module, parent});
    ids_.push_back(0);
    at(self).name = module.name;
    at(self).class_name = module.class_name;
    at(self).is_no_split = is_one_of(module, no_split_);
    at(self).has_children = !module.children.empty();
    const std::size_t size = prefix_.size();
    for (const ModuleTensor& tensor : module.parameters)
      add_tensor(tensor, SizedNode::Kind::parameter, self);
    for (const ModuleTensor& tensor : module.buffers)
      add_tensor(tensor, SizedNode::Kind::buffer, self);
    for (const ModuleNode& child : module.children) {
      if (sizes_.has_special()) prefix_ += child.name + ".";
      add_module(child, self);
      prefix_.resize(size);
    }
    finish(self);
  }

  std::vector<std::uint64_t> ids() && { return std::move(ids_); }

 private:
  SizedNode& at(int node) {
    return tree_.nodes_[static_cast<std::size_t>(node)];
  }

  int add(SizedNode node) {
    tree_.nodes_.push_back(node);
    return tree_.size() - 1;
  }

  void
  add_tensor(const ModuleTensor& tensor, SizedNode::Kind kind, int parent) {
    const int self = add({kind, parent});
    ids_.push_back(tensor.id);
    SizedNode& node = at(self);
    node.end = self + 1;
    node.name = tensor.name;
    const bool is_buffer = kind == SizedNode::Kind::buffer;
    const bool is_new =
        (is_buffer ? seen_buffers_ : seen_parameters_).insert(tensor.id);
    if (buffers_only_ && !is_buffer) return;
    const double num_bytes = sizes_.num_bytes(
        tensor, sizes_.has_special() ? prefix_ + tensor.name : std::string());
    node.num_bytes_with_ties = num_bytes;
    if (!is_buffer)
      node.num_elements = static_cast<double>(tensor.num_elements);
    if (!is_new) return;
    node.has_tensors = true;
    node.num_bytes = num_bytes;
    node.largest_layer = num_bytes;
    if (is_buffer) node.num_buffer_bytes = num_bytes;
  }

  void finish(int self) {
    SizedNode& node = at(self);
    node.end = tree_.size();
    double largest = 0;
    for (int i = self + 1; i < node.end; i = at(i).end) {
      node.num_bytes += at(i).num_bytes;
      node.num_buffer_bytes += at(i).num_buffer_bytes;
      node.num_bytes_with_ties += at(i).num_bytes_with_ties;
      node.num_elements += at(i).num_elements;
      node.has_tensors = node.has_tensors || at(i).has_tensors;
      if (tree_.is_module(i)) largest = std::max(largest, at(i).largest_layer);
    }
    node.largest_layer = tree_.is_layer(self) ? node.num_bytes : largest;
  }

  SizedTree& tree_;
  ElementSizes sizes_;
  bool buffers_only_;
  const std::vector<std::string>& no_split_;
  std::string prefix_;
  // Ids of the tensors, by node.
  std::vector<std::uint64_t> ids_;
  SeenIds seen_parameters_;
  SeenIds seen_buffers_;
};

SizedTree::SizedTree(
    const ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes) {
  Builder builder(*this, sizes, no_split_module_classes);
  builder.reserve(num_nodes(root));
  builder.add_module(root, -1);
  find_ties(std::move(builder).ids());
}

void SizedTree::find_ties(const std::vector<std::uint64_t>& ids) {
  std::vector<std::pair<std::uint64_t, int>> members;
  members.reserve(nodes_.size());
  for (int i = 0; i < size(); ++i) {
    if ((*this)[i].kind == SizedNode::Kind::parameter)
      members.emplace_back(ids[static_cast<std::size_t>(i)], i);
  }
  std::ranges::sort(members);
  for (auto first = members.begin(); first != members.end();) {
    const auto last = std::find_if(first, members.end(), [&](const auto& each) {
      return each.first != first->first;
    });
    if (last - first > 1) {
      std::vector<int>& group = ties_.emplace_back();
      for (auto each = first; each != last; ++each)
        group.push_back(each->second);
    }
    first = last;
  }
  std::ranges::sort(ties_);
  for (std::size_t i = 0; i < ties_.size(); ++i) {
    for (const int node : ties_[i])
      tied_nodes_.emplace_back(node, static_cast<int>(i));
    std::ranges::sort(
        ties_[i], [&](int a, int b) { return name_of(a) < name_of(b); });
  }
  std::ranges::sort(tied_nodes_);
}

std::string SizedTree::name_of(int node) const {
  if (node == 0) return "";
  const int parent = (*this)[node].parent;
  if (parent <= 0) return std::string((*this)[node].name);
  std::string name = name_of(parent);
  name += '.';
  name += (*this)[node].name;
  return name;
}

std::vector<int> SizedTree::parts(int node) const {
  std::vector<int> list;
  for (int i = node + 1; i < (*this)[node].end; i = (*this)[i].end) {
    if ((*this)[i].kind != SizedNode::Kind::buffer) list.push_back(i);
  }
  return list;
}

std::vector<int> SizedTree::buffers(int node) const {
  std::vector<int> list;
  for (int i = node + 1; i < (*this)[node].end; i = (*this)[i].end) {
    if ((*this)[i].kind == SizedNode::Kind::buffer) list.push_back(i);
  }
  return list;
}

void SizedTree::add_layers(int node, double num_bytes, std::vector<int>& layers)
    const {
  if ((*this)[node].largest_layer != num_bytes) return;
  if (!is_splittable(node)) {
    layers.push_back(node);
    return;
  }
  for (int i = node + 1; i < (*this)[node].end; i = (*this)[i].end) {
    if (is_module(i)) add_layers(i, num_bytes, layers);
  }
}

LargestLayer SizedTree::largest_layer(const std::vector<int>& nodes) const {
  LargestLayer largest;
  for (const int node : nodes)
    largest.num_bytes =
        std::max(largest.num_bytes, (*this)[node].largest_layer);
  for (const int node : nodes)
    add_layers(node, largest.num_bytes, largest.nodes);
  return largest;
}

std::vector<int> SizedTree::items() const {
  std::vector<int> items = parts(0);
  const std::vector<int> own_buffers = buffers(0);
  items.insert(items.end(), own_buffers.begin(), own_buffers.end());
  return items;
}

std::vector<int> SizedTree::tied_outside(int node) const {
  const int end = (*this)[node].end;
  std::vector<int> groups;
  for (auto tied = std::lower_bound(
           tied_nodes_.begin(), tied_nodes_.end(), std::pair(node, -1));
       tied != tied_nodes_.end() && tied->first < end;
       ++tied) {
    groups.push_back(tied->second);
  }
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<int> outside;
  for (const int group : groups) {
    for (const int member : ties_[static_cast<std::size_t>(group)]) {
      if (!is_inside(member, node)) outside.push_back(member);
    }
  }
  return outside;
}

ModuleSizes module_sizes(
    const ModuleNode& root,
    const ModuleSizesOptions& options) {
  const SizedTree tree(root, options);
  ModuleSizes sizes;
  for (int i = 0; i < tree.size(); ++i) {
    if (tree[i].has_tensors) sizes.emplace(tree.name_of(i), tree[i].num_bytes);
  }
  return sizes;
}

double total_module_size(
    const ModuleNode& root,
    const ModuleSizesOptions& options) {
  return SizedTree(root, options)[0].num_bytes;
}

LargestLayerNames largest_layer(
    const ModuleNode& root,
    const ModuleSizesOptions& sizes,
    const std::vector<std::string>& no_split_module_classes) {
  const SizedTree tree(root, sizes, no_split_module_classes);
  const LargestLayer largest = tree.largest_layer(tree.items());
  LargestLayerNames layer{largest.num_bytes, {}};
  for (const int node : largest.nodes)
    layer.names.push_back(tree.name_of(node));
  return layer;
}

}  // namespace accelerate::detail
