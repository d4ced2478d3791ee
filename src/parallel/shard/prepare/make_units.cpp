#include "parallel/shard/prepare/make_units.h"

#include <unordered_set>
#include <utility>

#include <ATen/Functions.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "parallel/shard/prepare/prepare_shards.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

namespace {

// The dtypes of one parameter.
struct ShardDtypes {
  at::ScalarType kept;      // of the shard
  at::ScalarType computed;  // of the full parameter
};

ShardDtypes dtypes_of(
    const at::Tensor& tensor,
    const ShardOptions& options,
    bool keeps_precision) {
  const at::ScalarType stored = tensor.scalar_type();
  // A lower compute dtype implies full-precision shards for the optimizer.
  const bool upcasts =
      options.master_weights || (options.param_dtype && tensor.requires_grad());
  const bool is_cast = at::isFloatingType(stored) && !keeps_precision &&
      options.param_dtype.has_value();
  return {
      upcasts && at::isReducedFloatingType(stored) ? at::kFloat : stored,
      is_cast ? *options.param_dtype : stored};
}

class UnitMaker {
 public:
  UnitMaker(
      const UnitRequest& request,
      const UnitPlan& plan,
      const InitialValues& values,
      ParameterTable& table)
      : request_(request),
        mesh_(request.mesh),
        options_(request.options),
        plan_(plan),
        values_(values),
        table_(table) {}

  ShardUnits make(const torch::nn::Module& module) {
    choose_float8(module);
    const Group reshard_group =
        reshard_group_of(mesh_, options_.reshard_group_size);
    made_.traffic = request_.make_traffic(mesh_, reshard_group, request_.pool);
    const Mesh experts = mesh_.experts();
    if (mesh_.degree(Axis::expert) > 1) {
      made_.expert_traffic =
          request_.make_traffic(experts, Group(), request_.pool);
    }
    places_[false] = {
        mesh_.group(Axis::shard).rank(),
        reshard_group.rank(),
        reshard_group.size()};
    places_[true] = {experts.group(Axis::shard).rank()};
    for (const WrapUnit& unit : plan_.units) {
      // Parameters divided along `expert` are sharded over other ranks.
      for (const bool of_experts : {false, true}) add_unit(unit, of_experts);
    }
    log_upcast();
    return std::move(made_);
  }

 private:
  void choose_float8(const torch::nn::Module& module) {
    if (!options_.float8 || !options_.shards_parameters) return;
    std::vector<Group> groups{mesh_.group(Axis::shard)};
    if (mesh_.degree(Axis::tensor) > 1)
      groups.push_back(mesh_.group(Axis::tensor));
    made_.scales.emplace(options_.float8->cast, std::move(groups));
    for (const at::Tensor& weight : options_.float8->weights_of(module))
      float8_weights_.insert(weight.unsafeGetTensorImpl());
  }

  void add_unit(const WrapUnit& unit, bool of_experts) {
    std::vector<ShardedParameter> sharded;
    for (Parameter* row : unit.rows) {
      if (is_expert(*row) != of_experts) continue;
      const at::ScalarType stored = row->tensor.scalar_type();
      sharded.push_back(make_sharded(*row));
      row->policy = policy_of(*row, sharded.back(), unit.name);
      num_upcast_ += row->local.scalar_type() == stored ? 0 : 1;
    }
    if (sharded.empty()) return;
    made_.units.push_back(std::make_unique<ShardUnit>(
        UnitShards{
            of_experts ? format("{} (experts)", unit.name) : unit.name,
            num_units_[of_experts]++,
            std::move(sharded)},
        places_[of_experts],
        of_experts ? *made_.expert_traffic : *made_.traffic,
        request_.pool));
  }

  ShardedParameter make_sharded(Parameter& row) {
    const bool keeps_precision = plan_.full_precision.contains(&row);
    const Mesh mesh = placement_mesh(row.layout, mesh_);
    const Group& group = mesh.group(Axis::shard);
    ShardedParameter parameter{row.name, row.tensor, {}, {}, nullptr, {}};
    parameter.is_elsewhere = is_expert(row) && row.tensor.numel() == 0;
    if (!keeps_precision && row.tensor.is_floating_point())
      parameter.reduce_dtype = options_.reduce_dtype;
    parameter.row_begins = row_begins(row.tensor.size(0), group.size());
    const auto [kept, computed] =
        dtypes_of(row.tensor, options_, keeps_precision);
    at::Tensor own = values_.own_box(row, Axis::shard, 0, parameter.row_begins);
    const bool is_away = options_.offloads_shards &&
        (!row.tensor.is_cpu() ||
         (options_.disk && options_.disk->keeps_parameters));
    const bool shares_memory = !options_.shards_parameters && !is_away &&
        kept == computed && row.tensor.is_contiguous();
    if (!shares_memory) own = own.to(kept, false, /*copy=*/true).contiguous();
    // On the host: offloaded shards stay there.
    if (options_.offloads_shards && !own.is_cpu()) own = own.cpu().pin_memory();
    const bool is_trained = row.tensor.requires_grad();
    make_dense(row.tensor, computed);
    if (options_.shards_parameters && !parameter.is_elsewhere) {
      parameter.gate = std::make_unique<GatedTensor>(
          row.tensor,
          sharded_messages(row.name),
          request_.keeper,
          made_.units.size(),
          mesh_.world().device());
    }
    parameter.local = own.detach().requires_grad_(is_trained);
    if (request_.disk != nullptr) {
      keep_on_disk(parameter, computed);
      parameter.disk = request_.disk;
      row.make_state = request_.disk->state_maker();
    }
    row.layout.split(
        Axis::shard,
        0,
        parameter.row_begins[static_cast<std::size_t>(group.rank())],
        parameter.local.size(0));
    table_.set_local(row, parameter.local);
    gather_in_float8(row, parameter);
    return parameter;
  }

  // Before anything else has a handle to the shard's memory.
  void keep_on_disk(ShardedParameter& parameter, at::ScalarType computed) {
    const at::NoGradGuard no_grad;
    if (computed != parameter.local.scalar_type())
      parameter.rows = parameter.local.detach().to(computed);
    request_.disk->keep(parameter.local, parameter.rows);
  }

  void gather_in_float8(Parameter& row, ShardedParameter& parameter) {
    const bool is_chosen = parameter.gate != nullptr &&
        made_.traffic->is_sent_alone(parameter) &&
        float8_weights_.contains(row.tensor.unsafeGetTensorImpl());
    if (!is_chosen) return;
    parameter.gathered_scale = made_.scales->add(parameter.local);
    row.gathered_scale = parameter.gathered_scale;
  }

  void log_upcast() const {
    if (num_upcast_ == 0) return;
    mesh_.world().logger().log_once_per_world(
        LogLevel::info,
        "parallel",
        format(
            "{} parameters of lower precision have shards in Float, on which "
            "optimizers step (describe() lists them)",
            num_upcast_));
  }

  const UnitRequest& request_;
  const Mesh& mesh_;
  const ShardOptions& options_;
  const UnitPlan& plan_;
  const InitialValues& values_;
  ParameterTable& table_;
  std::unordered_set<const void*> float8_weights_;
  ShardUnits made_;
  // Both indexed by traffic: the model's, and its experts'.
  ShardPlace places_[2];
  std::size_t num_units_[2] = {0, 0};
  int num_upcast_ = 0;
};

}  // namespace

bool is_expert(const Parameter& row) {
  return row.layout.is_split_over(Axis::expert);
}

ShardUnits make_units(
    const UnitRequest& request,
    const torch::nn::Module& module,
    const UnitPlan& plan,
    const InitialValues& values,
    ParameterTable& table) {
  return UnitMaker(request, plan, values, table).make(module);
}

}  // namespace accelerate::detail
