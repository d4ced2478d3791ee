#include "checkpoint/weights/prepared_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "checkpoint/weights/shard_reader.h"
#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "comm/mesh.h"

namespace accelerate::detail {

namespace {

std::vector<const Parameter*> sharded_rows(const PlacedModel& model) {
  std::vector<const Parameter*> rows;
  for (const Parameter& row : model.table->rows()) {
    if (!row.layout.is_unsharded()) rows.push_back(&row);
  }
  return rows;
}

// The module's own tensors, by their names in checkpoints.
WeightList own_weights(const PlacedModel& model) {
  WeightList weights = accelerate::get_state_dict(*model.module);
  for (auto& [name, tensor] : weights) name = model.table->name_of(name);
  return weights;
}

// The index in `rows` of a module's tensor; nothing if it is not sharded.
std::optional<std::size_t> row_index_of(
    const std::vector<const Parameter*>& rows,
    const at::Tensor& tensor) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->tensor.is_same(tensor)) return i;
  }
  return std::nullopt;
}

// The ranks that share one replica of a sharded model.
Group sharded_model_group(
    const PlacedModel& model,
    const std::vector<const Parameter*>& rows) {
  std::set<Axis> axes;
  for (const Parameter* row : rows)
    axes.insert(row->layout.split_axes.begin(), row->layout.split_axes.end());
  // Experts are split among shards; what remains of that axis does not cover
  // the other rows.
  if (axes.contains(Axis::expert)) axes.insert(Axis::shard);
  return model.mesh->group(std::vector<Axis>(axes.begin(), axes.end()));
}

// Reads full tensors by name, on the reader of `shards`.
WeightList read_full(
    const PlacedModel& model,
    const std::vector<const Parameter*>& rows,
    ShardReader& shards) {
  WeightList weights = own_weights(model);
  std::map<std::size_t, at::Tensor> full;
  for (auto& [name, tensor] : weights) {
    const auto index = row_index_of(rows, tensor);
    if (!index) {
      tensor = tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true);
      continue;
    }
    at::Tensor& copy = full[*index];
    if (!copy.defined()) {
      copy = at::empty(
          rows[*index]->layout.global_shape,
          at::TensorOptions(rows[*index]->local.scalar_type()));
      shards.copy(*index, 0, bytes_of(copy));
    }
    tensor = copy;
  }
  return weights;
}

// Complaints about tensors that cannot be loaded because they are offloaded.
std::vector<std::string> offloaded_in(
    const StoredTensors& saved,
    const ParameterTable& table,
    const MatchRules& rules) {
  std::vector<std::string> complaints;
  for (const std::string& name : table.left_out()) {
    if (!saved.contains(name) || matches_any(rules.skip, name)) continue;
    complaints.push_back(format(
        "{} is offloaded or quantised, so it cannot be changed: load it before "
        "the model is dispatched, or name it in skip",
        name));
  }
  return complaints;
}

void broadcast_full(const World& world, WeightList& weights) {
  for (auto& [name, tensor] : weights) world.group().broadcast(tensor, 0);
}

// Rank 0 reads one box at a time and sends it to its owner. Returns the error,
// if any. Boxes are sent even after an error, so that no rank waits forever.
std::string read_and_send(
    const World& world,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::vector<bool>& is_saved,
    int tag) {
  const Group& group = world.group();
  std::string failure;
  const auto attempt = [&](auto&& body) {
    if (!failure.empty()) return;
    try {
      body();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  const auto read = [&](const Destination& destination) {
    attempt([&] { read_into(saved, {destination}); });
  };
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (!is_saved[i]) continue;
    const Destination& mine = destinations[i];
    if (mine.layout.is_unsharded()) {
      const at::Tensor target = mine.tensor.detach();
      const bool is_plain =
          !may_share_elements(target) && !target.is_conj() && !target.is_neg();
      // Other views cannot receive values.
      const at::Tensor values =
          is_plain ? target : at::empty(target.sizes(), target.options());
      if (group.rank() == 0) read({mine.name, values, mine.layout});
      group.broadcast(values, 0);
      if (!is_plain) attempt([&] { set_values(mine.name, target, values); });
      continue;
    }
    std::vector<std::int64_t> own_box;
    append_box(own_box, mine.layout);
    const auto boxes = group.all_gather_uneven(at::tensor(own_box, at::kLong));
    for (int rank = 0; rank < group.size(); ++rank) {
      const bool is_mine = rank == group.rank();
      if (group.rank() != 0 && !is_mine) continue;
      const std::string what = format("sending {}", mine.name);
      if (group.rank() != 0) {
        // Messages go through host memory.
        const at::Tensor shard = at::empty(
            mine.tensor.sizes(), at::TensorOptions(mine.tensor.scalar_type()));
        BegunExchange::messages(group, what, {}, {{shard, 0, tag}}).wait();
        mine.tensor.detach().copy_(shard);
      } else if (is_mine) {
        read(mine);
      } else {
        const at::Tensor& other = boxes[static_cast<std::size_t>(rank)];
        std::span numbers(
            other.const_data_ptr<std::int64_t>(),
            static_cast<std::size_t>(other.numel()));
        const Layout box = take_box(mine.layout, numbers);
        const at::Tensor shard =
            at::empty(box.extent, at::TensorOptions(mine.tensor.scalar_type()));
        read({mine.name, shard, box});
        BegunExchange::messages(group, what, {{shard, rank, tag}}, {}).wait();
      }
    }
  }
  return failure;
}

// Number of bytes read into these destinations, if no dtype differs.
std::uint64_t num_read_bytes(const std::vector<Destination>& destinations) {
  std::uint64_t num_bytes = 0;
  for (const Destination& destination : destinations)
    num_bytes += destination.tensor.nbytes();
  return num_bytes;
}

// Waits until devices have computed the weights.
void require_intact(const World& world, const PlacedModel& model) {
  std::vector<c10::Device> seen;
  for (const Parameter& row : model.table->rows()) {
    const at::Tensor& local = row.local;
    if (!local.defined() || local.is_cpu() || local.is_meta() ||
        local.numel() == 0)
      continue;
    if (std::ranges::find(seen, local.device()) != seen.end()) continue;
    seen.push_back(local.device());
    static_cast<void>(local.detach().flatten().narrow(0, 0, 1).cpu());
  }
  detail::require_intact(world);
}

}  // namespace

void save_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options) {
  checkpoints.agreement.require_same_call("save_model", directory.string());
  const bool writes = checkpoints.is_first_writer();
  const auto require_success = [&](const std::string& failure) {
    checkpoints.agreement.require_success(
        failure,
        "save_model",
        format(
            "[checkpoint] the model was not saved to {}:\n",
            directory.string()));
  };
  std::string failure;
  // Before anything is written: ranks hold parts of what one of them writes.
  if (!checkpoints.world.device().is_cpu()) {
    try {
      require_intact(checkpoints.world, model);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    require_success(failure);
  }
  const auto write = [&](const WriteShardedTensor& write_sharded) {
    try {
      write_module(
          *model.module,
          directory,
          options,
          write_sharded,
          model.table->name_of(""),
          [&](std::uint64_t num_bytes) {
            return checkpoints.show_progress("save_model", num_bytes);
          });
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  const auto rows = sharded_rows(model);
  if (rows.empty()) {
    if (writes) write(nullptr);
  } else {
    const int tags = reserve_tags(*model.mesh, ShardReader::kNumTags);
    const Group group = sharded_model_group(model, rows);
    const auto writers = group.all_gather_bytes(writes ? "w" : "");
    for (int reader = 0; reader < group.size(); ++reader) {
      if (writers[static_cast<std::size_t>(reader)].empty()) continue;
      ShardReader shards(group, rows, reader, tags);
      if (!shards.is_reader()) {
        shards.serve();
        continue;
      }
      write(
          [&](const std::string&,
              const at::Tensor& tensor) -> std::optional<TensorToWrite> {
            const auto index = row_index_of(rows, tensor);
            if (!index) return std::nullopt;
            return shards.to_write(*index);
          });
      shards.finish();
    }
  }
  require_success(failure);
}

bool gathers_weights(
    const PlacedModel& model,
    const StateDictOptions& options) {
  return options.type == StateDictType::full_state_dict &&
      !sharded_rows(model).empty();
}

WeightList collect_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const StateDictOptions& options) {
  const auto rows = sharded_rows(model);
  if (rows.empty()) return own_weights(model);
  if (options.type != StateDictType::full_state_dict) {
    WeightList weights = own_weights(model);
    for (auto& [name, tensor] : weights) {
      if (const auto index = row_index_of(rows, tensor))
        tensor = rows[*index]->local;
    }
    return weights;
  }
  checkpoints.agreement.require_same_call(
      "get_state_dict", options.rank0_only ? "rank0_only" : "");
  const int tags = reserve_tags(*model.mesh, ShardReader::kNumTags);
  const Group group = sharded_model_group(model, rows);
  WeightList weights;
  if (group.world_ranks()[0] == 0) {
    ShardReader shards(group, rows, 0, tags);
    if (shards.is_reader()) {
      weights = read_full(model, rows, shards);
      shards.finish();
    } else {
      shards.serve();
    }
  }
  if (options.rank0_only) return weights;
  if (checkpoints.world.rank() != 0) {
    weights = own_weights(model);
    std::map<std::size_t, at::Tensor> full;
    for (auto& [name, tensor] : weights) {
      const auto index = row_index_of(rows, tensor);
      const auto dtype =
          index ? rows[*index]->local.scalar_type() : tensor.scalar_type();
      at::Tensor copy = at::empty(
          index ? at::IntArrayRef(rows[*index]->layout.global_shape)
                : tensor.sizes(),
          at::TensorOptions(dtype));
      tensor = index ? full.try_emplace(*index, copy).first->second : copy;
    }
  }
  broadcast_full(checkpoints.world, weights);
  return weights;
}

namespace {

// Whether the files that rank 0 has opened contain each destination.
std::vector<bool> saved_on_rank_0(
    const World& world,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations) {
  std::vector<std::uint8_t> flags;
  for (const Destination& destination : destinations)
    flags.push_back(saved.contains(destination.name) ? 1 : 0);
  const at::Tensor shared = at::tensor(flags, at::kByte);
  world.group().broadcast(shared, 0);
  const auto* const values = shared.const_data_ptr<std::uint8_t>();
  return std::vector<bool>(values, values + shared.numel());
}

// The destinations of `section` in a file, except skipped ones.
std::vector<Destination> destinations_of(
    const Section& section,
    const MatchRules& rules) {
  std::vector<Destination> destinations;
  for (const auto& entry : section.entries) {
    if (!matches_any(rules.skip, entry.name))
      destinations.push_back({entry.name, entry.tensor, entry.layout});
  }
  return destinations;
}

// Copies new values to tensors on which optimizers step in place of the
// parameters.
void copy_to_locals(const ParameterTable& table) {
  const at::NoGradGuard no_grad;
  for (const Parameter& row : table.rows()) {
    if (row.layout.is_unsharded() && !row.local.is_same(row.tensor))
      row.local.copy_(row.tensor);
  }
}

}  // namespace

void load_weights(
    CheckpointState& checkpoints,
    const PlacedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options,
    bool may_read_on_rank_0) {
  // Rank 0 does not know what other stages need.
  const bool reads_on_rank_0 = may_read_on_rank_0 && model.others == nullptr;
  RankAgreement& agreement = checkpoints.agreement;
  const World& world = checkpoints.world;
  agreement.require_same_call("load_model", path.string());
  const MatchRules rules{options.strict, options.skip, options.allow_missing};
  const Section section =
      model_section(model, "model", checkpoints.writer_rule());
  const std::vector<Destination> destinations = destinations_of(section, rules);
  const bool reads = !reads_on_rank_0 || world.rank() == 0;
  StoredTensors saved;
  std::string failure;
  const auto attempt = [&](auto&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  attempt([&] {
    if (!reads) return;
    saved = open_renamed(path, options);
    if (!reads_on_rank_0 && world.local_size() > 1) share_files(saved);
    show_reads(
        saved,
        checkpoints.show_progress("load_model", num_read_bytes(destinations)));
    take_other_names(saved, section.aliases, rules.skip);
    std::vector<std::string> complaints =
        offloaded_in(saved, *model.table, rules);
    leave_out_other_stages(saved, model);
    for (std::string& complaint :
         mismatches("model", saved, destinations, section.aliases, rules))
      complaints.push_back(std::move(complaint));
    require_fit(path, complaints);
  });
  agreement.require_success(failure, "load_model", "");
  if (reads_on_rank_0) {
    const std::vector<bool> is_saved =
        saved_on_rank_0(world, saved, destinations);
    const int tag = reserve_tags(*model.mesh, 1);
    failure = read_and_send(world, saved, destinations, is_saved, tag);
  } else {
    attempt([&] { read_into(saved, destinations, rules); });
  }
  agreement.require_success(
      failure,
      "load_model",
      "[checkpoint] loading failed half-way; the model has old and new "
      "weights:\n");
  copy_to_locals(*model.table);
}

}  // namespace accelerate::detail
