#include <mutex>

#include <accelerate/accelerate.h>

#include "oracle/oracle.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace topic_operations {

/// A nested value as in Python; the library visits it like any other user type.
struct Tree {
  std::string kind;  // tensor, list, tuple, dict, value, opaque
  at::Tensor tensor;
  std::vector<Tree> children;
  std::vector<Json> keys;  // of a dict
  Json value;
};

template <class Visitor>
void visit_tensors(Tree& tree, Visitor&& visitor) {
  if (tree.kind == "tensor") visitor(tree.tensor);
  for (Tree& child : tree.children) visit_tensors(child, visitor);
}

Tree read_tree(const Json& json) {
  Tree tree;
  const auto entry = json.items().begin();
  const std::string& kind = entry.key();
  const Json& content = entry.value();
  tree.kind = kind;
  if (kind == "tensor") {
    tree.tensor = read_tensor(content);
  } else if (kind == "dict") {
    for (const Json& item : content) {
      tree.keys.push_back(item[0]);
      tree.children.push_back(read_tree(item[1]));
    }
  } else if (kind == "list" || kind == "tuple") {
    for (const Json& item : content) tree.children.push_back(read_tree(item));
  } else {
    tree.value = content;
  }
  return tree;
}

Json write_tree(const Tree& tree) {
  if (tree.kind == "tensor") return {{"tensor", write_tensor(tree.tensor)}};
  if (tree.kind == "value" || tree.kind == "opaque")
    return {{tree.kind, tree.value}};
  Json content = Json::array();
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    Json child = write_tree(tree.children[i]);
    content.push_back(
        tree.kind == "dict" ? Json::array({tree.keys[i], std::move(child)})
                            : std::move(child));
  }
  return {{tree.kind, std::move(content)}};
}

Json value_json(Json value) { return {{"value", std::move(value)}}; }

// A leaf that is not a tensor would not compile in a typed program.
void require_tensors(const Tree& tree) {
  if (tree.kind == "value" || tree.kind == "opaque") {
    throw ConfigError("a leaf is not a tensor");
  }
  for (const Tree& child : tree.children) require_tensors(child);
}

std::optional<ReduceOp> reduction_named(const std::string& name) {
  if (name == "sum") return ReduceOp::sum;
  if (name == "mean") return ReduceOp::mean;
  if (name == "max") return ReduceOp::max;
  if (name == "none") return std::nullopt;
  throw ConfigError("there is no reduction " + name);
}

Tree split(const Tree& tree, const Group& group, bool apply_padding) {
  Tree own = tree;
  if (tree.kind == "tensor") {
    own.tensor = split_between_processes(tree.tensor, group, apply_padding);
  } else if (tree.kind == "dict") {
    std::vector<std::int64_t> lengths;
    for (const Tree& child : tree.children) {
      lengths.push_back(
          child.kind == "tensor" ? detail::length_of(child.tensor)
                                 : detail::length_of(child.children));
    }
    detail::require_equal_lengths(lengths, apply_padding);
    for (Tree& child : own.children) child = split(child, group, apply_padding);
  } else if (tree.kind == "list" || tree.kind == "tuple") {
    own.children = split_between_processes(tree.children, group, apply_padding);
  }
  return own;
}

Json shapes_of(const Tree& tree) {
  if (tree.kind == "tensor") {
    Json sizes = Json::array();
    for (const std::int64_t size : tree.tensor.sizes())
      sizes.push_back(value_json(size));
    return {{"list", sizes}};
  }
  Tree as_json = tree;
  Json content = Json::array();
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    Json child = shapes_of(tree.children[i]);
    content.push_back(
        tree.kind == "dict" ? Json::array({tree.keys[i], std::move(child)})
                            : std::move(child));
  }
  return {{tree.kind, std::move(content)}};
}

// listify()'s flat list, nested as in Python.
Json nest(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (at::isIntegralType(tensor.scalar_type(), true)) {
      const std::int64_t number = listify<std::int64_t>(tensor).at(0);
      return tensor.scalar_type() == at::kBool ? value_json(number != 0)
                                               : value_json(number);
    }
    return value_json(listify(tensor).at(0));
  }
  Json content = Json::array();
  for (const at::Tensor& row : tensor.unbind(0)) content.push_back(nest(row));
  return {{"list", content}};
}

Json listed(const Tree& tree) {
  if (tree.kind == "tensor") return nest(tree.tensor);
  if (tree.kind == "value" || tree.kind == "opaque")
    return {{tree.kind, tree.value}};
  Json content = Json::array();
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    Json child = listed(tree.children[i]);
    content.push_back(
        tree.kind == "dict" ? Json::array({tree.keys[i], std::move(child)})
                            : std::move(child));
  }
  return {{tree.kind, std::move(content)}};
}

Json run_one(
    const Json& input,
    const Accelerator& accelerator,
    const Group& group) {
  const std::string op = input.at("op");
  const Json& args = input.at("args");
  const auto rank = static_cast<std::size_t>(group.rank());
  if (op == "trigger") {
    Json answers = Json::array();
    for (const Json& round : args.at("rounds")) {
      for (const Json& caller : round) {
        if (caller == group.rank()) accelerator.set_trigger();
      }
      answers.push_back(value_json(accelerator.check_trigger()));
    }
    return {{"list", answers}};
  }
  const Json& own = input.at("data").at(rank);
  if (op == "gather_object") {
    if (!own.contains("list")) throw NotBuilt("objects that are not lists");
    return {
        {"list",
         gather_object(own.at("list").get<std::vector<Json>>(), group)}};
  }
  if (op == "broadcast_object_list") {
    return broadcast_object(own, group, args.at("from_process").get<int>());
  }
  if (op == "concatenate") {
    const Tree list = read_tree(own);
    require_tensors(list);
    return write_tree(
        concatenate(list.children, args.at("dim").get<std::int64_t>()));
  }
  const Tree tree = read_tree(own);
  if (op == "split_between_processes") {
    return write_tree(split(tree, group, args.at("apply_padding")));
  }
  if (op == "find_batch_size" || op == "ignorant_find_batch_size") {
    const auto size = find_batch_size(tree);
    if (!size && op == "find_batch_size")
      throw ConfigError("there is no batch");
    return value_json(size ? Json(*size) : Json());
  }
  if (op == "convert_to_fp32") return write_tree(convert_to_fp32(tree));
  if (op == "get_shape") return shapes_of(tree);
  if (op == "recursively_apply") {
    if (args.at("error_on_other_type").get<bool>()) require_tensors(tree);
    Tree twice = tree;
    visit_tensors(twice, [](at::Tensor& tensor) { tensor = tensor + tensor; });
    return write_tree(twice);
  }
  if (op == "slice_tensors") {
    require_tensors(tree);
    return write_tree(slice_tensors(tree, args.at("start"), args.at("stop")));
  }
  if (op == "gather") {
    if (group.size() > 1) require_tensors(tree);
    return write_tree(gather(tree, group));
  }
  if (op == "broadcast") {
    require_tensors(tree);
    return write_tree(
        broadcast(tree, group, args.at("from_process").get<int>()));
  }
  if (op == "reduce") {
    require_tensors(tree);
    return write_tree(reduce(
        tree, group, reduction_named(args.at("reduction")), args.at("scale")));
  }
  if (op == "pad_across_processes") {
    require_tensors(tree);
    return write_tree(pad_across_processes(
        tree,
        group,
        args.at("dim"),
        args.at("pad_index"),
        args.at("pad_first")));
  }
  if (op == "pad_input_tensors") {
    return write_tree(pad_input_tensors(
        tree, args.at("batch_size"), args.at("num_processes")));
  }
  if (op == "listify") return listed(tree);
  throw NotBuilt(op);
}

}  // namespace topic_operations

Json run_operations(const Json& input) {
  using namespace topic_operations;
  const int count = input.at("num_processes");
  const bool debug = input.at("args").value("debug_mode", false);
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank) ranks.push_back(nullptr);
  std::mutex mutex;
  bool is_built = true;
  testing::run_on_ranks(count, [&](WorldOptions world) {
    world.debug = debug;
    const Accelerator accelerator({.world = world});
    Json outcome;
    try {
      outcome = run_one(input, accelerator, accelerator.world().group());
    } catch (const NotBuilt&) {
      const std::lock_guard lock(mutex);
      is_built = false;
    } catch (const std::exception& error) {
      outcome = {{"error", error.what()}};
    }
    const std::lock_guard lock(mutex);
    ranks[static_cast<std::size_t>(accelerator.process_index())] =
        std::move(outcome);
  });
  if (!is_built) throw NotBuilt("this operation");
  return {{"ranks", std::move(ranks)}};
}

}  // namespace accelerate::oracle
