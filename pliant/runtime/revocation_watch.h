// Asks the metadata service of the cloud, again and again, whether this machine will be taken away.
//
// Owned by the agent. Everything is called, and calls back, with the loop held; so is the
// destructor. A service that does not answer is told of once and asked less often; it never is an
// error of the job, and nothing here blocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/http_fetch.h"
#include "pliant/runtime/revocation.h"

namespace pliant {

class RevocationWatch final {
 public:
  struct Options {
    CloudProvider provider = CloudProvider::kNone;
    HttpBase base;
    Duration every = kRevocationPoll;
  };
  // Called once, with the reason; then nothing is asked any more. It may destroy this.
  using OnRevoked = std::function<void(const std::string& reason)>;

  RevocationWatch(Loop& loop, Options options, OnRevoked on_revoked);
  ~RevocationWatch();
  RevocationWatch(const RevocationWatch&) = delete;
  RevocationWatch& operator=(const RevocationWatch&) = delete;

 private:
  void ask();
  void ask_later(Duration wait);
  void on_response(const Result<HttpResponse>& response);
  void on_trouble(const std::string& why);

  Loop& loop_;
  const Options options_;
  const OnRevoked on_revoked_;
  RevocationInquiry inquiry_;
  std::unique_ptr<HttpFetch> fetch_;
  std::optional<Loop::TimerId> timer_;
  bool told_ = false;  // of the trouble in hand
};

}  // namespace pliant
