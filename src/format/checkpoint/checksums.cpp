#include "format/checkpoint/checksums.h"

#include <algorithm>

#include "base/process/jobs.h"
#include "format/tensors/input_file.h"
#include "format/tensors/range_reader.h"
#include "format/tensors/verified_read.h"

namespace accelerate::detail {

FileRecord record_of(const std::filesystem::path& file) {
  const InputFile input(file);
  FileRecord record;
  record.num_bytes = std::filesystem::file_size(file);
  const std::size_t num_chunks =
      (record.num_bytes + kChunkBytes - 1) / kChunkBytes;
  record.checksums.resize(num_chunks);
  const std::size_t num_threads = num_reading_threads(num_chunks);
  std::vector<RangeReader> readers(num_threads);
  run_jobs(num_chunks, num_threads, [&](std::size_t thread, std::size_t chunk) {
    const std::uint64_t begin = chunk * kChunkBytes;
    record.checksums[chunk] = read_and_hash(
        {&input, begin, std::min(begin + kChunkBytes, record.num_bytes)},
        readers[thread]);
  });
  return record;
}

std::vector<std::uint64_t> damaged_chunks(
    const std::filesystem::path& file,
    const FileRecord& record) {
  const FileRecord now = record_of(file);
  std::vector<std::uint64_t> damaged;
  const std::size_t num_chunks =
      std::max(record.checksums.size(), now.checksums.size());
  for (std::size_t i = 0; i < num_chunks; ++i) {
    if (i >= record.checksums.size() || i >= now.checksums.size() ||
        record.checksums[i] != now.checksums[i]) {
      damaged.push_back(i * kChunkBytes);
    }
  }
  return damaged;
}

}  // namespace accelerate::detail
