#include "format/tensors/verified_read.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace accelerate::detail {

namespace {

// Bytes that are read and then hashed at once: they fit into the cache.
constexpr std::uint64_t kPieceBytes = 256U << 10U;
// Shorter segments are copied out of a piece: a system call each would cost
// more.
constexpr std::uint64_t kLeastDirectRead = 64U << 10U;

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

void require_checksum(
    const InputFile& file,
    std::uint64_t chunk,
    std::uint64_t checksum) {
  const std::vector<std::uint64_t>& recorded = file.record()->checksums;
  if (chunk >= recorded.size() || recorded[chunk] != checksum) {
    fail_chunk(file, chunk);
  }
  file.set_verified(chunk);
}

void read_bytes(
    const InputFile& file,
    std::uint64_t offset,
    std::span<std::byte> out) {
  try {
    file.read_at(offset, out);
  } catch (const Error& error) {
    throw DamagedCheckpoint(error.what());
  }
}

// A pass over one chunk, from its beginning to its end.
class ChunkPass {
 public:
  ChunkPass(
      const InputFile& file,
      std::uint64_t chunk,
      std::vector<std::byte>& scratch)
      : file_(file),
        at_(chunk * kChunkBytes),
        end_(std::min(at_ + kChunkBytes, file.record()->num_bytes)),
        scratch_(scratch) {
    XXH3_64bits_reset(&state_);
  }

  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] std::uint64_t checksum() const {
    return XXH3_64bits_digest(&state_);
  }

  // Reads the next bytes to their destination.
  void read_direct(std::span<std::byte> out) {
    for (std::size_t done = 0; done < out.size();) {
      const std::size_t size =
          std::min<std::uint64_t>(kPieceBytes, out.size() - done);
      take(out.subspan(done, size));
      done += size;
    }
  }
  // Reads a piece that ends at `limit` or before, and returns it.
  std::span<const std::byte> read_piece(std::uint64_t limit) {
    scratch_.resize(kPieceBytes);
    const auto out = std::span(scratch_).first(
        std::min(kPieceBytes, std::min(limit, end_) - at_));
    take(out);
    return out;
  }

 private:
  void take(std::span<std::byte> out) {
    read_bytes(file_, at_, out);
    XXH3_64bits_update(&state_, out.data(), out.size());
    at_ += out.size();
  }

  const InputFile& file_;
  std::uint64_t at_;
  std::uint64_t end_;
  std::vector<std::byte>& scratch_;
  XXH3_state_t state_;
};

// Copies what segments from `next` on want of a piece at `offset`.
void copy_out(
    std::span<const std::byte> piece,
    std::uint64_t offset,
    std::span<const FileSegment> segments,
    std::size_t next) {
  for (; next < segments.size(); ++next) {
    const FileSegment& segment = segments[next];
    if (segment.offset >= offset + piece.size()) return;
    const std::uint64_t begin = std::max(offset, segment.offset);
    const std::uint64_t end =
        std::min(offset + piece.size(), segment.offset + segment.out.size());
    std::memcpy(
        segment.out.data() + (begin - segment.offset),
        piece.data() + (begin - offset),
        end - begin);
  }
}

}  // namespace

void read_and_verify(
    const InputFile& file,
    std::uint64_t chunk,
    std::span<const FileSegment> segments,
    std::vector<std::byte>& scratch) {
  ChunkPass pass(file, chunk, scratch);
  std::size_t next = 0;
  const auto is_done = [&](const FileSegment& segment) {
    return segment.offset + segment.out.size() <= pass.at();
  };
  const auto is_long = [](const FileSegment& segment) {
    return segment.out.size() >= kLeastDirectRead;
  };
  while (pass.at() < pass.end()) {
    while (next < segments.size() && is_done(segments[next])) ++next;
    if (next < segments.size() && segments[next].offset == pass.at() &&
        is_long(segments[next])) {
      pass.read_direct(segments[next].out);
      continue;
    }
    // Up to the next long segment; a piece may end inside a short one.
    std::uint64_t limit = pass.end();
    for (std::size_t i = next; i < segments.size(); ++i) {
      if (segments[i].offset >= pass.at() + kPieceBytes) break;
      if (is_long(segments[i]) && segments[i].offset > pass.at()) {
        limit = segments[i].offset;
        break;
      }
    }
    const std::uint64_t offset = pass.at();
    const auto piece = pass.read_piece(limit);
    copy_out(piece, offset, segments, next);
  }
  require_checksum(file, chunk, pass.checksum());
}

void verify_range(
    const InputFile& file,
    std::uint64_t begin,
    std::uint64_t end) {
  for (std::uint64_t chunk = begin / kChunkBytes; chunk * kChunkBytes < end;
       ++chunk) {
    if (file.is_verified(chunk)) continue;
    std::vector<std::byte> scratch;
    read_and_verify(file, chunk, {}, scratch);
  }
}

}  // namespace accelerate::detail
