#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/data_loader.h>

namespace accelerate {

/// A torch::data loader that every rank reads completely: rank r of N keeps
/// batches r, r + N …, and the last round is filled up with the first batches.
/// Every rank must see the same order, so a random sampler needs the same seed
/// on all. Prefer DataLoader, which reads only the batches of its rank, copies
/// less, and reports repeated samples.
template <class Loader>
class TorchLoader {
 public:
  explicit TorchLoader(std::unique_ptr<Loader> loader)
      : loader_(std::move(loader)) {}

  using Batch = std::decay_t<decltype(*std::declval<Loader&>().begin())>;

  class Iterator {
   public:
    explicit Iterator(TorchLoader& owner)
        : owner_(&owner),
          at_(owner.loader_->begin()),
          end_(owner.loader_->end()) {
      if (owner_->context_.begin) owner_->context_.begin();
      fetch_round();
      hand_out();
    }
    ~Iterator() {
      if (owner_ != nullptr && owner_->context_.end) owner_->context_.end();
    }
    Iterator(Iterator&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          at_(std::move(other.at_)),
          end_(std::move(other.end_)),
          is_first_round_(other.is_first_round_),
          first_round_(std::move(other.first_round_)),
          next_(std::move(other.next_)),
          batch_(std::move(other.batch_)) {}
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;

    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      hand_out();
      return *this;
    }
    bool operator==(detail::EndOfPass) const { return !batch_.has_value(); }

   private:
    // Reads one round ahead, because only then is the last batch known to be
    // the last.
    void fetch_round() {
      next_.reset();
      const int count = owner_->context_.batch_count;
      const int mine = owner_->context_.batch_rank;
      int place = 0;
      for (; place < count && at_ != end_; ++place, ++at_) {
        Batch batch = std::move(*at_);
        if (is_first_round_) first_round_.push_back(batch);
        if (place == mine) next_ = std::move(batch);
      }
      is_first_round_ = false;
      if (place > mine || place == 0) return;
      if (owner_->context_.even_batches &&
          !owner_->context_.even_batches().value_or(true))
        return;
      // Fills up the ranks that remain with the first batches, in order.
      next_ = first_round_
          [static_cast<std::size_t>(mine - place) % first_round_.size()];
    }

    void hand_out() {
      batch_ = std::move(next_);
      if (!batch_) return;
      fetch_round();
      *batch_ = send_to_device(std::move(*batch_), owner_->context_.device);
      if (owner_->context_.on_batch)
        owner_->context_.on_batch(!next_.has_value(), 0);
    }

    using Position = decltype(std::declval<Loader&>().begin());
    TorchLoader* owner_;
    Position at_;
    Position end_;
    bool is_first_round_ = true;
    std::vector<Batch> first_round_;
    std::optional<Batch> next_;
    std::optional<Batch> batch_;
  };

  Iterator begin() { return Iterator(*this); }
  [[nodiscard]] detail::EndOfPass end() const { return {}; }
  [[nodiscard]] Loader& inner() { return *loader_; }

  /// Called by prepare().
  void attach(detail::LoaderContext context) { context_ = std::move(context); }

 private:
  std::unique_ptr<Loader> loader_;
  detail::LoaderContext context_;
};

}  // namespace accelerate
