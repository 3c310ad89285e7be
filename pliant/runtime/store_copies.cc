#include "pliant/runtime/store_copies.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/transport/handshake.h"

namespace pliant {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
// Without a byte moving for so long the other host is given up.
constexpr Duration kStillMax = std::chrono::seconds(20);

// One copy on its way to one host.
class Sending final {
 public:
  Sending(Fd socket, int cancel) : line_(std::move(socket)), cancel_(cancel) {}

  StoreLine& line() { return line_; }
  Status connected() {
    PLIANT_TRY(wait(POLLOUT));
    return connect_status(line_.socket());
  }
  Status flush() {
    while (true) {
      const auto flushed = line_.flush();
      if (!flushed) return flushed.error();
      if (*flushed) return {};
      PLIANT_TRY(wait(POLLOUT));
    }
  }
  Status fill() {
    PLIANT_TRY(wait(POLLIN));
    return line_.fill();
  }

 private:
  Status wait(short events) {
    std::array<pollfd, 2> entries = {pollfd{line_.socket().get(), events, 0},
                                     pollfd{cancel_, POLLIN, 0}};
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kStillMax);
    int ready = -1;
    do {
      ready = poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
    } while (ready < 0 && errno == EINTR);
    if (ready < 0) return system_error("cannot wait for another host's store");
    if (entries[1].revents != 0) return Error{Code::kCancelled, "the store ends", {}, {}};
    if (ready == 0) return Error{Code::kTimeout, "the other host's store is silent", {}, {}};
    return {};
  }

  StoreLine line_;
  const int cancel_;
};

Status greet(Sending& sending, const StoreCopies::Options& options, uint32_t to) {
  Hello hello;
  hello.job = options.job;
  hello.token = options.token;
  hello.from = {.host = options.host, .slot = 0, .incarnation = 1};
  hello.to = {.host = to, .slot = 0, .incarnation = 0};
  sending.line().send_raw(encode(hello));
  PLIANT_TRY(sending.flush());
  while (sending.line().waiting_bytes() < kAnswerBytes) PLIANT_TRY(sending.fill());
  const auto answer = decode_answer(sending.line().peek_raw().first<kAnswerBytes>());
  if (!answer) return answer.error();
  sending.line().skip_raw(kAnswerBytes);
  if (*answer == Answer::kAccepted) return {};
  return invalid(fmt::format("it refused: {}", to_string(*answer)));
}

Status send_part(Sending& sending, const store::VaultPart& part) {
  sending.line().send(StoreKind::kCopyPart, store::encode(part.manifest));
  const Bytes memory = part.memory->bytes();
  for (size_t offset = 0; offset < memory.size(); offset += kChunkBytes) {
    const Bytes chunk = memory.subspan(offset, std::min(kChunkBytes, memory.size() - offset));
    sending.line().send(StoreKind::kCopyBytes, {chunk.begin(), chunk.end()});
    PLIANT_TRY(sending.flush());
  }
  return {};
}

}  // namespace

StoreCopies::StoreCopies(Options options)
    : options_(std::move(options)),
      cancel_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { work(); }) {}

StoreCopies::~StoreCopies() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  const ssize_t written = write(cancel_.get(), &one, sizeof one);
  PLIANT_CHECK(!cancel_.valid() || written == sizeof one, "an eventfd takes a small number");
  changed_.notify_one();
  thread_.join();
}

void StoreCopies::set_peers(std::vector<StorePeer> peers) {
  {
    const std::lock_guard guard(mutex_);
    peers_ = std::move(peers);
  }
  changed_.notify_one();
}

void StoreCopies::keep(store::Version::Shared version) {
  {
    const std::lock_guard guard(mutex_);
    newest_ = std::move(version);
    served_.clear();
  }
  changed_.notify_one();
}

// A peer that cannot be reached is tried again with the next version.
void StoreCopies::work() {
  std::unique_lock lock(mutex_);
  const auto next = [&] {
    return std::ranges::find_if(peers_, [&](const StorePeer& peer) {
      return std::ranges::find(served_, peer) == served_.end();
    });
  };
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (newest_ && next() != peers_.end()); });
    if (stopping_) return;
    const StorePeer peer = *next();
    served_.push_back(peer);
    const store::Version::Shared version = newest_;
    lock.unlock();
    const Status sent = send(*version, peer);
    if (!sent.ok() && sent.code() != Code::kCancelled)
      log(LogLevel::kWarning, fmt::format("step {} has no copy on host {}: {}", version->step(),
                                          peer.host, sent.error().message));
    lock.lock();
  }
}

Status StoreCopies::send(const store::Version& version, const StorePeer& peer) const {
  const auto address = parse_endpoint(peer.endpoint);
  if (!address) return address.error();
  auto socket = connect_tcp(*address);
  if (!socket) return socket.error();
  Sending sending(std::move(*socket), cancel_.get());
  PLIANT_TRY(sending.connected());
  PLIANT_TRY(greet(sending, options_, peer.host));
  const StoreCopy about{
      options_.host,
      {version.step(), version.epoch(), static_cast<uint32_t>(version.parts().size())}};
  sending.line().send(StoreKind::kCopy, encode(about));
  for (const store::VaultPart& part : version.parts()) PLIANT_TRY(send_part(sending, part));
  while (true) {
    auto frame = sending.line().next();
    if (!frame) return frame.error();
    if (frame->has_value()) return decode_outcome((*frame)->body);
    PLIANT_TRY(sending.fill());
  }
}

// ---- The receiver -----------------------------------------------------------------------------

Result<store::Version::Shared> CopyReceiver::take(const StoreFrame& frame) {
  if (frame.kind == StoreKind::kCopy && !about_) {
    const auto about = decode_copy(frame.body);
    if (!about) return about.error();
    about_ = *about;
    return store::Version::Shared();
  }
  if (frame.kind == StoreKind::kCopyPart && about_ && !draft_) {
    PLIANT_TRY(begin_part(frame.body));
    return store::Version::Shared();
  }
  if (frame.kind != StoreKind::kCopyBytes || !draft_)
    return invalid("another host's store sent its copy in the wrong order");
  PLIANT_TRY(add_bytes(frame.body));
  if (draft_ || parts_.size() < about_->version.parts) return store::Version::Shared();
  return store::Version::make(about_->version.step, about_->version.epoch, std::move(parts_));
}

// The kernel gives memory for what arrives, not for what is announced.
Status CopyReceiver::begin_part(Bytes body) {
  auto manifest = store::decode_manifest(body);
  if (!manifest) return manifest.error();
  if (bytes_max_ > 0 && manifest->memory_bytes > bytes_max_ - std::min(bytes_, bytes_max_))
    return Error{Code::kOverloaded,
                 fmt::format("a copy of more than {} does not fit", human_bytes(bytes_max_)),
                 {},
                 {}};
  bytes_ += manifest->memory_bytes;
  auto draft = store::VaultDraft::make(manifest->memory_bytes);
  if (!draft) return draft.error();
  draft_.emplace(std::move(*draft));
  manifest_ = std::move(*manifest);
  received_bytes_ = 0;
  return {};
}

Status CopyReceiver::add_bytes(Bytes bytes) {
  if (bytes.size() > manifest_->memory_bytes - received_bytes_)
    return invalid("another host's store sent more than it announced");
  PLIANT_TRY(draft_->write(received_bytes_, bytes));
  received_bytes_ += bytes.size();
  if (received_bytes_ < manifest_->memory_bytes) return {};
  auto memory = draft_->seal();
  if (!memory) return memory.error();
  parts_.push_back({std::move(*manifest_), std::move(*memory)});
  draft_.reset();
  return {};
}

}  // namespace pliant
