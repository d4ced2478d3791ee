#include <accelerate/detail/loader_engine.h>

#include <utility>

#include "data/loading/loader_errors.h"

namespace accelerate::detail {

LoaderEngine::LoaderEngine() = default;

LoaderEngine::~LoaderEngine() {
  if (slot_) *slot_ = {};
}

std::string LoaderEngine::load_complaint(const StateDict&) const { return {}; }

void LoaderEngine::link(std::shared_ptr<LoaderSlot> slot) {
  if (slot_) *slot_ = {};
  slot_ = std::move(slot);
  if (!slot_) return;
  slot_->state_dict = [this] { return state_dict(); };
  slot_->load_state_dict = [this](const StateDict& state) {
    load_state_dict(state);
  };
  slot_->load_complaint = [this](const StateDict& state) {
    return load_complaint(state);
  };
}

LoaderPass::LoaderPass(
    std::weak_ptr<LoaderEngine> loader,
    std::int64_t num_skipped)
    : loader_(std::move(loader)) {
  const std::shared_ptr<LoaderEngine> engine = loader_.lock();
  if (!engine) throw_loader_gone();
  engine->begin_pass();
  try {
    engine->skip(num_skipped);
    advance();
  } catch (...) {
    end();
    throw;
  }
}

LoaderPass::LoaderPass(LoaderPass&& other) noexcept
    : loader_(std::move(other.loader_)),
      has_ended_(std::exchange(other.has_ended_, true)),
      batch_(std::move(other.batch_)) {}

LoaderPass::~LoaderPass() { end(); }

LoadedBatch& LoaderPass::batch() const {
  if (!batch_) throw_no_batch();
  return *batch_;
}

void LoaderPass::advance() {
  // The old batch's memory is reused for the new one.
  batch_.reset();
  if (has_ended_) return;
  const std::shared_ptr<LoaderEngine> engine = loader_.lock();
  if (!engine) throw_loader_gone();
  batch_ = engine->next();
  if (!batch_) end();
}

void LoaderPass::end() noexcept {
  if (const auto engine = loader_.lock()) engine->end_pass();
  loader_.reset();
  has_ended_ = true;
}

}  // namespace accelerate::detail
