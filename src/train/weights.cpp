#include <accelerate/model_weights.h>

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/module_weights.h"
#include "checkpoint/part_reader.h"
#include "checkpoint/tensor_bytes.h"
#include "comm/exchange.h"
#include "comm/mesh.h"
#include "train/checkpoints.h"
#include "train/restoration.h"
#include "train/session.h"

namespace accelerate::detail {

namespace {

std::vector<const Parameter*> split_rows(const PreparedModel& model) {
  std::vector<const Parameter*> rows;
  for (const Parameter& row : model.table.rows()) {
    if (!row.layout.is_whole()) rows.push_back(&row);
  }
  return rows;
}

// Which of the split rows a module's tensor is.
std::optional<std::size_t> number_of(
    const std::vector<const Parameter*>& rows,
    const at::Tensor& tensor) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->tensor.is_same(tensor)) return i;
  }
  return std::nullopt;
}

// The ranks that share one copy of a split model.
const Group& copy_group(const PreparedModel& model) {
  return model.mesh.group(Axis::shard);
}

// Whole tensors by name on `parts`' reader.
WeightList read_whole(
    const PreparedModel& model,
    const std::vector<const Parameter*>& rows,
    PartReader& parts) {
  WeightList weights = get_state_dict(*model.module);
  std::map<std::size_t, at::Tensor> whole;
  for (auto& [name, tensor] : weights) {
    const auto number = number_of(rows, tensor);
    if (!number) {
      tensor = tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true);
      continue;
    }
    at::Tensor& copy = whole[*number];
    if (!copy.defined()) {
      copy = at::empty(
          tensor.sizes(),
          at::TensorOptions(rows[*number]->local.scalar_type()));
      parts.copy(*number, 0, bytes_of(copy));
    }
    tensor = copy;
  }
  return weights;
}

void broadcast_whole(const Session& session, WeightList& weights) {
  for (auto& [name, tensor] : weights)
    session.world.group().broadcast(tensor, 0);
}

// In one line, for other ranks.
at::Tensor box_of(const Layout& layout) {
  std::vector<std::int64_t> numbers = layout.offset;
  numbers.insert(numbers.end(), layout.extent.begin(), layout.extent.end());
  return at::tensor(numbers, at::kLong);
}

Layout from_box(const Layout& like, const at::Tensor& box) {
  const auto* const numbers = box.const_data_ptr<std::int64_t>();
  const std::size_t dimensions = like.global_shape.size();
  Layout layout = like;
  layout.offset.assign(numbers, numbers + dimensions);
  layout.extent.assign(numbers + dimensions, numbers + 2 * dimensions);
  return layout;
}

// Rank 0 reads a box at a time, and sends it where it belongs. Returns what
// failed; the others are not left waiting then.
std::string read_and_send(
    const Session& session,
    const StoredTensors& saved,
    const std::vector<Destination>& destinations,
    const std::vector<bool>& is_saved,
    int tag) {
  const Group& group = session.world.group();
  std::string failure;
  const auto read = [&](const Destination& destination) {
    if (!failure.empty()) return;
    try {
      read_into(saved, {destination});
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (!is_saved[i]) continue;
    const Destination& mine = destinations[i];
    if (mine.layout.is_whole()) {
      if (group.rank() == 0) read(mine);
      group.broadcast(mine.tensor.detach(), 0);
      continue;
    }
    const auto boxes = group.all_gather(box_of(mine.layout));
    for (int rank = 0; rank < group.size(); ++rank) {
      const bool is_mine = rank == group.rank();
      if (group.rank() != 0 && !is_mine) continue;
      Exchange exchange(group, concat("sending ", mine.name));
      if (group.rank() != 0) {
        // Messages travel between hosts.
        const at::Tensor part = at::empty(
            mine.tensor.sizes(), at::TensorOptions(mine.tensor.scalar_type()));
        exchange.receive(part, 0, tag);
        exchange.wait();
        mine.tensor.detach().copy_(part);
      } else if (is_mine) {
        read(mine);
      } else {
        const Layout box =
            from_box(mine.layout, boxes[static_cast<std::size_t>(rank)]);
        const at::Tensor part =
            at::empty(box.extent, at::TensorOptions(mine.tensor.scalar_type()));
        read({mine.name, part, box});
        exchange.send(part, rank, tag);
        exchange.wait();
      }
    }
  }
  return failure;
}

}  // namespace

void save_prepared(
    const PreparedModel& model,
    const std::filesystem::path& folder,
    const SaveModelOptions& options) {
  Session& session = *model.session;
  require_no_join(session, "save_model()");
  require_same_call(session, "save_model", folder.string());
  const bool writes =
      session.checkpoints->writers.front() == session.world.rank();
  std::string failure;
  const auto write = [&](const SplitTensor& split) {
    try {
      write_module(*model.module, folder, options, split);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  const auto rows = split_rows(model);
  if (rows.empty()) {
    if (writes) write(nullptr);
  } else {
    const int tags = claim_tags(model.mesh, PartReader::kNumTags);
    const Group& group = copy_group(model);
    const auto writers = group.all_gather_bytes(writes ? "w" : "");
    for (int reader = 0; reader < group.size(); ++reader) {
      if (writers[static_cast<std::size_t>(reader)].empty()) continue;
      PartReader parts(group, rows, reader, tags);
      if (!parts.is_reader()) {
        parts.serve();
        continue;
      }
      write(
          [&](const std::string&,
              const at::Tensor& tensor) -> std::optional<TensorToWrite> {
            const auto number = number_of(rows, tensor);
            if (!number) return std::nullopt;
            return parts.to_write(*number);
          });
      parts.finish();
    }
  }
  require_success(
      session,
      failure,
      "save_model",
      concat(
          "[checkpoint] the model was not saved to ", folder.string(), ":\n"));
}

WeightList weights_of(
    const PreparedModel& model,
    const StateDictOptions& options) {
  Session& session = *model.session;
  const auto rows = split_rows(model);
  if (rows.empty()) return accelerate::get_state_dict(*model.module);
  if (options.type != StateDictType::full_state_dict) {
    WeightList weights = accelerate::get_state_dict(*model.module);
    for (auto& [name, tensor] : weights) {
      if (const auto number = number_of(rows, tensor))
        tensor = rows[*number]->local;
    }
    return weights;
  }
  require_no_join(session, "get_state_dict()");
  require_same_call(
      session, "get_state_dict", options.rank0_only ? "rank0_only" : "");
  const int tags = claim_tags(model.mesh, PartReader::kNumTags);
  const Group& group = copy_group(model);
  WeightList weights;
  if (group.world_ranks()[0] == 0) {
    PartReader parts(group, rows, 0, tags);
    if (parts.is_reader()) {
      weights = read_whole(model, rows, parts);
      parts.finish();
    } else {
      parts.serve();
    }
  }
  if (options.rank0_only) return weights;
  if (session.world.rank() != 0) {
    weights = accelerate::get_state_dict(*model.module);
    std::map<std::size_t, at::Tensor> whole;
    for (auto& [name, tensor] : weights) {
      const auto number = number_of(rows, tensor);
      const auto dtype =
          number ? rows[*number]->local.scalar_type() : tensor.scalar_type();
      at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions(dtype));
      tensor = number ? whole.try_emplace(*number, copy).first->second : copy;
    }
  }
  broadcast_whole(session, weights);
  return weights;
}

std::vector<WeightPart> parts_of(const PreparedModel& model) {
  std::vector<WeightPart> parts;
  for (const auto& entry : model_part(*model.session, model, 0).entries) {
    parts.push_back(
        {entry.name,
         entry.tensor,
         entry.layout.offset,
         entry.layout.global_shape});
  }
  return parts;
}

std::string describe_prepared(const PreparedModel& model) {
  std::string text;
  for (const Parameter& row : model.table.rows()) {
    text += concat(
        row.name,
        ": ",
        c10::toString(row.local.scalar_type()),
        " ",
        at::IntArrayRef(row.layout.global_shape),
        row.tensor.requires_grad() ? "" : ", frozen",
        row.policy.empty() ? ", whole on every rank" : ", ",
        row.policy,
        "\n");
  }
  return text;
}

void load_prepared(
    PreparedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options) {
  Session& session = *model.session;
  require_no_join(session, "load_model()");
  require_same_call(session, "load_model", path.string());
  const MatchRules rules{options.strict, options.skip, options.allow_missing};
  const Part part = model_part(session, model, 0);
  std::vector<Destination> destinations;
  for (const auto& entry : part.entries) {
    if (!matches_any(rules.skip, entry.name))
      destinations.push_back({entry.name, entry.tensor, entry.layout});
  }
  const bool is_sent =
      options.broadcast_from_rank0.value_or(model.reads_on_rank_0);
  const bool reads = !is_sent || session.world.rank() == 0;
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
    take_other_names(saved, part.aliases);
    require_fit(
        path, mismatches("model", saved, destinations, part.aliases, rules));
  });
  require_success(session, failure, "load_model", "");
  if (is_sent) {
    std::vector<std::uint8_t> flags;
    for (const Destination& destination : destinations)
      flags.push_back(saved.contains(destination.name) ? 1 : 0);
    const at::Tensor told = at::tensor(flags, at::kByte);
    session.world.group().broadcast(told, 0);
    const auto* const values = told.const_data_ptr<std::uint8_t>();
    const std::vector<bool> is_saved(values, values + told.numel());
    const int tag = claim_tags(model.mesh, 1);
    failure = read_and_send(session, saved, destinations, is_saved, tag);
  } else {
    attempt([&] { read_into(saved, destinations, rules); });
  }
  require_success(
      session,
      failure,
      "load_model",
      "[checkpoint] loading failed half-way; the model is neither old nor "
      "new:\n");
  const at::NoGradGuard no_grad;
  for (const Parameter& row : model.table.rows()) {
    if (row.layout.is_whole() && !row.local.is_same(row.tensor))
      row.local.copy_(row.tensor);
  }
  model.awaits_values = false;
  for (const auto& strategy : model.strategies) strategy->after_load();
}

}  // namespace accelerate::detail
