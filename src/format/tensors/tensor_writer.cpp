#include "format/tensors/tensor_writer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <accelerate/error.h>

#include "base/process/jobs.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// A piece of a file: bytes in memory, or bytes to copy from a tensor.
struct Piece {
  std::uint64_t begin = 0;  // in the file
  std::uint64_t num_bytes = 0;
  const TensorBytes* tensor = nullptr;  // null: the header
};

struct OpenFile {
  const FileToWrite* wanted = nullptr;
  std::string header;
  std::vector<Piece> pieces;
  std::unique_ptr<OutputFile> file;
  FileRecord record;
  std::atomic<std::uint64_t> num_missing{0};
};

std::unique_ptr<OpenFile> lay_out_file(const FileToWrite& wanted) {
  auto open = std::make_unique<OpenFile>();
  open->wanted = &wanted;
  std::vector<safetensors::Declaration> declarations;
  for (const auto& [name, tensor] : wanted.tensors) {
    declarations.push_back({name, tensor.dtype, tensor.shape});
  }
  const safetensors::Header header =
      safetensors::lay_out(declarations, wanted.metadata);
  open->header = safetensors::header_bytes(header);
  open->pieces.push_back({0, open->header.size(), nullptr});
  std::uint64_t end = open->header.size();
  for (const std::string& name : safetensors::names_in_order(header)) {
    const safetensors::TensorInfo& info = header.tensors.at(name);
    const TensorBytes& bytes = wanted.tensors.at(name).bytes;
    if (bytes.num_bytes != info.num_bytes()) {
      throw InternalError(format(
          "[checkpoint] {} has {} bytes where {} were declared",
          name,
          bytes.num_bytes,
          info.num_bytes()));
    }
    if (info.num_bytes() == 0) continue;
    open->pieces.push_back({end, info.num_bytes(), &bytes});
    end += info.num_bytes();
  }
  open->record.num_bytes = end;
  open->record.checksums.resize((end + kChunkBytes - 1) / kChunkBytes);
  open->num_missing = open->record.checksums.size();
  return open;
}

class ChunkWriter {
 public:
  void write(OpenFile& open, std::uint64_t chunk) {
    const std::uint64_t begin = chunk * kChunkBytes;
    const std::uint64_t end =
        std::min(begin + kChunkBytes, open.record.num_bytes);
    collect(open, begin, end);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (const Bytes piece : chunk_) {
      XXH3_64bits_update(&state, piece.data(), piece.size());
    }
    open.record.checksums[chunk] = XXH3_64bits_digest(&state);
    open.file->write_at(begin, chunk_);
  }

 private:
  void collect(const OpenFile& open, std::uint64_t begin, std::uint64_t end) {
    chunk_.clear();
    std::size_t num_staged = 0;
    auto piece = std::upper_bound(
        open.pieces.begin(),
        open.pieces.end(),
        begin,
        [](std::uint64_t place, const Piece& each) {
          return place < each.begin + each.num_bytes;
        });
    for (; piece != open.pieces.end() && piece->begin < end; ++piece) {
      const std::uint64_t from = std::max(begin, piece->begin) - piece->begin;
      const std::uint64_t size =
          std::min(end, piece->begin + piece->num_bytes) - piece->begin - from;
      if (piece->tensor == nullptr) {
        chunk_.push_back(
            std::as_bytes(std::span(open.header)).subspan(from, size));
      } else if (piece->tensor->data != nullptr) {
        chunk_.emplace_back(piece->tensor->data + from, size);
      } else {
        if (stage_.empty()) stage_.resize(kChunkBytes);
        const std::span<std::byte> out =
            std::span(stage_).subspan(num_staged, size);
        piece->tensor->copy(from, out);
        chunk_.emplace_back(out);
        num_staged += size;
      }
    }
  }

  std::vector<Bytes> chunk_;
  std::vector<std::byte> stage_;
};

}  // namespace

std::vector<FileRecord> write_tensor_files(
    FileSystem& disk,
    const std::vector<FileToWrite>& files) {
  std::vector<std::unique_ptr<OpenFile>> open_files;
  std::vector<std::pair<OpenFile*, std::uint64_t>> jobs;
  for (const FileToWrite& file : files) {
    open_files.push_back(lay_out_file(file));
  }
  for (const auto& open : open_files) {
    open->file = disk.create(open->wanted->path);
    for (std::uint64_t i = 0; i < open->record.checksums.size(); ++i) {
      jobs.emplace_back(open.get(), i);
    }
  }

  const std::size_t num_threads = num_helpful_threads(jobs.size());
  std::vector<ChunkWriter> writers(num_threads);
  run_jobs(jobs.size(), num_threads, [&](std::size_t thread, std::size_t i) {
    auto& [open, chunk] = jobs[i];
    writers[thread].write(*open, chunk);
    if (open->num_missing.fetch_sub(1) == 1) open->file->finish();
  });

  std::vector<FileRecord> records;
  for (const auto& open : open_files) {
    records.push_back(std::move(open->record));
  }
  return records;
}

}  // namespace accelerate::detail
