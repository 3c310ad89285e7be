#include "pliant/runtime/store_service.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/runtime/store_http.h"
#include "pliant/store/vault_file.h"
#include "pliant/transport/handshake.h"

namespace pliant {
namespace {

// Enough for a hello; a stranger is not listened to any longer.
constexpr int kStrangerReads = 1;
constexpr int kChunksMax = 4;  // of what is pulled, in one turn
constexpr Duration kListenAgain = std::chrono::milliseconds(100);

Result<std::string> random_name() {
  std::array<uint64_t, 2> random{};
  if (getrandom(random.data(), sizeof random, 0) != sizeof random)
    return system_error("cannot draw a random name");
  return fmt::format("pliant-store-{}-{:016x}{:016x}", getpid(), random[0], random[1]);
}

}  // namespace

Result<std::unique_ptr<StoreService>> StoreService::open(Options options) {
  std::unique_ptr<StoreService> service(new StoreService(std::move(options)));
  PLIANT_TRY(service->start());
  return service;
}

StoreService::StoreService(Options options)
    : options_(std::move(options)),
      vault_(options_.vault),
      copies_({options_.job, options_.token, options_.host}) {}

Status StoreService::start() {
  const std::lock_guard guard(loop_);
  auto name = random_name();
  if (!name) return name.error();
  name_ = std::move(*name);
  auto listener = listen_local(name_, LocalKind::kStream);
  if (!listener) return listener.error();
  if (!options_.http_address.empty()) {
    PLIANT_TRY(listen_for_copies());
    const auto address = parse_address(options_.http_address, 0);
    if (!address) return address.error();
    HttpOptions http;
    http.address = *address;
    http.token = options_.token;
    http.limits.body_bytes_max = kStoreAnswerBytesMax;
    http.request_max = options_.frame_max;
    auto server = HttpServer::open(
        loop_, std::move(http),
        {.on_request =
             [this](const HttpRequest& request) {
               HttpAnswer answer = answer_store(vault_, options_.host_name, request);
               spill();
               return answer;
             },
         .on_head = [this](const HttpRequest& head) { return refuse_store_body(vault_, head); },
         .on_stream_closed = [](HttpStreamId) {}});
    if (!server) return server.error();
    http_ = std::move(*server);
    endpoint_ = http_->endpoint();
  }
  if (!options_.file.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(std::filesystem::path(options_.file).parent_path(),
                                        problem);
    if (problem)
      return invalid(
          fmt::format("the folder of {} cannot be made: {}", options_.file, problem.message()));
    spill_ = std::make_unique<StoreSpill>(options_.file);
  }
  listener_ = std::move(*listener);
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_waiting(listener_, false); });
  thread_ = std::thread([this] { serve(); });
  return {};
}

Status StoreService::listen_for_copies() {
  const auto address = parse_address(options_.http_address, 0);
  if (!address) return address.error();
  auto listener = listen_tcp(*address);
  if (!listener) return listener.error();
  const auto bound = local_address(*listener);
  if (!bound) return bound.error();
  copies_endpoint_ = to_string(*bound);
  copies_listener_ = std::move(*listener);
  loop_.watch(copies_listener_.get(), EPOLLIN,
              [this](uint32_t) { accept_waiting(copies_listener_, true); });
  return {};
}

StoreService::~StoreService() {
  if (thread_.joinable()) {
    loop_.post([this] { stopping_ = true; });
    thread_.join();
  }
  const std::lock_guard guard(loop_);
  while (!lines_.empty()) close(lines_.begin()->first);
  for (const auto& [listener, timer] : resume_) loop_.cancel(timer);
  if (copies_listener_.valid()) loop_.unwatch(copies_listener_.get());
  if (listener_.valid()) loop_.unwatch(listener_.get());
  http_.reset();
}

void StoreService::know(const std::vector<StorePeer>& all, const std::vector<StorePeer>& copied) {
  copies_.set_peers(all, copied);
  loop_.post([this, all] { peers_ = all; });
}

// Before anybody is answered: a worker that asks for the newest version waits for it.
void StoreService::load() {
  std::error_code ignored;
  if (options_.file.empty() || !std::filesystem::exists(options_.file, ignored)) return;
  auto loaded = store::read_version(options_.file);
  const Status added =
      loaded ? vault_.add({.step = loaded->step, .epoch = loaded->epoch}, std::move(loaded->part))
             : Status(loaded.error());
  if (!added.ok())
    return log(LogLevel::kWarning, "the store begins empty: " + added.error().message);
  spilled_ = *vault_.find(store::Vault::kNewest);
}

void StoreService::spill() {
  const store::Version::Shared newest = vault_.own_newest();
  if (newest == nullptr || newest == spilled_) return;
  spilled_ = newest;
  if (spill_) spill_->keep(newest);
  copies_.keep(newest);
}

void StoreService::serve() {
  loop_.lock();
  load();
  while (!stopping_) {
    loop_.unlock();
    loop_.wait(std::chrono::hours(1));
    loop_.lock();
    loop_.turn();
  }
  loop_.unlock();
}

void StoreService::accept_waiting(const Fd& listener, bool remote) {
  while (true) {
    auto socket = accept_from(listener);
    if (!socket) return pause_listening(listener);
    if (!socket->valid()) return;
    if (lines_.size() >= options_.lines_max) continue;  // closed again at once
    const Id id = next_id_++;
    const int fd = socket->get();
    Line& line = *lines_.emplace(id, std::make_unique<Line>(std::move(*socket))).first->second;
    line.remote = remote;
    loop_.watch(fd, EPOLLIN, [this, id](uint32_t events) { on_ready(id, events); });
    set_deadline(id, line, options_.hello_max);
  }
}

// Out of descriptors: the listener stays ready, and would keep the loop busy until one is free.
void StoreService::pause_listening(const Fd& listener) {
  const int fd = listener.get();
  loop_.change(fd, 0);
  resume_[fd] = loop_.at(now() + kListenAgain, [this, fd] {
    resume_.erase(fd);
    loop_.change(fd, EPOLLIN);
  });
}

void StoreService::set_deadline(Id id, Line& line, Duration after) {
  if (line.deadline) loop_.cancel(*line.deadline);
  line.deadline = loop_.at(now() + after, [this, id] {
    lines_.at(id)->deadline.reset();
    close(id);
  });
}

void StoreService::close(Id id) {
  const auto at = lines_.find(id);
  if (at == lines_.end()) return;
  Line& line = *at->second;
  if (line.deadline) loop_.cancel(*line.deadline);
  loop_.unwatch(line.frames.socket().get());
  const auto ticket = line.ticket;
  lines_.erase(at);
  if (!ticket) return;
  vault_.withdraw(*ticket);
}

void StoreService::on_ready(Id id, uint32_t events) {
  Line& line = *lines_.at(id);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    const Status status = read_some(line);
    if (!status.ok()) {
      if (status.code() != Code::kPeerLost)
        log(LogLevel::kWarning, "the store of this host dropped a line: " + status.error().message);
      return close(id);
    }
  }
  tell_waiting();
  spill();
  if (lines_.contains(id)) flush(id, line);
}

// Whose version has been completed, or cannot be any more, by the part of another one.
void StoreService::tell_waiting() {
  for (auto& [id, line] : lines_) {
    if (!line->ticket) continue;
    const auto standing = vault_.standing(*line->ticket);
    if (standing == store::Vault::Standing::kUnfinished) continue;
    Status outcome;
    if (standing == store::Vault::Standing::kGone)
      outcome = Error{Code::kStaleEpoch,
                      fmt::format("step {}: the version was given up; its writers disagree, or a "
                                  "newer view writes it",
                                  line->ticket->step),
                      {},
                      {}};
    line->ticket.reset();
    line->frames.send(StoreKind::kOutcome, encode_outcome(outcome));
    // Sent by its own turn: a line that breaks must not disturb this walk.
    loop_.change(line->frames.socket().get(), EPOLLIN | EPOLLOUT);
  }
}

void StoreService::flush(Id id, Line& line) {
  auto flushed = line.frames.flush();
  // Not all at once, so that no reader keeps the loop.
  for (int i = 0; i < kChunksMax && line.pulled && flushed && *flushed; ++i) {
    const std::vector<std::byte> chunk = line.pulled->next();
    if (chunk.empty()) {
      line.pulled.reset();
      break;
    }
    line.frames.send(StoreKind::kCopyBytes, chunk);
    flushed = line.frames.flush();
  }
  if (!flushed || (*flushed && line.closing)) return close(id);
  const bool done = *flushed && !line.pulled;
  loop_.change(line.frames.socket().get(), done ? EPOLLIN : EPOLLIN | EPOLLOUT);
  if (!line.proven) return;
  // A copy may take long, as long as something of it arrives.
  if (line.remote) return set_deadline(id, line, options_.frame_max);
  // A worker that waits for the others may do so for as long as it likes.
  if (*flushed && line.frames.waiting_bytes() == 0) {
    if (line.deadline) loop_.cancel(*line.deadline);
    line.deadline.reset();
  } else if (!line.deadline) {
    set_deadline(id, line, options_.frame_max);
  }
}

Status StoreService::read_some(Line& line) {
  Status filled = line.proven ? line.frames.fill() : line.frames.fill(kStrangerReads);
  if (line.closing) return filled;
  if (!line.proven) PLIANT_TRY(greet(line));
  while (line.proven && !line.closing) {
    auto frame = line.frames.next();
    if (!frame) return frame.error();
    if (!frame->has_value()) break;
    if (!line.frames.flushed()) return invalid("one request at a time: the last is not answered");
    PLIANT_TRY(obey(line, std::move(**frame)));
  }
  return filled;
}

// The hello is one packet's worth of bytes, which may still come in several.
Status StoreService::greet(Line& line) {
  if (line.frames.waiting_bytes() > kHelloBytesMax) return invalid("a stranger said too much");
  const auto bytes = line.frames.peek_raw();
  if (bytes.size() < kHelloHeadBytes) return {};
  const auto head = decode_hello_head(bytes.first<kHelloHeadBytes>());
  if (!head) return head.error();
  if (bytes.size() < kHelloHeadBytes + head->body_bytes) return {};
  if (bytes.size() > kHelloHeadBytes + head->body_bytes)
    return invalid("a stranger did not wait for an answer");
  const auto hello = decode_hello_body(bytes.subspan(kHelloHeadBytes));
  if (!hello) return hello.error();
  line.frames.skip_raw(bytes.size());
  const PeerId self{.host = options_.host, .slot = 0, .incarnation = 0};
  const pliant::Answer answer =
      judge(*hello, {.job = options_.job, .token = options_.token, .self = self});
  line.frames.send_raw(encode(answer));
  line.proven = answer == pliant::Answer::kAccepted;
  line.closing = !line.proven;
  if (line.closing)
    log(LogLevel::kWarning,
        fmt::format("the store of this host refused a process: {}", to_string(answer)));
  return {};
}

Status StoreService::obey(Line& line, StoreFrame frame) {
  if (line.remote) return obey_remote(line, frame);
  switch (frame.kind) {
    case StoreKind::kOffer: take_offer(line, std::move(frame)); return {};
    case StoreKind::kAsk: give_version(line, frame.body); return {};
    case StoreKind::kList: list_versions(line); return {};
    case StoreKind::kLook: give_outline(line, frame.body); return {};
    case StoreKind::kHosts: line.frames.send(StoreKind::kHostList, encode(peers_)); return {};
    default: return invalid("a worker sent what only the store sends");
  }
}

void StoreService::take_offer(Line& line, StoreFrame frame) {
  const auto refuse = [&](const Error& error) {
    line.frames.send(StoreKind::kOutcome, encode_outcome(error));
  };
  if (line.ticket) return refuse(invalid("one part at a time: the last one is not complete yet"));
  auto offer = decode_offer(frame.body);
  if (!offer) return refuse(offer.error());
  auto memory = store::VaultMemory::adopt(std::move(frame.memory), offer->manifest.memory_bytes);
  if (!memory) return refuse(memory.error());
  const Status added = vault_.add(offer->ticket, {std::move(offer->manifest), std::move(*memory)});
  if (!added.ok()) return refuse(added.error());
  line.ticket = offer->ticket;
}

void StoreService::give_version(Line& line, Bytes body) {
  const auto step = decode_ask(body);
  const auto version = step ? vault_.find(*step) : Result<store::Version::Shared>(step.error());
  if (!version) {
    line.frames.send(StoreKind::kOutcome, encode_outcome(version.error()));
    return;
  }
  const auto& parts = (*version)->parts();
  line.frames.send(StoreKind::kVersion, encode(StoreVersion{(*version)->step(), (*version)->epoch(),
                                                            static_cast<uint32_t>(parts.size())}));
  for (const store::VaultPart& part : parts)
    line.frames.send(StoreKind::kPart, store::encode(part.manifest), part.memory);
}

void StoreService::list_versions(Line& line) {
  std::vector<StoreSummary> summaries;
  for (const store::Version::Shared& version : vault_.versions())
    summaries.push_back({version->step(), version->epoch(),
                         static_cast<uint32_t>(version->parts().size()), version->tensors().size(),
                         version->memory_bytes()});
  line.frames.send(StoreKind::kVersions, encode(summaries));
}

// What there is of a version here, and what is known of it to be elsewhere, or to have been.
void StoreService::give_outline(Line& line, Bytes body) {
  const auto step = decode_ask(body);
  const auto found = step ? vault_.find(*step) : Result<store::Version::Shared>(step.error());
  const uint64_t number = found ? (*found)->step() : step ? *step : store::Vault::kNewest;
  const auto outlines = vault_.outlines(number);
  uint32_t epoch = found ? (*found)->epoch() : 0;
  if (!found) {
    if (outlines.empty())
      return line.frames.send(StoreKind::kOutcome, encode_outcome(found.error()));
    for (const auto& [host, outline] : outlines) epoch = std::max(epoch, outline->epoch);
  }
  std::vector<StoreOutline> parts;
  if (found)
    for (const store::VaultPart& part : (*found)->parts())
      parts.push_back({options_.host, true, part.manifest});
  for (const auto& [host, outline] : outlines)
    if (outline->epoch == epoch)
      for (const store::Manifest& manifest : outline->parts)
        parts.push_back({host, false, manifest});
  line.frames.send(StoreKind::kVersion,
                   encode(StoreVersion{number, epoch, static_cast<uint32_t>(parts.size())}));
  for (const StoreOutline& part : parts) line.frames.send(StoreKind::kOutline, encode(part));
}

void StoreService::give_pieces(Line& line, Bytes body) {
  const auto refuse = [&](const Error& error) {
    line.frames.send(StoreKind::kOutcome, encode_outcome(error));
  };
  const auto pull = decode_pull(body);
  if (!pull) return refuse(pull.error());
  const auto version = vault_.find(pull->step);
  if (!version) return refuse(version.error());
  if ((*version)->epoch() != pull->epoch)
    return refuse(Error{
        Code::kStaleEpoch, fmt::format("step {} has been replaced meanwhile", pull->step), {}, {}});
  auto stream = PullStream::make(*version, *pull);
  if (!stream) return refuse(stream.error());
  line.frames.send(StoreKind::kCopyPart, store::encode(stream->manifest()));
  line.pulled.emplace(std::move(*stream));
}

Status StoreService::obey_remote(Line& line, const StoreFrame& frame) {
  if (line.pulled) return invalid("one request at a time: the last is not answered");
  switch (frame.kind) {
    case StoreKind::kList: list_versions(line); return {};
    case StoreKind::kLook: give_outline(line, frame.body); return {};
    case StoreKind::kPull: give_pieces(line, frame.body); return {};
    default: return take_copy(line, frame);
  }
}

// A copy that cannot be kept is refused once it has come: its sender does not listen before.
Status StoreService::take_copy(Line& line, const StoreFrame& frame) {
  if (line.copy == nullptr) line.copy = std::make_unique<CopyReceiver>(options_.vault.bytes_max);
  const auto whole = line.copy->take(frame);
  // Who puts a version waits for leave before its elements.
  if (line.copy->is_put() && frame.kind == StoreKind::kCopyPart) {
    line.frames.send(StoreKind::kOutcome, encode_outcome(whole ? Status() : whole.error()));
    line.closing = !whole;
    return {};
  }
  if (!whole) return whole.error();
  if (!*whole) return {};
  const auto copy = std::exchange(line.copy, nullptr);
  line.frames.send(StoreKind::kOutcome, encode_outcome(keep_copy(*copy)));
  return {};
}

Status StoreService::keep_copy(CopyReceiver& copy) {
  const StoreCopy& about = copy.about();
  if (about.purpose == StoreCopy::Purpose::kOutline)
    return vault_.add_outline(about.host, copy.take_outline());
  const StoreVersion& version = about.version;
  auto made = store::Version::make(version.step, version.epoch, copy.take_parts());
  if (!made) return made.error();
  PLIANT_TRY((*made)->verify());
  if (about.purpose == StoreCopy::Purpose::kCopy) return vault_.add_copy(about.host, *made);
  if (version.parts != 1) return invalid("a version that is put has one part");
  return vault_.add({.step = version.step, .epoch = version.epoch}, (*made)->parts()[0]);
}

}  // namespace pliant
