#include "checkpoint/save/checkpoint_writer.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>
#include <accelerate/version.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "checkpoint/tensors/state_json.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "format/accelerate/accelerate_layout.h"
#include "format/checkpoint/checksums.h"
#include "format/checkpoint/manifest.h"
#include "format/tensors/tensor_writer.h"
#include "format/torch/torch_writer.h"

namespace accelerate::detail {

namespace {

// Ranks send each other one of these prefixes and a payload: a result, or the
// error.
constexpr std::string_view kOk = "ok ";
constexpr std::string_view kFailed = "failed ";

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm fields{};
  ::gmtime_r(&seconds, &fields);
  char text[32];
  const std::size_t size =
      std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &fields);
  return {text, size};
}

safetensors::Shape unsigned_shape(const std::vector<std::int64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

// A rank's files and its fragment of the manifest.
struct RankFiles {
  std::vector<FileToWrite> files;
  Manifest fragment;
};

void add_section(
    RankFiles& mine,
    const SaveJob& job,
    const std::filesystem::path& directory,
    const Section& section,
    bool is_leader) {
  const std::string file = section_file(
      section.name, section.is_sharded(), job.rank, job.num_processes);
  FileToWrite to_file{directory / file, {}, {{"format", "pt"}}};
  SavedTensors& saved = mine.fragment.sections[section.name];
  for (const SectionEntry& entry : section.entries) {
    if (!entry.is_writer) continue;
    TensorToWrite wanted = to_write(entry.name, entry.tensor);
    SavedTensor& tensor = saved[entry.name];
    tensor.dtype = wanted.dtype;
    tensor.shape = entry.layout.is_unsharded()
        ? wanted.shape
        : unsigned_shape(entry.layout.global_shape);
    const auto pieces = pieces_of(entry.layout);
    for (const LayoutPiece& piece : pieces) {
      SavedBox box{file, {}};
      box.box.size = wanted.shape;
      box.box.begin.assign(wanted.shape.size(), 0);
      if (!entry.layout.is_unsharded())
        box.box.begin = unsigned_shape(piece.layout.offset);
      if (pieces.size() > 1) {
        box.box.size[0] = static_cast<std::uint64_t>(piece.num_rows);
        box.row = static_cast<std::uint64_t>(piece.first_row);
      }
      tensor.boxes.push_back(std::move(box));
    }
    to_file.tensors.emplace(entry.name, std::move(wanted));
  }
  // A model without parameters also has a file.
  const bool is_wanted = is_leader && !section.is_sharded();
  if (to_file.tensors.empty() && !is_wanted) {
    mine.fragment.sections.erase(section.name);
    return;
  }
  if (!section.aliases.empty()) {
    mine.fragment.aliases[section.name] = {
        section.aliases.begin(), section.aliases.end()};
  }
  mine.files.push_back(std::move(to_file));
}

void write_torch_section(
    FileSystem& disk,
    const std::filesystem::path& file,
    const Section& section) {
  if (section.is_sharded()) {
    throw ConfigError(
        "[checkpoint] a sharded model cannot be saved as a torch.save file; "
        "leave safe_serialization on");
  }
  TorchValue::Dict dict;
  std::map<std::string, std::int64_t> storages;
  for (const SectionEntry& entry : section.entries) {
    const auto storage = static_cast<std::int64_t>(storages.size()) + 1;
    storages.emplace(entry.name, storage);
    dict.add(
        TorchValue{entry.name},
        TorchValue{
            TorchValue::Tensor{to_write(entry.name, entry.tensor), storage}});
  }
  for (const auto& [alias, name] : section.aliases) {
    for (const SectionEntry& entry : section.entries) {
      if (entry.name != name) continue;
      dict.add(
          TorchValue{alias},
          TorchValue{TorchValue::Tensor{
              to_write(name, entry.tensor), storages.at(name)}});
    }
  }
  write_torch_file(disk, file, TorchValue{std::move(dict)});
}

void add_state(
    RankFiles& mine,
    const std::filesystem::path& path,
    const StateDict& state) {
  NamedTensors tensors;
  const nlohmann::json json = to_json(state, "", tensors);
  FileToWrite file{path, {}, {{kStateKey, json.dump()}}};
  for (const auto& [name, tensor] : tensors) {
    file.tensors.emplace(name, to_write(name, tensor));
  }
  mine.files.push_back(std::move(file));
}

// The errors of the ranks that failed; empty if none did.
std::string failures_in(
    const std::vector<std::string>& answers,
    const std::vector<int>& ranks) {
  std::vector<std::string> failures;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].starts_with(kFailed)) {
      failures.push_back(
          format("rank {}: {}", ranks[i], answers[i].substr(kFailed.size())));
    }
  }
  return join(failures, "\n");
}

// Returns the result in `answer`; throws CheckpointError if it is an error.
std::string unwrap(const std::string& answer) {
  if (answer.starts_with(kOk)) return answer.substr(kOk.size());
  throw CheckpointError(
      answer.substr(answer.starts_with(kFailed) ? kFailed.size() : 0));
}

template <class Body>
std::string attempt(Body&& body) {
  try {
    return format("{}{}", kOk, std::forward<Body>(body)());
  } catch (const std::exception& error) {
    return format("{}{}", kFailed, error.what());
  }
}

}  // namespace

bool Section::is_sharded() const {
  if (is_stage) return true;
  for (const SectionEntry& entry : entries) {
    if (!entry.layout.is_unsharded()) return true;
  }
  return false;
}

CheckpointWriter::CheckpointWriter(SaveJob job, StoreGroup& group)
    : job_(std::move(job)), group_(group) {
  std::string answer;
  if (group_.is_leader()) {
    answer = attempt([&] {
      pending_.emplace(job_.disk, job_.target);
      return pending_->directory().string();
    });
  }
  directory_ = unwrap(group_.broadcast(answer, "save_state"));
}

void CheckpointWriter::require_intact() {
  if (job_.require_intact) job_.require_intact();
  was_intact_ = true;
}

std::string CheckpointWriter::write_files() {
  if (!std::filesystem::is_directory(directory_)) {
    throw Error(format(
        "this rank does not see {}, where the checkpoint is written: all ranks "
        "need the same file system, or save_on_each_node",
        directory_of(directory_).string()));
  }
  const bool is_leader = group_.is_leader();
  RankFiles mine;
  std::vector<std::string> torch_files;
  for (const Section& section : job_.contents.sections) {
    const bool is_native = job_.layout == CheckpointLayout::native;
    // Other layouts are made from tensors stored as the ranks hold them.
    if (job_.safe_serialization || !is_native ||
        !section.name.starts_with("model")) {
      add_section(mine, job_, directory_, section, is_leader);
    } else if (is_leader) {
      torch_files.push_back(torch_file_of(section.name));
      write_torch_section(*job_.disk, directory_ / torch_files.back(), section);
    }
  }
  if (is_leader) {
    add_state(
        mine,
        directory_ / section_file(kStateSection, false, 0, 1),
        job_.contents.state);
  }
  add_state(mine, directory_ / rank_file(job_.rank), job_.contents.rank_state);
  const std::vector<FileRecord> records =
      write_tensor_files(*job_.disk, mine.files);
  for (std::size_t i = 0; i < records.size(); ++i) {
    mine.fragment.files.emplace(
        mine.files[i].path.filename().string(), records[i]);
  }
  if (!was_intact_) require_intact();
  for (const std::string& name : torch_files) {
    mine.fragment.files.emplace(name, record_of(directory_ / name));
  }
  return fragment_text(mine.fragment);
}

void CheckpointWriter::commit(const std::vector<std::string>& answers) {
  const std::string failures = failures_in(answers, group_.ranks());
  if (!failures.empty()) {
    throw CheckpointError(format(
        "[checkpoint] {} was not saved, and its files were removed:\n{}",
        job_.target.string(),
        failures));
  }
  Manifest manifest;
  manifest.writer = "accelerate.cpp " ACCELERATE_VERSION;
  manifest.created = now();
  manifest.iteration = job_.iteration;
  manifest.num_processes = job_.num_processes;
  manifest.is_part = job_.is_part;
  for (const std::string& answer : answers) {
    merge_into(
        manifest, parse_fragment(std::string_view(answer).substr(kOk.size())));
  }
  adopt_files(*job_.disk, directory_, manifest);
  for (const std::string& warning : commit_layout(manifest)) {
    job_.logger.log(LogLevel::warning, "checkpoint", warning);
  }
  pending_.reset();
  for (const std::filesystem::path& old : job_.deleted) {
    try {
      remove_checkpoint(*job_.disk, old);
    } catch (const Error& error) {
      job_.logger.log(LogLevel::warning, "checkpoint", error.what());
    }
  }
}

std::vector<std::string> CheckpointWriter::commit_layout(
    const Manifest& manifest) {
  if (job_.layout == CheckpointLayout::native) {
    return pending_->commit(manifest);
  }
  const AccelerateLayoutOptions options{job_.safe_serialization};
  warn_left_out(write_accelerate_layout(
      *job_.disk, directory_, manifest, directory_, options));
  remove_native_files(*job_.disk, directory_, manifest, options);
  return pending_->commit();
}

void CheckpointWriter::warn_left_out(
    const std::vector<std::string>& left_out) const {
  for (const std::string& each : left_out) {
    if (!job_.known_left_out->insert(each).second) continue;
    job_.logger.log(
        LogLevel::warning,
        "checkpoint",
        format("checkpoints in the layout of Accelerate leave out {}", each));
  }
}

void CheckpointWriter::write(const std::string& failure) {
  const std::string answer = failure.empty()
      ? attempt([&] { return write_files(); })
      : format("{}{}", kFailed, failure);
  const std::vector<std::string> answers =
      group_.gather(answer, "the end of save_state");
  std::string outcome;
  if (group_.is_leader()) {
    outcome = attempt([&] {
      commit(answers);
      return std::string();
    });
    pending_.reset();
  }
  static_cast<void>(unwrap(group_.broadcast(outcome, "the end of save_state")));
}

}  // namespace accelerate::detail
