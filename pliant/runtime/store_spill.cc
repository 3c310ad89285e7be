#include "pliant/runtime/store_spill.h"

#include <fmt/format.h>

#include <utility>

#include "pliant/base/log.h"
#include "pliant/store/vault_file.h"

namespace pliant {

StoreSpill::StoreSpill(std::string path) : path_(std::move(path)), thread_([this] { work(); }) {}

StoreSpill::~StoreSpill() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StoreSpill::keep(store::Version::Shared version) {
  {
    const std::lock_guard guard(mutex_);
    next_ = std::move(version);
  }
  changed_.notify_one();
}

void StoreSpill::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return next_ != nullptr || stopping_; });
    if (next_ == nullptr) return;
    const store::Version::Shared version = std::exchange(next_, nullptr);
    lock.unlock();
    if (const Status written = store::write_version(*version, path_); !written.ok())
      log(LogLevel::kWarning,
          fmt::format("step {} is not on the disk, and what was there before stays: {}",
                      version->step(), written.error().message));
    lock.lock();
  }
}

}  // namespace pliant
