#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "comm/mesh.h"
#include "engines/parallelism.h"
#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

// A dimension of Accelerate's mesh, and the corresponding axis here. A sequence
// is sharded along cp or along sp, never both.
struct Dimension {
  std::string_view name;
  Axis axis;
  int size;
};

// Accelerate's names for a mesh. Ranks and groups come from Mesh.
class NamedDimensions {
 public:
  explicit NamedDimensions(const ParallelismConfig& config) {
    degrees_.fill(1);
    for (const Dimension& dimension :
         {Dimension{"dp_replicate", Axis::replicate, *config.dp_replicate_size},
          Dimension{"dp_shard", Axis::shard, *config.dp_shard_size},
          Dimension{"cp", Axis::context, *config.cp_size},
          Dimension{"sp", Axis::context, *config.sp_size},
          Dimension{"tp", Axis::tensor, *config.tp_size}}) {
      if (dimension.size == 1) continue;
      dimensions_.push_back(dimension);
      degrees_[static_cast<std::size_t>(dimension.axis)] = dimension.size;
    }
  }

  [[nodiscard]] const std::vector<Dimension>& all() const {
    return dimensions_;
  }

  [[nodiscard]] int size() const {
    int product = 1;
    for (const Dimension& dimension : dimensions_) product *= dimension.size;
    return product;
  }

  // The dimensions in `names` that are larger than 1, in the order of `names`.
  [[nodiscard]] std::vector<Dimension> active(
      std::initializer_list<std::string_view> names) const {
    std::vector<Dimension> found;
    for (const std::string_view name : names) {
      for (const Dimension& dimension : dimensions_) {
        if (dimension.name == name) found.push_back(dimension);
      }
    }
    return found;
  }

  [[nodiscard]] Json names(
      std::initializer_list<std::string_view> wanted) const {
    Json names = Json::array();
    for (const Dimension& dimension : active(wanted))
      names.push_back(std::string(dimension.name));
    return names;
  }

  [[nodiscard]] Json coordinate(int rank) const {
    const auto place = detail::mesh_coordinates(degrees_, rank);
    Json coordinate = Json::array();
    for (const Dimension& dimension : dimensions_)
      coordinate.push_back(place[static_cast<std::size_t>(dimension.axis)]);
    return coordinate;
  }

  [[nodiscard]] Json group(int rank, const std::vector<Dimension>& dimensions)
      const {
    std::array<bool, kNumAxes> axes{};
    for (const Dimension& dimension : dimensions)
      axes[static_cast<std::size_t>(dimension.axis)] = true;
    return detail::mesh_ranks(degrees_, rank, axes);
  }

 private:
  std::vector<Dimension> dimensions_;
  std::array<int, kNumAxes> degrees_{};
};

Json groups_of(const NamedDimensions& mesh, int rank) {
  Json groups = Json::object();
  for (const Dimension& dimension : mesh.all())
    groups[std::string(dimension.name)] = mesh.group(rank, {dimension});
  const auto add = [&](const char* name,
                       std::initializer_list<std::string_view> names) {
    const auto active = mesh.active(names);
    if (!active.empty()) groups[name] = mesh.group(rank, active);
  };
  add("dp", {"dp_replicate", "dp_shard"});
  add("dp_shard_cp", {"dp_shard", "cp"});
  add("dp_cp", {"dp_replicate", "dp_shard", "cp"});
  return {{"coordinate", mesh.coordinate(rank)}, {"groups", groups}};
}

}  // namespace

ParallelismConfig parallelism_config_of(const Json& args) {
  ParallelismConfig given;
  read(args, "dp_replicate_size", given.dp_replicate_size);
  read(args, "dp_shard_size", given.dp_shard_size);
  read(args, "tp_size", given.tp_size);
  read(args, "cp_size", given.cp_size);
  read(args, "sp_size", given.sp_size);
  read(args, "cp_backend", given.cp_backend);
  read(args, "sp_backend", given.sp_backend);
  read(args, "cp_comm_strategy", given.cp_comm_strategy);
  read(args, "sp_seq_length", given.sp_seq_length);
  read(args, "sp_seq_length_is_variable", given.sp_seq_length_is_variable);
  return given;
}

Json mesh_of(const Json& input) {
  const auto found = detail::resolve_parallelism(
      parallelism_config_of(input.at("args")), detail::resolve({}));
  const NamedDimensions mesh(found);
  Json outcome{{"total_size", mesh.size()}};
  // Sequence parallelism is DeepSpeed's in Accelerate, and has no mesh there.
  if (*found.sp_size > 1) {
    outcome["mesh"] = nullptr;
    return outcome;
  }
  outcome["names"] = Json::array();
  outcome["sizes"] = Json::array();
  for (const Dimension& dimension : mesh.all()) {
    outcome["names"].push_back(std::string(dimension.name));
    outcome["sizes"].push_back(dimension.size);
  }
  outcome["coordinates"] = Json::array();
  outcome["groups"] = Json::object();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    outcome["coordinates"].push_back(mesh.coordinate(rank));
    const Json own_groups = groups_of(mesh, rank).at("groups");
    for (const auto& [name, group] : own_groups.items()) {
      Json& groups = outcome["groups"][name];
      if (!std::count(groups.begin(), groups.end(), group))
        groups.push_back(group);
    }
  }
  return outcome;
}

Json run_parallelism_config(const Json& input) {
  const ParallelismConfig given = parallelism_config_of(input.at("args"));
  const Settings settings = settings_of(input);
  const auto found = detail::resolve_parallelism(given, settings);
  const NamedDimensions mesh(found);
  // Only the launcher has an option for it.
  const std::string attention = "parallelism_config_sp_attn_implementation";

  Json names = Json::array(), sizes = Json::array();
  for (const Dimension& dimension : mesh.all()) {
    names.push_back(std::string(dimension.name));
    sizes.push_back(dimension.size);
  }
  // The sharded dimension always counts, even if its size is 1.
  Json sharded_names = mesh.names({"dp_replicate"});
  sharded_names.push_back("dp_shard_cp");
  const int same_data = *found.tp_size * *found.cp_size * *found.sp_size;
  Json outcome{
      {"fields",
       {{"dp_replicate_size", *found.dp_replicate_size},
        {"dp_shard_size", *found.dp_shard_size},
        {"tp_size", *found.tp_size},
        {"cp_size", *found.cp_size},
        {"cp_backend", *found.cp_backend},
        {"sp_size", *found.sp_size},
        {"sp_backend", *found.sp_backend},
        {"cp_handler",
         found.cp_comm_strategy
             ? Json{{"cp_comm_strategy", *found.cp_comm_strategy}}
             : Json(nullptr)},
        {"sp_handler",
         found.sp_seq_length_is_variable
             ? Json{{"sp_seq_length", json_of(found.sp_seq_length)},
                    {"sp_seq_length_is_variable",
                     *found.sp_seq_length_is_variable},
                    {"sp_attn_implementation",
                     settings.is_given(attention)
                         ? json_of(settings.text(attention))
                         : Json(nullptr)}}
             : Json(nullptr)}}},
      {"total_size", mesh.size()},
      {"non_data_parallel_size", same_data},
      {"data_parallel_size", mesh.size() / same_data},
      {"mesh_names", names},
      {"mesh_sizes", sizes},
      {"dp_dim_names", mesh.names({"dp_replicate", "dp_shard"})},
      {"non_dp_dim_names", mesh.names({"tp", "cp", "sp"})},
      {"dp_shard_cp_dim_names", mesh.names({"dp_shard", "cp"})},
      {"dp_cp_dim_names", mesh.names({"dp_replicate", "dp_shard", "cp"})},
      {"fsdp_dim_names", sharded_names},
      {"active_mesh_dims",
       mesh.names({"dp_replicate", "dp_shard", "tp", "cp", "sp"})}};
  if (mesh.size() > 1 && *found.sp_size == 1) {
    for (const int rank : {0, mesh.size() - 1})
      outcome["groups"][std::to_string(rank)] = groups_of(mesh, rank);
  }
  return outcome;
}

}  // namespace accelerate::oracle::topic_plugins
