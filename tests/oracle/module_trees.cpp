#include "oracle/module_trees.h"

#include "base/text/sizes.h"

namespace accelerate::oracle {

namespace {

class TreeReader {
 public:
  explicit TreeReader(const Json& tied) {
    for (const Json& group : tied) {
      ++next_id_;
      for (const std::string name : group) id_of_tied_[name] = next_id_;
    }
  }

  detail::ModuleNode read(const Json& json, const std::string& name) {
    detail::ModuleNode module;
    module.name = name.substr(name.rfind('.') + 1);
    module.class_name = json.at("class");
    const std::string prefix = name.empty() ? "" : name + ".";
    module.parameters = tensors(json.at("parameters"), prefix);
    module.buffers = tensors(json.at("buffers"), prefix);
    for (const Json& child : json.at("children"))
      module.children.push_back(
          read(child[1], prefix + child[0].get<std::string>()));
    return module;
  }

 private:
  std::vector<detail::ModuleTensor> tensors(
      const Json& list,
      const std::string& prefix) {
    std::vector<detail::ModuleTensor> tensors;
    for (const Json& entry : list) {
      const std::string name = entry[0];
      const std::string dtype = entry[1].at("dtype");
      const auto shape = entry[1].at("shape").get<std::vector<std::int64_t>>();
      std::int64_t count = 1;
      for (const std::int64_t size : shape) count *= size;
      const double bytes =
          detail::dtype_bytes(dtype) * static_cast<double>(count);
      const auto tied = id_of_tied_.find(prefix + name);
      tensors.push_back(
          {name,
           dtype,
           count,
           static_cast<std::uint64_t>(bytes),
           tied == id_of_tied_.end() ? ++next_id_ : tied->second,
           shape,
           entry[1].value("persistent", true)});
    }
    return tensors;
  }

  std::map<std::string, std::uint64_t> id_of_tied_;
  std::uint64_t next_id_ = 0;
};

}  // namespace

detail::ModuleNode module_tree_of(const Json& module, const Json& tied) {
  return TreeReader(tied).read(module, "");
}

}  // namespace accelerate::oracle
