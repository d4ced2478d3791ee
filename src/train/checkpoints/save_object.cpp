#include <functional>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/tensors/torch_value.h"
#include "format/checkpoint/commit.h"
#include "format/tensors/tensor_writer.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using detail::FileSystem;
using detail::FileToWrite;
using detail::format;
using detail::TorchValue;
using detail::TorchValues;

// Gives `file` its name once it is complete and durable.
void put_in_place(
    FileSystem& disk,
    const std::filesystem::path& file,
    const std::function<void(const std::filesystem::path&)>& write) {
  detail::create_directories(disk, detail::directory_of(file));
  const std::filesystem::path temporary = detail::temporary_sibling(file);
  try {
    write(temporary);
    disk.rename(temporary, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  disk.sync_directory(detail::directory_of(file));
}

void write_torch(
    FileSystem& disk,
    const std::filesystem::path& file,
    const TorchValue& value) {
  put_in_place(disk, file, [&](const std::filesystem::path& temporary) {
    detail::write_torch_file(disk, temporary, value);
  });
}

void write_safetensors(
    FileSystem& disk,
    const std::filesystem::path& file,
    FileToWrite contents) {
  contents.metadata = {{"format", "pt"}};
  put_in_place(disk, file, [&](const std::filesystem::path& temporary) {
    contents.path = temporary;
    static_cast<void>(detail::write_tensor_files(disk, {contents}));
  });
}

// Adds the tensors of nested states, with names joined by dots.
void add_tensors(
    FileToWrite& contents,
    const std::string& prefix,
    const StateDict& state) {
  for (const auto& [key, value] : state.values()) {
    const std::string name = prefix + key;
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      contents.tensors.emplace(name, detail::to_write(name, *tensor));
    } else if (const auto* inner = std::get_if<StateDict>(&value)) {
      add_tensors(contents, name + ".", *inner);
    } else {
      throw ConfigError(format(
          "[checkpoint] \"{}\" is not a tensor, but safetensors holds only "
          "tensors; leave safe_serialization off",
          name));
    }
  }
}

bool writes_files(const detail::Session& session) {
  return session.services.checkpoints->project.save_on_each_node
      ? session.world.local_rank() == 0
      : session.world.rank() == 0;
}

}  // namespace

void Accelerator::save(
    const at::Tensor& tensor,
    const std::filesystem::path& file,
    bool safe_serialization) const {
  if (!writes_files(*session_)) return;
  if (safe_serialization) {
    throw ConfigError(
        "[checkpoint] a safetensors file holds tensors by name; pass save() a "
        "StateDict, or leave safe_serialization off");
  }
  write_torch(
      *session_->services.checkpoints->disk,
      file,
      TorchValues().tensor("tensor", tensor));
}

void Accelerator::save(
    const StateDict& state,
    const std::filesystem::path& file,
    bool safe_serialization) const {
  if (!writes_files(*session_)) return;
  FileSystem& disk = *session_->services.checkpoints->disk;
  if (!safe_serialization) {
    write_torch(disk, file, TorchValues().state("", state));
    return;
  }
  FileToWrite contents;
  add_tensors(contents, "", state);
  write_safetensors(disk, file, std::move(contents));
}

void Accelerator::save(
    const WeightList& weights,
    const std::filesystem::path& file,
    bool safe_serialization) const {
  if (!writes_files(*session_)) return;
  FileSystem& disk = *session_->services.checkpoints->disk;
  TorchValues values;
  TorchValue::Dict dict;
  FileToWrite contents;
  // A safetensors file holds tied weights once, under their first name.
  std::set<const void*> known;
  for (const auto& [name, tensor] : weights) {
    if (!safe_serialization) {
      dict.add({name}, values.tensor(name, tensor));
    } else if (known.insert(tensor.unsafeGetTensorImpl()).second) {
      contents.tensors.emplace(name, detail::to_write(name, tensor));
    }
  }
  if (safe_serialization) {
    write_safetensors(disk, file, std::move(contents));
  } else {
    write_torch(disk, file, {std::move(dict)});
  }
}

void Accelerator::save(
    const detail::ModelReference& model,
    const std::filesystem::path& file,
    bool safe_serialization) const {
  const bool is_per_node =
      checkpoints().project_configuration().save_on_each_node;
  save(
      get_state_dict(model, {.rank0_only = !is_per_node}),
      file,
      safe_serialization);
}

}  // namespace accelerate
