#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>
#include <accelerate/progress.h>

#include "base/files/file_system.h"
#include "base/progress/byte_progress.h"
#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/tool/commands.h"
#include "format/accelerate/accelerate_layout.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/checksums.h"
#include "format/checkpoint/commit.h"
#include "format/checkpoint/manifest.h"
#include "format/weights/weights.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;
using detail::CheckpointEntry;
using detail::CheckpointKind;
using detail::format;
using detail::Manifest;
using detail::StoredTensors;

struct CheckpointFlags {
  std::string path = ".";
  std::string other;
  std::string output;
  int keep = 0;
  bool is_dry_run = false;
  bool is_quiet = false;
  bool is_unsafe = false;
};

// Prints one line. Names in it come from files and directories, which are
// untrusted.
void print(std::string_view line) {
  std::printf("%s\n", detail::printable(line, line.npos).c_str());
}

std::string text_of(const safetensors::Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += format("{}{}", i > 0 ? ", " : "", shape[i]);
  }
  return text + "]";
}

// A name as printed, padded with spaces to this width.
std::string padded(const std::string& name, std::size_t width) {
  std::string text = detail::printable(name);
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::uint64_t bytes_in(const fs::path& directory) {
  std::uint64_t total = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) total += entry.file_size();
  }
  return total;
}

// The directory of checkpoints: the one inside a project's directory, otherwise
// the path itself.
fs::path checkpoints_in(const fs::path& path) {
  const fs::path inside = path / detail::kCheckpointsDirectory;
  if (!fs::is_directory(path)) {
    throw ConfigError(format("{} is not a directory", path.string()));
  }
  return fs::is_directory(inside) ? inside : path;
}

// The path itself if it is a checkpoint or a file, otherwise the newest
// checkpoint in it.
fs::path one_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path) || fs::exists(path / detail::kManifestName)) {
    return path;
  }
  const fs::path base = checkpoints_in(path);
  const auto entries = detail::list_checkpoints(base);
  const CheckpointEntry* const newest = detail::newest_of(entries);
  return newest == nullptr ? path : base / newest->name;
}

int list(const CheckpointFlags& flags) {
  const fs::path base = checkpoints_in(flags.path);
  bool has_any = false;
  for (const CheckpointEntry& entry : detail::list_checkpoints(base)) {
    // Skips directories that are not checkpoints.
    if (!entry.number && entry.kind == CheckpointKind::unusable) continue;
    has_any = true;
    std::string about;
    switch (entry.kind) {
      case CheckpointKind::complete: {
        const Manifest manifest = detail::read_manifest(base / entry.name);
        about = format(
            "{}  {}{}",
            manifest.created,
            manifest.num_processes,
            manifest.num_processes == 1 ? " process" : " processes");
        break;
      }
      case CheckpointKind::accelerate:
        about = "written by Python's Accelerate";
        break;
      case CheckpointKind::unusable:
        about = format("INCOMPLETE: {}", entry.complaint);
        break;
    }
    print(format(
        "{}{}{}",
        padded(entry.name, 18),
        padded(
            detail::format_size(
                static_cast<double>(bytes_in(base / entry.name))),
            12),
        about));
  }
  if (!has_any) print(format("no checkpoints in {}", base.string()));
  return 0;
}

std::uint64_t num_bytes_of(const Manifest& manifest) {
  std::uint64_t num = 0;
  for (const auto& [name, record] : manifest.files) num += record.num_bytes;
  return num;
}

int verify(const CheckpointFlags& flags) {
  std::vector<fs::path> checkpoints;
  if (fs::exists(fs::path(flags.path) / detail::kManifestName)) {
    checkpoints.emplace_back(flags.path);
  } else {
    const fs::path base = checkpoints_in(flags.path);
    for (const CheckpointEntry& entry : detail::list_checkpoints(base)) {
      if (entry.number && entry.kind != CheckpointKind::accelerate) {
        checkpoints.push_back(base / entry.name);
      }
    }
    if (checkpoints.empty()) {
      throw ConfigError(format("no checkpoints in {}", base.string()));
    }
  }
  bool are_good = true;
  for (const fs::path& checkpoint : checkpoints) {
    std::vector<std::string> complaints;
    try {
      const Manifest manifest = detail::read_manifest(checkpoint);
      Progress bar(
          {.description = "reading",
           .total = static_cast<std::int64_t>(num_bytes_of(manifest)),
           .unit = "B",
           .unit_scale = true,
           .leave = false});
      for (const auto& [name, record] : manifest.files) {
        for (const std::uint64_t place :
             detail::damaged_chunks(checkpoint / name, record)) {
          complaints.push_back(format(
              "{} has changed between bytes {} and {}",
              name,
              place,
              std::min(place + detail::kChunkBytes, record.num_bytes)));
        }
        bar.update(static_cast<std::int64_t>(record.num_bytes));
      }
    } catch (const Error& error) {
      complaints.emplace_back(error.what());
    }
    are_good = are_good && complaints.empty();
    print(format(
        "{}{}",
        checkpoint.string(),
        complaints.empty() ? ": good" : ": DAMAGED"));
    for (const std::string& each : complaints) print(format("  {}", each));
  }
  return are_good ? 0 : 1;
}

void show_tensors(const std::string& title, const StoredTensors& tensors) {
  std::uint64_t total = 0;
  std::size_t width = 0;
  for (const auto& [name, tensor] : tensors) {
    total += safetensors::bytes_of(tensor.dtype, tensor.shape).value_or(0);
    width = std::max(width, detail::printable(name).size());
  }
  print(format(
      "{}: {} tensors, {}",
      title,
      tensors.size(),
      detail::format_size(static_cast<double>(total))));
  for (const auto& [name, tensor] : tensors) {
    print(format(
        "  {}{}{}",
        padded(name, width + 2),
        padded(std::string(safetensors::name_of(tensor.dtype)), 6),
        text_of(tensor.shape)));
  }
}

// The stored tensors by section. Files that are not a checkpoint form a single
// section.
std::map<std::string, StoredTensors> sections_of(const fs::path& path) {
  std::map<std::string, StoredTensors> sections;
  if (fs::exists(path / detail::kManifestName)) {
    for (const auto& [section, tensors] :
         detail::read_manifest(path).sections) {
      sections.emplace(section, detail::stored_in_checkpoint(path, tensors));
    }
  } else {
    sections.emplace("model", detail::open_weights(path));
  }
  return sections;
}

// `a` and `b` have the same dtype and shape. Reads one piece of both at a time.
bool have_equal_values(
    const detail::StoredTensor& a,
    const detail::StoredTensor& b) {
  constexpr std::uint64_t kPiece = 4U << 20U;
  const auto left = detail::to_write(a), right = detail::to_write(b);
  std::vector<std::byte> left_bytes, right_bytes;
  for (std::uint64_t i = 0; i < left.bytes.num_bytes; i += kPiece) {
    const auto size = std::min(kPiece, left.bytes.num_bytes - i);
    left_bytes.resize(size);
    right_bytes.resize(size);
    left.bytes.copy(i, left_bytes);
    right.bytes.copy(i, right_bytes);
    if (left_bytes != right_bytes) return false;
  }
  return true;
}

int differ(const fs::path& left, const fs::path& right) {
  const auto ours = sections_of(left), theirs = sections_of(right);
  std::set<std::string> names;
  for (const auto& [section, tensors] : ours) names.insert(section);
  for (const auto& [section, tensors] : theirs) names.insert(section);
  std::size_t num_equal = 0, num_different = 0;
  const auto add_difference = [&](const std::string& difference) {
    ++num_different;
    print(difference);
  };
  for (const std::string& section : names) {
    static const StoredTensors kNone;
    const StoredTensors& a = ours.contains(section) ? ours.at(section) : kNone;
    const StoredTensors& b =
        theirs.contains(section) ? theirs.at(section) : kNone;
    for (const auto& [name, tensor] : a) {
      const std::string label =
          format("{}: {}", section, detail::printable(name));
      const auto found = b.find(name);
      if (found == b.end()) {
        add_difference(format("- {}", label));
        continue;
      }
      if (found->second.dtype != tensor.dtype ||
          found->second.shape != tensor.shape) {
        add_difference(format(
            "~ {}  {}{} -> {}{}",
            label,
            safetensors::name_of(tensor.dtype),
            text_of(tensor.shape),
            safetensors::name_of(found->second.dtype),
            text_of(found->second.shape)));
        continue;
      }
      if (have_equal_values(tensor, found->second)) {
        ++num_equal;
      } else {
        add_difference(format("~ {}  values differ", label));
      }
    }
    for (const auto& [name, tensor] : b) {
      if (a.contains(name)) continue;
      add_difference(format("+ {}: {}", section, detail::printable(name)));
    }
  }
  print(format("{} tensors equal, {} different", num_equal, num_different));
  return num_different == 0 ? 0 : 1;
}

int show(const CheckpointFlags& flags) {
  const fs::path path = one_checkpoint(flags.path);
  if (!flags.other.empty()) return differ(path, one_checkpoint(flags.other));
  if (fs::exists(path / detail::kManifestName)) {
    const Manifest manifest = detail::read_manifest(path);
    print(format(
        "{}: {}, {}, {}{}, iteration {}",
        path.string(),
        manifest.writer,
        manifest.created,
        manifest.num_processes,
        manifest.num_processes == 1 ? " process" : " processes",
        manifest.iteration));
    for (const auto& [name, record] : manifest.files) {
      print(format(
          "  {}{}",
          padded(name, 34),
          detail::format_size(static_cast<double>(record.num_bytes))));
    }
  }
  for (const auto& [section, tensors] : sections_of(path)) {
    show_tensors(section, tensors);
  }
  return 0;
}

// Reads the manifest of the checkpoint to convert. Files of Python's Accelerate
// need no conversion.
Manifest manifest_to_convert(const fs::path& source) {
  if (!fs::exists(source / detail::kManifestName) &&
      fs::exists(source / "random_states_0.pkl")) {
    throw ConfigError(
        format("{} has the layout of Accelerate already", source.string()));
  }
  return detail::read_manifest(source);
}

int convert(const CheckpointFlags& flags) {
  const fs::path source = one_checkpoint(flags.path);
  const Manifest manifest = manifest_to_convert(source);
  if (fs::exists(flags.output) && !fs::is_empty(flags.output)) {
    throw ConfigError(format(
        "{} exists; give the converted checkpoint a name of its own",
        flags.output));
  }
  std::vector<std::string> left_out, warnings;
  fs::path target;
  {
    // The bar is removed before messages are printed.
    const auto disk = detail::make_file_system_with_progress(
        "converting", num_bytes_of(manifest));
    detail::PendingCheckpoint pending(disk, flags.output);
    left_out = detail::write_accelerate_layout(
        *disk,
        source,
        manifest,
        pending.directory(),
        {.safe_serialization = !flags.is_unsafe});
    warnings = pending.commit();
    target = pending.target();
  }
  for (const std::string& warning : warnings)
    std::fprintf(stderr, "%s\n", warning.c_str());
  print(format("{} written for Python's Accelerate", target.string()));
  for (const std::string& each : left_out) {
    print(format("  left out: {}", each));
  }
  return 0;
}

int prune(const CheckpointFlags& flags) {
  const fs::path base = checkpoints_in(flags.path);
  std::vector<std::string> complete;
  for (const CheckpointEntry& entry : detail::list_checkpoints(base)) {
    if (entry.number && entry.kind == CheckpointKind::complete) {
      complete.push_back(entry.name);
    }
  }
  const auto disk = detail::make_file_system();
  const auto keep = static_cast<std::size_t>(flags.keep);
  const std::size_t num_going =
      complete.size() > keep ? complete.size() - keep : 0;
  for (std::size_t i = 0; i < num_going; ++i) {
    print(format(
        "{}{}",
        flags.is_dry_run ? "would delete " : "deleting ",
        (base / complete[i]).string()));
    if (!flags.is_dry_run) {
      detail::remove_checkpoint(*disk, base / complete[i]);
    }
  }
  if (!flags.is_dry_run) {
    for (const std::string& complaint : detail::sweep(*disk, base)) {
      std::fprintf(stderr, "%s\n", detail::printable_lines(complaint).c_str());
    }
  }
  print(format("{} complete checkpoints remain", complete.size() - num_going));
  return 0;
}

}  // namespace

RunCommand add_checkpoint_command(CLI::App& tool) {
  const auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* const command = tool.add_subcommand(
      "checkpoint", "list, verify, show, prune and convert checkpoints");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, const char* what) {
    CLI::App* const sub = command->add_subcommand(name, help);
    sub->add_option("path", flags->path, what)->capture_default_str();
    return sub;
  };
  const CLI::App* const ls =
      add("ls",
          "list checkpoints, and whether they are complete",
          "a project, or a directory of checkpoints");
  const CLI::App* const verify_command =
      add("verify",
          "read everything and compare checksums; ends with 1 if any differ",
          "a checkpoint, or a directory of checkpoints");
  CLI::App* const show_command =
      add("show",
          "the tensors of a checkpoint, or of any file of weights",
          "a checkpoint, a directory (its newest checkpoint), or a file");
  show_command->add_option(
      "--diff",
      flags->other,
      "compare with this one; ends with 1 if any tensor differs");
  CLI::App* const prune_command =
      add("prune",
          "delete all complete checkpoints but the newest, and leftovers of "
          "failed saves",
          "a project, or a directory of checkpoints");
  prune_command
      ->add_option("--keep", flags->keep, "number of checkpoints to keep")
      ->required()
      ->check(CLI::PositiveNumber);
  prune_command->add_flag(
      "--dry_run,--dry-run",
      flags->is_dry_run,
      "only print what would be deleted");
  CLI::App* const convert_command =
      add("convert",
          "write a checkpoint as Python's Accelerate does, "
          "which its load_state reads",
          "a checkpoint, or a directory (its newest checkpoint)");
  convert_command
      ->add_option("output", flags->output, "a directory, which is created")
      ->required();
  convert_command->add_flag(
      "--unsafe_serialization,--unsafe-serialization",
      flags->is_unsafe,
      "write pytorch_model.bin in place of model.safetensors");
  return [=] {
    if (ls->parsed()) return list(*flags);
    if (verify_command->parsed()) return verify(*flags);
    if (show_command->parsed()) return show(*flags);
    if (convert_command->parsed()) return convert(*flags);
    return prune(*flags);
  };
}

}  // namespace accelerate::cli
