#include "format/tensors/verified_read.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/process/jobs.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void fail_chunk(const InputFile& file, std::uint64_t chunk) {
  const std::uint64_t begin = chunk * kChunkBytes;
  throw DamagedCheckpoint(format(
      "[checkpoint] {} is damaged: the contents of {} have changed between "
      "bytes {} and {} since they were written; load another checkpoint",
      file.path().parent_path().string(),
      file.path().filename().string(),
      begin,
      std::min(begin + kChunkBytes, file.record()->num_bytes)));
}

}  // namespace

FileRange chunk_range(const InputFile& file, std::uint64_t chunk) {
  const std::uint64_t begin = chunk * kChunkBytes;
  return {
      &file, begin, std::min(begin + kChunkBytes, file.record()->num_bytes)};
}

std::uint64_t read_and_hash(const FileRange& range, RangeReader& reader) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  reader.read(range, [&](std::span<const std::byte> piece) {
    XXH3_64bits_update(&state, piece.data(), piece.size());
  });
  return XXH3_64bits_digest(&state);
}

struct ChunkHash::State {
  XXH3_state_t hash;
};

ChunkHash::ChunkHash(const FileRange& chunk)
    : file_(*chunk.file),
      chunk_(chunk.begin / kChunkBytes),
      state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->hash);
}

ChunkHash::~ChunkHash() = default;

void ChunkHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
}

void ChunkHash::finish() {
  const std::vector<std::uint64_t>& recorded = file_.record()->checksums;
  if (chunk_ >= recorded.size() ||
      recorded[chunk_] != XXH3_64bits_digest(&state_->hash)) {
    fail_chunk(file_, chunk_);
  }
  file_.set_verified(chunk_);
}

void read_and_verify(const FileRange& range, RangeReader& reader) {
  ChunkHash hash(range);
  try {
    reader.read(
        range, [&](std::span<const std::byte> piece) { hash.add(piece); });
  } catch (const Error& error) {
    throw DamagedCheckpoint(error.what());
  }
  hash.finish();
}

void verify_range(
    const InputFile& file,
    std::uint64_t begin,
    std::uint64_t end) {
  for (std::uint64_t chunk = begin / kChunkBytes; chunk * kChunkBytes < end;
       ++chunk) {
    if (file.is_verified(chunk)) continue;
    RangeReader reader;
    read_and_verify(chunk_range(file, chunk), reader);
  }
}

void verify_checksums(const std::vector<const StoredTensor*>& tensors) {
  std::set<std::pair<const InputFile*, std::uint64_t>> chunks;
  for (const StoredTensor* tensor : tensors) {
    for (const StoredBox& box : tensor->boxes) {
      const InputFile& file = *box.file;
      if (file.record() == nullptr) continue;
      const std::uint64_t size =
          safetensors::bytes_of(tensor->dtype, box.box.size).value_or(0);
      // The first chunk contains the header.
      if (!file.is_verified(0)) chunks.emplace(&file, 0);
      for (std::uint64_t chunk = box.offset / kChunkBytes;
           chunk * kChunkBytes < box.offset + size;
           ++chunk) {
        if (!file.is_verified(chunk)) chunks.emplace(&file, chunk);
      }
    }
  }
  const std::vector<std::pair<const InputFile*, std::uint64_t>> all(
      chunks.begin(), chunks.end());
  const std::size_t num_threads = num_reading_threads(all.size());
  std::vector<RangeReader> readers(num_threads);
  run_jobs(all.size(), num_threads, [&](std::size_t thread, std::size_t i) {
    const auto& [file, chunk] = all[i];
    read_and_verify(chunk_range(*file, chunk), readers[thread]);
  });
}

}  // namespace accelerate::detail
