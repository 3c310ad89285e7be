// The store of a host: keeps the tensors that its workers hand over (store/vault.h) in the agent's
// process, so that they outlive any worker. Workers reach it over a Unix socket (store_client.h),
// people and tools over HTTP (store_http.h); both must know the job's token.
//
// A worker's part belongs to its line until the version is complete: if the worker dies or gives
// up, it is withdrawn, and nothing of it stays. Memory is never copied: descriptors are passed.
//
// Owned by an agent. Has a thread and a loop of its own, so that nothing here, reading gigabytes
// included, holds up the agent, which must see a death within a millisecond. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/http_server.h"
#include "pliant/runtime/store_client.h"
#include "pliant/runtime/store_copies.h"
#include "pliant/runtime/store_spill.h"
#include "pliant/runtime/store_wire.h"
#include "pliant/store/vault.h"

namespace pliant {

class StoreService final {
 public:
  struct Options {
    std::string job;
    std::string token;
    uint32_t host = 0;
    std::string host_name = "localhost";
    std::string http_address;  // on which it is served; empty: not at all
    store::VaultOptions vault = {};
    std::string file;  // keeps the newest version, too, and is what it begins with; empty: none
    size_t lines_max = 512;
    Duration hello_max = std::chrono::seconds(5);
    Duration frame_max = std::chrono::seconds(60);  // for a frame to arrive, or to be read
  };

  static Result<std::unique_ptr<StoreService>> open(Options options);
  ~StoreService();
  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;

  // Of the Unix socket; for workers.
  const std::string& name() const { return name_; }
  StorePlace place() const { return {name_, options_.job, options_.token, options_.host}; }
  // "127.0.0.1:4711" of HTTP; empty if it is not served.
  const std::string& endpoint() const { return endpoint_; }
  // Where other hosts send copies of their versions, pull what they miss, and put versions; empty
  // if it takes none.
  const std::string& copies_endpoint() const { return copies_endpoint_; }
  // From here on, newest versions are copied to the stores of `copied`, their outlines to all.
  void know(const std::vector<StorePeer>& all, const std::vector<StorePeer>& copied);

 private:
  struct Line {
    explicit Line(Fd socket) : frames(std::move(socket)) {}
    StoreLine frames;
    bool remote = false;  // of another host's store, worker or command
    bool proven = false;
    bool closing = false;
    std::unique_ptr<CopyReceiver> copy;        // that is arriving
    std::optional<PullStream> pulled;          // what is on its way out
    std::optional<store::VaultTicket> ticket;  // its part waits for the others
    std::optional<Loop::TimerId> deadline;
  };
  using Id = uint64_t;

  explicit StoreService(Options options);
  Status start();
  void serve();
  void load();
  void spill();
  Status listen_for_copies();
  void accept_waiting(const Fd& listener, bool remote);
  void pause_listening(const Fd& listener);
  void on_ready(Id id, uint32_t events);
  Status read_some(Line& line);
  Status greet(Line& line);
  Status obey(Line& line, StoreFrame frame);
  Status obey_remote(Line& line, const StoreFrame& frame);
  void take_offer(Line& line, StoreFrame frame);
  void give_version(Line& line, Bytes body);
  void list_versions(Line& line);
  void give_outline(Line& line, Bytes body);
  void give_pieces(Line& line, Bytes body);
  Status take_copy(Line& line, const StoreFrame& frame);
  Status keep_copy(CopyReceiver& copy);
  void tell_waiting();
  void flush(Id id, Line& line);
  void set_deadline(Id id, Line& line, Duration after);
  void close(Id id);

  const Options options_;
  std::string name_;
  std::string endpoint_;
  Loop loop_;
  std::string copies_endpoint_;
  Fd listener_;
  Fd copies_listener_;
  std::unique_ptr<HttpServer> http_;
  store::Vault vault_;  // guarded by the loop, as all that follows
  Id next_id_ = 1;
  std::map<Id, std::unique_ptr<Line>> lines_;
  std::map<int, Loop::TimerId> resume_;  // of listening, by listener
  std::vector<StorePeer> peers_;
  StoreCopies copies_;
  std::unique_ptr<StoreSpill> spill_;
  store::Version::Shared spilled_;  // the last one that was spilled and copied
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace pliant
